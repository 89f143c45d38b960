// The list of conversations in the drawer: search, rename, delete and take that back, export, import; and the address of
// the one that is shown.

import { byId, copy, download, iconButton, keepFocus, make, onEnter, onEscape, showProblem, toast } from "./dom.js";
import { t } from "./i18n.js";
import * as store from "./store.js";
import { asText } from "./tree.js";

const DAY_MS = 86_400_000;
const PLACE = "#chat="; // and an id: the fragment of a conversation's address
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
  byId("copy-link").addEventListener("click", () => (copy(location.href), toast(t("Copied."))));
  byId("save-file").addEventListener("click", () => download(fileName("json"), JSON.stringify([shown], null, 1), "application/json"));
  byId("save-text").addEventListener("click", () => download(fileName("md"), asText(shown, t), "text/markdown"));
  all = await store.all().catch(() => []);
  window.addEventListener("popstate", () => open(addressed() || null));
}

// The conversation that the address names, else the newest.
export const first = () => addressed() || all[0];

function addressed() {
  if (!location.hash.startsWith(PLACE)) return undefined;
  const found = all.find(({ id }) => id === location.hash.slice(PLACE.length));
  if (!found) toast(t("This conversation is not in this browser."));
  return found;
}

// Marks the conversation that is shown. goesTo: the reader can go back from there.
export function setShown(conversation, goesTo = true) {
  shown = conversation;
  setAddress(goesTo && !location.hash.startsWith(PLACE + conversation.id));
  draw();
}

// A conversation has an address from its first message on.
function setAddress(goesTo) {
  const kept = all.includes(shown);
  const to = kept ? PLACE + shown.id : location.pathname + location.search;
  if (goesTo) history.pushState(null, "", to);
  else history.replaceState(null, "", to);
  for (const name of ["copy-link", "save-file", "save-text"]) byId(name).disabled = !kept;
}

const fileName = (ending) => `${shown.title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "chat"}.${ending}`;

// Keeps a conversation that has changed, as the newest.
export async function keep(conversation) {
  conversation.changed = Date.now();
  conversation.title ||= (conversation.messages[0]?.content || conversation.messages[0]?.files?.[0].name || "").slice(0, 60);
  all = [conversation, ...all.filter((one) => one !== conversation)];
  if (conversation === shown) setAddress(false);
  draw();
  await save(conversation);
}

// Saves it where it is in the list. One that was deleted meanwhile stays deleted.
export async function save(conversation) {
  if (!all.includes(conversation)) return;
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
  keepFocus(byId("conversations"), () => byId("conversations").replaceChildren(...(lists.length ? lists : [none || ""])), byId("new"));
  byId("search-field").hidden = !all.length;
}

const has = ({ title, messages }, wanted) => title.toLowerCase().includes(wanted) || messages.some(({ content }) => content.toLowerCase().includes(wanted));

function age(changed) {
  const days = Math.floor((new Date().setHours(0, 0, 0, 0) - changed) / DAY_MS) + 1;
  return days <= 0 ? t("Today") : days <= 1 ? t("Yesterday") : days <= 7 ? t("This week") : t("Earlier");
}

const nameOf = (conversation) => conversation.title || t("New chat");
const changeLabel = (conversation) => t("Rename {name}", { name: nameOf(conversation) });

function row(conversation) {
  const name = nameOf(conversation);
  const item = make("li");
  const title = make("button", { type: "button", className: "title", textContent: name });
  if (conversation === shown) title.setAttribute("aria-current", "true");
  title.addEventListener("click", () => open(conversation));
  title.addEventListener("dblclick", () => rename(conversation, item));
  const change = iconButton("edit", changeLabel(conversation), () => rename(conversation, item));
  const drop = iconButton("delete", t("Delete {name}", { name }), () => remove(conversation));
  item.append(title, make("div", { className: "change" }, change, drop));
  return item;
}

function rename(conversation, item) {
  const field = make("input", { value: conversation.title, ariaLabel: t("Name of the conversation") });
  let finished = false; // the field loses the focus when it goes, too
  const done = (taken, opener) => {
    if (finished) return;
    finished = true;
    if (taken && field.value.trim()) conversation.title = field.value.trim();
    if (taken) save(conversation);
    draw();
    if (opener) [...byId("conversations").querySelectorAll("button")].find((one) => one.ariaLabel === changeLabel(conversation))?.focus();
  };
  onEnter(field, () => done(true, true));
  onEscape(field, () => done(false, true));
  field.addEventListener("blur", () => done(true, false));
  item.replaceChildren(field);
  field.select();
}

async function remove(conversation) {
  all = all.filter((one) => one !== conversation);
  await store.remove(conversation.id).catch(() => {}); // a browser that keeps nothing has nothing to remove
  if (conversation === shown) open(null);
  else draw();
  toast(t("The conversation was deleted."), async () => {
    all = store.newestFirst([...all, conversation]);
    await save(conversation);
    open(conversation);
  });
}

const exportAll = () => download("conversations.json", JSON.stringify(all, null, 1), "application/json");

async function importFile(event) {
  try {
    const found = store.parseExport(await event.target.files[0].text());
    const fresh = store.unknown(found, all);
    for (const conversation of fresh) await store.save(conversation);
    all = await store.all();
    open(all.find(({ id }) => id === (fresh[0] || shown).id) || all[0] || null);
    toast(t("{n} imported, {m} there already.", { n: fresh.length, m: found.length - fresh.length }));
  } catch (error) {
    showProblem(t("The file cannot be imported: {why}", { why: error.message }));
  }
  event.target.value = "";
}
