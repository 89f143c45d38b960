// Formulas as MathML, by Temml, loaded when the first formula appears. Until then, and where TeX is wrong, it is text.

import { make } from "./dom.js";

const LIMITS = { trust: false, strict: false, throwOnError: true, maxExpand: 200, maxSize: [20, 20] };
let temml;

export function formula(text, display) {
  const element = make(display ? "div" : "span", { className: display ? "math block" : "math", textContent: text });
  temml ||= import("./vendor/temml.js");
  temml.then(({ default: writer }) => {
    try {
      const made = document.createElement("span");
      writer.render(text, made, { ...LIMITS, displayMode: display });
      element.replaceChildren(...made.childNodes);
    } catch {
      element.textContent = text;
    }
  });
  return element;
}
