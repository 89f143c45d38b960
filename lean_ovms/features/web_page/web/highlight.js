// Colours for code, by highlight.js: the core and one file for each language, loaded when the first such code appears.

import { make } from "./dom.js";

const LANGUAGES = {
  bash: ["sh", "shell", "console", "zsh"],
  cpp: ["c", "c++", "h", "hpp", "cc"],
  css: [],
  diff: ["patch"],
  go: ["golang"],
  java: [],
  javascript: ["js", "jsx", "mjs"],
  json: ["jsonc"],
  python: ["py", "python3"],
  rust: ["rs"],
  sql: [],
  typescript: ["ts", "tsx"],
  xml: ["html", "svg"],
  yaml: ["yml"],
};
const NAMES = new Map(Object.entries(LANGUAGES).flatMap(([name, aliases]) => [name, ...aliases].map((alias) => [alias, name])));
const MAX_GROWING = 3000; // characters of code that is coloured again with each token
const MAX = 60_000;
const loading = new Map();
let core; // once it is there

// Colours the code of an element, now or when the language is loaded.
export function colour(element, alias, settled) {
  const name = NAMES.get(alias);
  const text = element.textContent;
  if (!name || text.length > (settled ? MAX : MAX_GROWING)) return;
  if (core?.getLanguage(name)) return element.replaceChildren(...spans(text, name));
  load(name).then(() => element.replaceChildren(...spans(text, name)), () => {});
}

function load(name) {
  if (!loading.has(name)) loading.set(name, fetchLanguage(name));
  return loading.get(name);
}

async function fetchLanguage(name) {
  const [highlighter, language] = await Promise.all([import("./vendor/highlight/core.js"), import(`./vendor/highlight/${name}.js`)]);
  core = highlighter.default;
  core.registerLanguage(name, language.default);
}

// From the tree that highlight.js makes before it writes HTML.
const spans = (text, name) => core.highlight(text, { language: name, ignoreIllegals: true })._emitter.rootNode.children.map(span);

function span(node) {
  if (typeof node === "string") return node;
  const scope = (node.scope || "").split(".")[0];
  return make("span", { className: scope ? `hljs-${scope}` : "" }, ...node.children.map(span));
}
