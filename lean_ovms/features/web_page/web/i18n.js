// Texts in the reader's language. The English text is the key; strings/LANGUAGE.json has the others.

export const LANGUAGES = { en: "English", de: "Deutsch", es: "Español", zh: "中文", ja: "日本語" };
const CHOSEN = "lean_ovms.language";
const ATTRIBUTES = ["placeholder", "title", "aria-label"];
let texts = {};

export function language() {
  const wanted = [localStorage.getItem(CHOSEN), ...(navigator.languages || [])].filter(Boolean);
  return wanted.map((name) => name.split("-")[0]).find((name) => name in LANGUAGES) || "en";
}

export function choose(name) {
  localStorage.setItem(CHOSEN, name);
  location.reload();
}

// features: those that have panels, and texts for them.
export async function load(features) {
  document.documentElement.lang = language();
  if (language() === "en") return;
  const read = async (folder) => (await fetch(new URL(`web/${folder}strings/${language()}.json`, document.baseURI))).json();
  const orEnglish = (folder) => read(folder).catch(() => ({})); // a text that does not arrive must not end the page
  texts = Object.assign({}, ...(await Promise.all(["", ...features.map((name) => `${name}/`)].map(orEnglish))));
  translate(document.body);
}

// {name} in a text is replaced by values.name.
export function t(text, values = {}) {
  return (texts[text] ?? text).replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
}

function translate(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.data.trim();
    if (text in texts) walker.currentNode.data = walker.currentNode.data.replace(text, texts[text]);
  }
  for (const name of ATTRIBUTES)
    for (const element of root.querySelectorAll(`[${name}]`)) element.setAttribute(name, t(element.getAttribute(name)));
}
