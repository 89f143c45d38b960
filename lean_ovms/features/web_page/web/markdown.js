// Markdown to elements. The lexer is marked's; no HTML is parsed: what a model writes as HTML stays text.

import { copyButton, make } from "./dom.js";
import { colour } from "./highlight.js";
import { formula } from "./math.js";
import { Lexer, Marked } from "./vendor/marked.js";

const MAX_DEPTH = 30; // of lists and quotes in each other
const MAX_INLINE = 10_000; // characters of one paragraph: beyond them the time that marks take grows with its square
const OPEN = 3; // last blocks that more text can change
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };

const math = (name, level, start, pattern) => ({
  name,
  level,
  start: (text) => start.exec(text)?.index,
  tokenizer(text) {
    const match = pattern.exec(text);
    return match ? { type: "math", raw: match[0], text: match[1] ?? match[2], display: level === "block" || match[0].startsWith("$$") } : undefined;
  },
});
const { defaults } = new Marked({
  extensions: [
    math("mathBlock", "block", /\$\$|\\\[/, /^(?:\$\$([^$]{1,5000})\$\$|\\\[([^]{1,5000}?)\\\])(?:\n|$)/),
    math("mathInline", "inline", /\$|\\\(/, /^(?:\${1,2}(?!\s)([^$\n]{1,1000})(?<!\s)\${1,2}(?!\d)|\\\(([^\n]{1,1000}?)\\\))/),
  ],
});

class SafeLexer extends Lexer {
  depth = 0;

  blockTokens(text, tokens, ...more) {
    if (this.depth >= MAX_DEPTH) return [...tokens, { type: "text", raw: text, text }];
    this.depth += 1;
    const found = super.blockTokens(text, tokens, ...more);
    this.depth -= 1;
    return found;
  }

  inlineTokens(text, tokens = []) {
    if (text.length <= MAX_INLINE) return super.inlineTokens(text, tokens);
    tokens.push({ type: "text", raw: text, text });
    return tokens;
  }
}

// The text of one answer, which grows: only its last blocks are made again.
export class MarkdownView {
  element = make("div", { className: "body markdown" });
  #settled = ""; // the text of the blocks that no more text can change
  #count = 0; // and how many elements they are

  // whole: no more text comes.
  update(text, whole) {
    const plain = text.replace(/\r\n?/g, "\n");
    if (whole || !plain.startsWith(this.#settled)) [this.#settled, this.#count] = ["", 0];
    const tokens = new SafeLexer({ ...defaults }).lex(plain.slice(this.#settled.length));
    const open = whole ? [] : tokens.splice(Math.max(0, tokens.length - OPEN));
    while (this.element.childNodes.length > this.#count) this.element.lastChild.remove();
    this.element.append(...blocks(tokens, true));
    this.#settled += tokens.map((token) => token.raw).join("");
    this.#count = this.element.childNodes.length;
    this.element.append(...blocks(open, false));
  }
}

export function markdown(text) {
  const view = new MarkdownView();
  view.update(text, true);
  return view.element;
}

const blocks = (tokens, settled) => tokens.flatMap((token) => block(token, settled));

// The elements of a block. settled: it is whole.
function block(token, settled) {
  switch (token.type) {
    case "space":
    case "def":
      return [];
    case "hr":
      return [make("hr")];
    case "heading":
      return [make("h" + Math.min(6, token.depth + 1), {}, ...inline(token.tokens))];
    case "code":
      return [code(token, settled)];
    case "blockquote":
      return [make("blockquote", {}, ...blocks(token.tokens, settled))];
    case "list":
      return [list(token, settled)];
    case "table":
      return [table(token)];
    case "math":
      return [formula(token.text, true)];
    case "paragraph":
      return [make("p", {}, ...inline(token.tokens))];
    case "text":
    case "checkbox":
      return inline([token]);
    default:
      return [make("p", {}, token.raw.trim())];
  }
}

function code({ text, lang }, settled) {
  const language = /^[\w+#-]*/.exec(lang || "")[0].toLowerCase();
  const inner = make("code", { textContent: text });
  colour(inner, language, settled);
  const head = make("div", { className: "code-head" }, make("span", { textContent: language }), copyButton(text));
  return make("div", { className: "code" }, head, make("pre", { tabIndex: 0 }, inner));
}

function list(token, settled) {
  const items = token.items.map((item) => make("li", { className: item.task ? "task" : "" }, ...blocks(item.tokens, settled)));
  const element = make(token.ordered ? "ol" : "ul", {}, ...items);
  if (token.ordered && token.start !== 1) element.start = token.start;
  return element;
}

function table({ header, rows }) {
  const row = (cells, tag) => make("tr", {}, ...cells.map((cell) => make(tag, { className: cell.align || "" }, ...inline(cell.tokens))));
  const inner = make("table", {}, make("thead", {}, row(header, "th")), make("tbody", {}, ...rows.map((cells) => row(cells, "td"))));
  return make("div", { className: "table", tabIndex: 0 }, inner);
}

const inline = (tokens) => tokens.map(element);

function element(token) {
  switch (token.type) {
    case "strong":
    case "em":
    case "del":
      return make(token.type, {}, ...inline(token.tokens));
    case "codespan":
      return make("code", { textContent: token.text });
    case "br":
      return make("br");
    case "link":
    case "image":
      return link(token) || document.createTextNode(token.raw);
    case "checkbox":
      return make("input", { type: "checkbox", disabled: true, checked: token.checked, ariaLabel: token.checked ? "✓" : "–" });
    case "math":
      return formula(token.text, token.display);
    case "html":
      return /^<br\s*\/?>$/i.test(token.raw) ? make("br") : document.createTextNode(token.raw);
    case "text":
      return token.tokens ? make("span", {}, ...inline(token.tokens)) : document.createTextNode(unescaped(token.text));
    default:
      return document.createTextNode(unescaped(token.text ?? token.raw));
  }
}

// An image is a link to it: the page asks no other host for anything.
function link({ href, tokens }) {
  if (!/^(https?:\/\/|mailto:)/i.test(href)) return null; // javascript:, data: and addresses of this server stay text
  return make("a", { href, target: "_blank", rel: "noopener noreferrer nofollow" }, ...(tokens?.length ? inline(tokens) : [href]));
}

const unescaped = (text) =>
  text.replace(/&(?:(\w{2,4})|#(\d{1,7})|#x([\da-f]{1,6}));/gi, (whole, name, decimal, hex) => {
    if (name) return ENTITIES[name] ?? whole;
    const number = parseInt(decimal ?? hex, decimal ? 10 : 16);
    return number > 0 && number <= 0x10ffff ? String.fromCodePoint(number) : whole;
  });
