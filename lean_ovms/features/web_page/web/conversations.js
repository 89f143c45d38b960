// The list of conversations in the drawer: search, rename, delete and take that back, export, import.

import { byId, iconButton, make, onEnter, onEscape, showProblem, toast } from "./dom.js";
import { t } from "./i18n.js";
import * as store from "./store.js";

const DAY_MS = 86_400_000;
let all = [];
let shown = null;
let open = () => {};

// whenOpened: told the conversation that was chosen; null: a new one.
export async function start(whenOpened) {
  open = whenOpened;
  byId("new").addEventListener("click", () => open(null));
  byId("search").addEventListener("input", draw);
  byId("export").addEventListener("click", exportAll);
  byId("import").addEventListener("click", () => byId("import-file").click());
  byId("import-file").addEventListener("change", importFile);
  all = await store.all().catch(() => []);
}

export const newest = () => all[0];

// Marks the conversation that is shown.
export function setShown(conversation) {
  shown = conversation;
  draw();
}

// Keeps a conversation that has changed, as the newest.
export async function keep(conversation) {
  conversation.changed = Date.now();
  conversation.title ||= (conversation.messages[0]?.content || conversation.messages[0]?.files?.[0].name || "").slice(0, 60);
  all = [conversation, ...all.filter((one) => one !== conversation)];
  draw();
  await save(conversation);
}

// Saves it where it is in the list.
export async function save(conversation) {
  await store.save(conversation).catch((error) => showProblem(t("The conversation was not kept: {why}", { why: error.message })));
}

function draw() {
  const wanted = byId("search").value.trim().toLowerCase();
  const found = all.filter((one) => !wanted || has(one, wanted));
  const groups = new Map();
  for (const one of found) {
    const name = age(one.changed);
    groups.set(name, [...(groups.get(name) || []), one]);
  }
  const lists = [...groups].map(([name, members]) => make("section", { ariaLabel: name }, make("p", { className: "age", textContent: name }), make("ul", {}, ...members.map(row))));
  const none = wanted && make("p", { className: "none", textContent: t("Nothing found.") });
  byId("conversations").replaceChildren(...(lists.length ? lists : [none || ""]));
  byId("search-field").hidden = !all.length;
}

const has = ({ title, messages }, wanted) => title.toLowerCase().includes(wanted) || messages.some(({ content }) => content.toLowerCase().includes(wanted));

function age(changed) {
  const days = Math.floor((new Date().setHours(0, 0, 0, 0) - changed) / DAY_MS) + 1;
  return days <= 0 ? t("Today") : days <= 1 ? t("Yesterday") : days <= 7 ? t("This week") : t("Earlier");
}

function row(conversation) {
  const name = conversation.title || t("New chat");
  const item = make("li");
  const title = make("button", { type: "button", className: "title", textContent: name });
  if (conversation === shown) title.setAttribute("aria-current", "true");
  title.addEventListener("click", () => open(conversation));
  title.addEventListener("dblclick", () => rename(conversation, item));
  const change = iconButton("edit", t("Rename {name}", { name }), () => rename(conversation, item));
  const drop = iconButton("delete", t("Delete {name}", { name }), () => remove(conversation));
  item.append(title, make("div", { className: "change" }, change, drop));
  return item;
}

function rename(conversation, item) {
  const field = make("input", { value: conversation.title, ariaLabel: t("Name of the conversation") });
  let finished = false; // the field loses the focus when it goes, too
  const done = (taken) => {
    if (finished) return;
    finished = true;
    if (taken && field.value.trim()) conversation.title = field.value.trim();
    if (taken) save(conversation);
    draw();
  };
  onEnter(field, () => done(true));
  onEscape(field, () => done(false));
  field.addEventListener("blur", () => done(true));
  item.replaceChildren(field);
  field.select();
}

async function remove(conversation) {
  all = all.filter((one) => one !== conversation);
  await store.remove(conversation.id);
  if (conversation === shown) open(null);
  else draw();
  toast(t("The conversation was deleted."), async () => {
    all = store.newestFirst([...all, conversation]);
    await save(conversation);
    open(conversation);
  });
}

function exportAll() {
  const url = URL.createObjectURL(new Blob([JSON.stringify(all, null, 1)], { type: "application/json" }));
  make("a", { href: url, download: "conversations.json" }).click();
  URL.revokeObjectURL(url);
}

async function importFile(event) {
  try {
    for (const conversation of store.parseExport(await event.target.files[0].text())) await store.save(conversation);
    all = await store.all();
    open(all[0] || null);
  } catch (error) {
    showProblem(t("The file cannot be imported: {why}", { why: error.message }));
  }
  event.target.value = "";
}
