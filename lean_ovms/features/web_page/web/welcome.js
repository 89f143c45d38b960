// What an empty conversation shows: the model, and three things to try.

import { button, icon, make } from "./dom.js";
import { t } from "./i18n.js";

const SMALL = ["What can you do?", "What is the capital of France?", "Tell me a joke."]; // for the demo model
const GENERAL = [
  "Explain in five sentences how a language model runs on a CPU.",
  "Write a Python function that finds the primes below n, with a test.",
  "Compare three ways to store 100 GB of logs, as a table.",
];

// device: where the model is computed, or "". send: sends a text. attach: lets the reader pick a file.
export function welcome(model, device, send, attach) {
  const questions = !model.id ? [] : model.root === "demo" ? SMALL : GENERAL;
  const cards = questions.map((text) => button(t(text), () => send(t(text)), "try"));
  if (model.input_modalities?.includes("image")) {
    cards.pop();
    const card = button("", attach, "try");
    card.append(icon("image"), t("Describe an image"));
    cards.push(card);
  }
  const title = make("h2", { textContent: model.id ? t("Chat with {name}", { name: model.id }) : t("Chat") });
  const logo = make("img", { src: "web/favicon.svg", alt: "", width: 44, height: 44 });
  return make("div", { className: "welcome" }, logo, title, make("p", { className: "facts" }, ...facts(model, device)), make("div", { className: "tries" }, ...cards));
}

function facts(model, device) {
  const context = model.max_model_len && t("{n} tokens of context", { n: model.max_model_len.toLocaleString() });
  const state = model.status && model.status.value !== "loaded" && t("loads with the first message");
  return [context, device && t("runs on {device}", { device }), model.input_modalities?.includes("image") && t("reads images"), state]
    .filter(Boolean)
    .map((textContent) => make("span", { className: "fact", textContent }));
}
