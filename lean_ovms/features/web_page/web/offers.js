// Prompts and resources of the MCP servers, which the reader puts into the message that is written.

import { explain, pathOf, post } from "./api.js";
import { attachText, insert } from "./composer.js";
import { button, byId, icon, make, onEnter, onEscape } from "./dom.js";
import { t } from "./i18n.js";
import { toolServers } from "./tools.js";

export function start() {
  byId("offers").addEventListener("click", open);
  byId("close-offers").addEventListener("click", close);
  onEscape(byId("offers-dialog"), close);
}

// Shows the button where the server has such servers.
export const show = () => (byId("offers").hidden = !pathOf("read_prompt"));

const close = () => byId("offers-dialog").close();

async function open() {
  const list = byId("offers-list");
  list.replaceChildren(make("p", { className: "note", textContent: t("Working…") }));
  byId("offers-dialog").showModal();
  try {
    const found = (await toolServers()).filter(({ prompts, resources }) => prompts.length + resources.length);
    list.replaceChildren(...(found.length ? found.map(section) : [make("p", { className: "note", textContent: t("Nothing found.") })]));
  } catch (error) {
    say(explain(error));
  }
}

const say = (text) => byId("offers-list").prepend(make("p", { className: "failed", role: "alert", textContent: text }));

function section({ name, prompts, resources }) {
  const rows = [...prompts.map((prompt) => promptRow(name, prompt)), ...resources.map((resource) => resourceRow(name, resource))];
  return make("section", { ariaLabel: name }, make("h3", { textContent: name }), ...rows);
}

function row(symbol, name, description, action) {
  const element = button("", action, "offer");
  element.append(icon(symbol), make("span", {}, make("strong", { textContent: name }), " ", make("span", { className: "note", textContent: description || "" })));
  return element;
}

// One with arguments asks for them first.
function promptRow(server, prompt) {
  const use = (values) => put(async () => {
    const { messages } = await (await post(pathOf("read_prompt"), { server, name: prompt.name, arguments: values })).json();
    insert(messages.map(({ content }) => content).join("\n\n"));
  });
  if (!prompt.arguments.length) return row("chat", prompt.name, prompt.description, () => use({}));
  const fields = prompt.arguments.map(({ name, required }) => make("input", { name, required, ariaLabel: name, placeholder: name }));
  const read = () => fields.every((field) => field.reportValidity()) && use(Object.fromEntries(fields.filter(({ value }) => value).map(({ name, value }) => [name, value])));
  for (const field of fields) onEnter(field, read);
  const form = make("div", { className: "row", hidden: true }, ...fields, button(t("Insert"), read, "primary"));
  const head = row("chat", prompt.name, prompt.description, () => {
    form.hidden = !form.hidden;
    head.ariaExpanded = String(!form.hidden);
    if (!form.hidden) fields[0].focus();
  });
  head.ariaExpanded = "false";
  return make("div", {}, head, form);
}

const resourceRow = (server, { uri, name, description }) =>
  row("file", name || uri, description, () => put(async () => {
    const { text } = await (await post(pathOf("read_resource"), { server, uri })).json();
    attachText(name || uri, text);
  }));

async function put(work) {
  try {
    await work();
    close();
    byId("text").focus();
  } catch (error) {
    say(explain(error));
  }
}
