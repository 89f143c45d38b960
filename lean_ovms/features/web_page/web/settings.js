// The settings of the conversation that is shown, in a sheet that is closed at first. What is empty is the server's.

import { get, pathOf } from "./api.js";
import { byId, onEscape, toast } from "./dom.js";
import { t } from "./i18n.js";

const DEFAULTS = "lean_ovms.settings"; // of new conversations
const SERVED = ["temperature", "top_p", "top_k", "min_p"]; // fields whose defaults the server says
let changed = () => {};
let whenOpened = () => {};
let others = {}; // settings without a field, such as tools of a server that is not asked yet

const fields = () => byId("settings").querySelectorAll("[name]");
export const defaults = () => JSON.parse(localStorage.getItem(DEFAULTS) || "{}");

// whenChanged: told the settings. opened: called when the sheet opens.
export function start(whenChanged, opened) {
  [changed, whenOpened] = [whenChanged, opened];
  byId("open-settings").addEventListener("click", () => setOpen(byId("settings").hidden));
  byId("close-settings").addEventListener("click", () => setOpen(false));
  byId("settings").addEventListener("input", () => (mark(), changed(read())));
  onEscape(byId("settings"), () => setOpen(false));
  byId("reset-settings").addEventListener("click", () => (fill({}), changed({})));
  byId("keep-settings").addEventListener("click", () => {
    localStorage.setItem(DEFAULTS, JSON.stringify(read()));
    toast(t("New chats begin with these settings."));
  });
}

export function setOpen(open) {
  if (!open && byId("settings").contains(document.activeElement)) byId("open-settings").focus();
  byId("settings").hidden = !open;
  if (open) whenOpened();
  byId("open-settings").setAttribute("aria-expanded", String(open));
  if (open) byId("close-settings").focus();
}

// Those that are not empty.
export function read() {
  const found = { ...others };
  for (const field of fields()) {
    const value = field.type === "checkbox" ? field.checked : field.value;
    if (value) found[field.name] = value;
  }
  return found;
}

export function fill(settings) {
  others = { ...settings };
  for (const field of fields()) {
    delete others[field.name];
    if (field.type === "checkbox") field.checked = Boolean(settings[field.name]);
    else field.value = settings[field.name] ?? "";
  }
  mark();
}

function mark() {
  const kept = read();
  byId("open-settings").classList.toggle("changed", Object.keys(kept).length > 0);
  byId("schema-field").hidden = kept.format !== "json_schema";
}

// Shows the server's defaults for a model as placeholders, if the model is in memory.
export async function showDefaults(model) {
  const known = pathOf("defaults") && model.status?.value === "loaded";
  const found = known ? await get(`${pathOf("defaults")}?model=${encodeURIComponent(model.id)}`).catch(() => ({})) : {};
  const params = found.default_generation_settings?.params || {};
  for (const field of fields()) if (SERVED.includes(field.name)) field.placeholder = params[field.name] ?? "";
}
