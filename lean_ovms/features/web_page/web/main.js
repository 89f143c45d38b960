// The page: its views, the model of each, the drawer, and what is chosen once for all.

import { explain, get, pathOf, readActions, startKey } from "./api.js";
import * as chat from "./chat.js";
import { byId, isKey, make, showProblem } from "./dom.js";
import { LANGUAGES, choose, language, load, t } from "./i18n.js";
import * as offers from "./offers.js";
import * as panels from "./panels.js";
import * as server from "./server.js";
import * as settings from "./settings.js";

const VIEWS = ["chat", ...panels.views, "server"];
const MODEL = "lean_ovms.model."; // and the view: the model that was chosen there
const THEME = "lean_ovms.theme";
const narrow = window.matchMedia("(max-width: 56rem)");
let models = [];
let engines = {};
let current = VIEWS[0];

const served = (view) => models.filter(({ task }) => (task === "text_generation" ? "chat" : panels.viewOf(task)) === view);

function show(view) {
  current = view;
  for (const name of VIEWS) {
    byId(`view-${name}`).hidden = name !== view;
    byId(`tab-${name}`).setAttribute("aria-pressed", String(name === view));
  }
  byId("open-settings").hidden = view !== "chat";
  if (view !== "chat") settings.setOpen(false);
  const names = served(view).map((model) => model.id);
  byId("model-field").hidden = !names.length;
  byId("model").replaceChildren(...names.map((id) => make("option", { value: id, textContent: id })));
  const before = localStorage.getItem(MODEL + view);
  if (names.includes(before)) byId("model").value = before;
  chosen();
  server.setVisible(view === "server");
}

async function readModels() {
  try {
    models = (await get("v1/models")).data;
    showProblem(models.length ? "" : t("No model is ready."));
    engines = (await get("server_info").catch(() => ({}))).engines || {};
  } catch (error) {
    models = [];
    showProblem(error.status === 401 ? "" : explain(error));
  }
  const views = VIEWS.filter((view) => view === "server" || served(view).length || (view === "chat" && !models.length));
  panels.setModels(models);
  for (const view of VIEWS) byId(`tab-${view}`).hidden = !views.includes(view);
  show(views.includes(current) ? current : views[0]);
}

function chosen() {
  const model = models.find((one) => one.id === byId("model").value) || {};
  if (current === "chat") chat.setModel(model, engines[model.root]?.device || "", served("chat").length > 1);
  else panels.choose(current, model);
}

// --- the drawer: a column on a wide screen, above the page on a narrow one

function setDrawer(open) {
  const leaves = !open && byId("drawer").contains(document.activeElement);
  byId("drawer").hidden = !open;
  byId("shade").hidden = !open || !narrow.matches;
  byId("open-drawer").setAttribute("aria-expanded", String(open));
  byId("open-drawer").hidden = open && !narrow.matches;
  byId("new-here").hidden = open && !narrow.matches;
  byId("page").inert = open && narrow.matches;
  if (leaves) byId("open-drawer").focus();
}

function leaveDrawer() {
  if (narrow.matches) setDrawer(false);
}

function startDrawer() {
  byId("open-drawer").addEventListener("click", () => (setDrawer(true), byId("close-drawer").focus()));
  byId("close-drawer").addEventListener("click", () => setDrawer(false));
  byId("new-here").addEventListener("click", () => byId("new").click());
  byId("shade").addEventListener("click", () => setDrawer(false));
  narrow.addEventListener("change", () => setDrawer(!narrow.matches));
  setDrawer(!narrow.matches);
}

// To the pages that this server has.
function showLinks() {
  for (const link of document.querySelectorAll("nav a")) {
    link.hidden = !pathOf(link.dataset.action);
    if (!link.hidden) link.href = pathOf(link.dataset.action);
  }
}

function startChoices() {
  byId("theme").value = document.documentElement.dataset.theme;
  byId("theme").addEventListener("change", () => {
    localStorage.setItem(THEME, byId("theme").value);
    document.documentElement.dataset.theme = byId("theme").value;
  });
  byId("language").append(...Object.entries(LANGUAGES).map(([value, textContent]) => make("option", { value, textContent })));
  byId("language").value = language();
  byId("language").addEventListener("change", () => choose(byId("language").value));
}

function shortcuts(event) {
  const command = event.ctrlKey || event.metaKey;
  if (isKey(event, "Escape")) {
    if (narrow.matches && !byId("drawer").hidden) setDrawer(false);
    else chat.stop();
  } else if (command && event.key === "k") {
    event.preventDefault();
    setDrawer(true);
    byId("search").focus();
  } else if (command && event.shiftKey && event.key.toLowerCase() === "o") {
    event.preventDefault();
    byId("new").click();
  }
}

const known = readActions();
await load(panels.features);
startDrawer();
startChoices();
startKey(readModels);
document.addEventListener("keydown", shortcuts);
byId("model").addEventListener("change", () => {
  localStorage.setItem(MODEL + current, byId("model").value);
  chosen();
});
for (const view of VIEWS) byId(`tab-${view}`).addEventListener("click", () => (show(view), leaveDrawer()));
await panels.start(readModels);
offers.start();
server.start(readModels, panels.taskName);
await chat.start(readModels, () => {
  show("chat");
  leaveDrawer();
  if (!narrow.matches) byId("text").focus();
});
await known;
showLinks();
offers.show();
await readModels();
// On a narrow screen the focus would open a keyboard over half of the page.
if (!narrow.matches && document.activeElement === document.body) (current === "chat" ? byId("text") : document.querySelector(`#view-${current} textarea`))?.focus();
