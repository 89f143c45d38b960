// Elements. Text from models and servers only ever enters the page as text nodes.

import { t } from "./i18n.js";

const SVG = "http://www.w3.org/2000/svg";
const UNDO_MS = 8000;

export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

export function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const byId = (id) => document.getElementById(id);

// A key that is pressed by itself: not while an input method still composes, which takes Enter and Escape for its own.
export const isKey = (event, key) => event.key === key && !event.isComposing;

// Enter, also with Ctrl, does what the field is for; Shift+Enter makes a line.
export function onEnter(field, action) {
  field.addEventListener("keydown", (event) => {
    if (!isKey(event, "Enter") || event.shiftKey) return;
    event.preventDefault();
    action();
  });
}

// Escape leaves a part of the page, and does nothing else, such as to stop an answer.
export function onEscape(element, action) {
  element.addEventListener("keydown", (event) => {
    if (!isKey(event, "Escape")) return;
    event.stopPropagation();
    action();
  });
}

// Draws what a box holds again. The focus stays on what has the same name, or else goes to a button beside it, or otherwise.
export function keepFocus(box, draw, otherwise = box) {
  const name = (element) => element.ariaLabel || element.textContent;
  const namesakes = (wanted) => [...box.querySelectorAll("button, input, textarea, summary, [tabindex]")].filter((one) => name(one) === wanted);
  const focused = document.activeElement;
  const inside = box !== focused && box.contains(focused);
  const [wanted, place] = inside ? [name(focused), namesakes(name(focused)).indexOf(focused)] : [];
  draw();
  if (!inside || focused.isConnected) return;
  const same = namesakes(wanted)[place];
  ((same?.disabled ? same.parentElement.querySelector("button:enabled") : same) || otherwise).focus();
}

// One of the symbols of index.html.
export const icon = (name) => makeSvg("svg", { class: "icon", "aria-hidden": "true" }, makeSvg("use", { href: `#icon-${name}` }));

export function button(label, action, className = "") {
  const element = make("button", { type: "button", className, textContent: label });
  element.addEventListener("click", action);
  return element;
}

export function iconButton(name, label, action) {
  const element = make("button", { type: "button", className: "icon-button", title: label, ariaLabel: label }, icon(name));
  element.addEventListener("click", action);
  return element;
}

export function copyButton(text) {
  const element = iconButton("copy", t("Copy"), async () => {
    await copy(typeof text === "function" ? text() : text);
    element.replaceChildren(icon("check"));
    setTimeout(() => element.replaceChildren(icon("copy")), 1500);
  });
  return element;
}

export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = make("textarea", { value: text }); // a page that was not loaded by https has no clipboard object
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

// Lets the reader keep a text as a file.
export function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: url, download: name }).click();
  URL.revokeObjectURL(url);
}

export function showProblem(text) {
  const line = byId("problem");
  line.textContent = text;
  line.hidden = !text;
}

let hiding;

// A note that goes by itself; "": none any more. undo: what its button does, if it has one.
export function toast(text, undo) {
  const box = byId("toast");
  clearTimeout(hiding);
  const hide = () => box.replaceChildren();
  box.replaceChildren(...(text ? [make("span", { textContent: text })] : []));
  if (undo) box.append(button(t("Undo"), () => (hide(), undo())));
  hiding = setTimeout(hide, UNDO_MS);
}
