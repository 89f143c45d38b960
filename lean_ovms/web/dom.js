// Elements. Text from models and servers only ever enters the page as text nodes.

export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

export const byId = (id) => document.getElementById(id);

export function copyButton(label, text) {
  const button = make("button", { type: "button", textContent: label });
  button.onclick = async () => {
    await copy(typeof text === "function" ? text() : text);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = label), 1500);
  };
  return button;
}

export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = make("textarea", { value: text }); // a page that was not loaded by https has no clipboard object
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

export function showProblem(text) {
  const line = byId("problem");
  line.textContent = text;
  line.hidden = !text;
}
