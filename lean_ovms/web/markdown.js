// Markdown to elements. No HTML is parsed: what is not one of these forms stays text.
// https://spec.commonmark.org/0.31.2/ in its common part, and tables of GitHub's dialect.

import { copyButton, make } from "./dom.js";

// In each expression, what follows a repeated part begins with another character: the time grows with a text's length,
// not with its square.
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)/;
const HEADING = /^ {0,3}(#{1,6})(\s.*)$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+([^]*)$/;
const QUOTE = /^ {0,3}> ?/;
const MAX_DEPTH = 20;

export function markdown(text) {
  const out = make("div", { className: "body" });
  out.append(...blocks(text.replace(/\r\n?/g, "\n").split("\n"), 0));
  return out;
}

function blocks(lines, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    const before = at;
    const line = lines[at];
    let match;
    if (!line.trim()) at += 1;
    else if ((match = FENCE.exec(line))) at = fence(lines, at, match, found);
    else if ((match = HEADING.exec(line))) {
      found.push(make("h" + Math.min(6, match[1].length + 2), {}, ...inline(match[2].trim().replace(/(^|\s)#+$/, "").trim())));
      at += 1;
    } else if (RULE.test(line)) {
      found.push(make("hr"));
      at += 1;
    } else if (QUOTE.test(line) && depth < MAX_DEPTH) {
      const inner = [];
      while (at < lines.length && QUOTE.test(lines[at])) inner.push(lines[at++].replace(QUOTE, ""));
      found.push(make("blockquote", {}, ...blocks(inner, depth + 1)));
    } else if (ITEM.test(line) && depth < MAX_DEPTH) at = list(lines, at, found, depth);
    else if (line.includes("|") && at + 1 < lines.length && cells(lines[at + 1]).every((cell) => /^:?-+:?$/.test(cell)))
      at = table(lines, at, found);
    else at = paragraph(lines, at, found, depth);
    if (at === before) at += 1;
  }
  return found;
}

function fence(lines, at, match, found) {
  const inner = [];
  for (at += 1; at < lines.length && !isEnd(lines[at], match[1]); at += 1) inner.push(lines[at]);
  const text = inner.join("\n");
  const code = make("code", { textContent: text });
  if (match[2]) code.dataset.language = match[2];
  found.push(make("div", { className: "code" }, make("pre", {}, code), copyButton("Copy", text)));
  return at + 1;
}

function isEnd(line, mark) {
  const text = line.trim();
  return text.length >= mark.length && text === mark[0].repeat(text.length);
}

function list(lines, at, found, depth) {
  const ordered = /\d/.test(ITEM.exec(lines[at])[2]);
  const element = make(ordered ? "ol" : "ul");
  if (ordered) element.start = parseInt(ITEM.exec(lines[at])[2], 10);
  const indent = ITEM.exec(lines[at])[1].length;
  while (at < lines.length) {
    const match = ITEM.exec(lines[at]);
    if (!match || match[1].length < indent || /\d/.test(match[2]) !== ordered) break;
    const inner = [match[3]];
    for (at += 1; at < lines.length; at += 1) {
      const next = ITEM.exec(lines[at]);
      if (next && next[1].length <= indent) break;
      if (!next && lines[at].trim() && !/^\s/.test(lines[at])) break;
      inner.push(lines[at].replace(/^\s{1,4}/, ""));
    }
    element.append(make("li", {}, ...blocks(inner, depth + 1)));
  }
  found.push(element);
  return at;
}

function table(lines, at, found) {
  const row = (line, tag) => make("tr", {}, ...cells(line).map((cell) => make(tag, {}, ...inline(cell))));
  const element = make("table", {}, make("thead", {}, row(lines[at], "th")));
  const body = make("tbody");
  for (at += 2; at < lines.length && lines[at].includes("|"); at += 1) body.append(row(lines[at], "td"));
  element.append(body);
  found.push(element);
  return at;
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());

function paragraph(lines, at, found, depth) {
  const inner = [];
  for (; at < lines.length && lines[at].trim(); at += 1) {
    const line = lines[at];
    if (inner.length && (FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || (ITEM.test(line) && depth < MAX_DEPTH)))
      break;
    inner.push(line);
  }
  found.push(make("p", {}, ...inline(inner.join("\n"))));
  return at;
}

// Code, links, strong, emphasis, deleted text, addresses. Unmatched marks stay text.
const INLINE =
  /(?<!`)(`+)([^`](?:[\s\S]*?[^`])?)\1(?!`)|\[([^\][]{1,400})\]\(([^\s()]{1,2000})\)|\*\*(?=\S)([^*]{1,2000}?\S?)\*\*|(?<![\w*])\*(?=[^\s*])([^*]{1,2000}?)\*(?!\w)|(?<!\w)_(?=[^\s_])([^_]{1,2000}?)_(?!\w)|~~([^~]{1,2000})~~|(https?:\/\/[^\s<>()"'`]{1,2000})/g;

function inline(text, nested = 0) {
  const found = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    if (match.index > end) found.push(...plain(text.slice(end, match.index)));
    end = match.index + match[0].length;
    found.push(element(match, nested));
  }
  if (end < text.length) found.push(...plain(text.slice(end)));
  return found;
}

function element(match, nested) {
  const [whole, , code, label, target, strong, emphasis, underlined, deleted, address] = match;
  const inner = (text) => (nested < 4 ? inline(text, nested + 1) : [text]);
  if (code !== undefined) return make("code", { textContent: code.trim() || code });
  if (label !== undefined) return link(target, inner(label)) || document.createTextNode(whole);
  if (strong !== undefined) return make("strong", {}, ...inner(strong));
  if (emphasis !== undefined) return make("em", {}, ...inner(emphasis));
  if (underlined !== undefined) return make("em", {}, ...inner(underlined));
  if (deleted !== undefined) return make("del", {}, ...inner(deleted));
  return link(address, [address]) || document.createTextNode(whole);
}

function link(target, children) {
  if (!/^(https?:\/\/|mailto:)/i.test(target)) return null; // javascript:, data: and addresses of this server stay text
  return make("a", { href: target, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
}

function plain(text) {
  return text.split("  \n").flatMap((part, place) => (place ? [make("br"), part] : [part]));
}
