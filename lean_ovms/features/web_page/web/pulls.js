// In the server view: models of the hub that are pulled, and deleted, where the server lets clients do that.

import { explain, lines, pathOf, post } from "./api.js";
import { button, byId, onEnter, toast } from "./dom.js";
import { t } from "./i18n.js";

let running = null; // the AbortController of a pull
let changed;

// whenChanged: called when the models are others.
export function start(whenChanged) {
  changed = whenChanged;
  onEnter(byId("pull-name"), () => pull());
  byId("pull").addEventListener("click", () => pull());
  byId("pull-stop").addEventListener("click", () => running?.abort());
}

export function show() {
  byId("pull-section").hidden = !pathOf("pull");
}

async function pull() {
  const name = byId("pull-name").value.trim();
  if (!name || running) return;
  running = new AbortController();
  setRunning(true);
  let problem = "";
  try {
    for await (const event of lines(await post(pathOf("pull"), { model: name }, running.signal))) progress(event);
    byId("pull-name").value = "";
    toast(t("{name} is there.", { name }));
  } catch (error) {
    if (error.name !== "AbortError") problem = explain(error);
  }
  running = null;
  setRunning(false);
  byId("pull-state").textContent = problem;
  await changed();
}

// The bar is that of the file that is fetched.
function progress({ status, total, completed }) {
  byId("pull-state").textContent = total ? t("{n} of {all} MB", { n: Math.round((completed || 0) / 1e6), all: Math.round(total / 1e6) }) : status;
  byId("pull-bar").hidden = !total;
  byId("pull-bar").value = total ? (completed || 0) / total : 0;
}

function setRunning(now) {
  byId("pull").disabled = now;
  byId("pull-stop").disabled = !now;
  byId("pull-state").textContent = now ? t("Working…") : "";
  byId("pull-bar").hidden = true;
}

// Asks once more, in its place, before it deletes.
export function deleteButton(name) {
  const label = t("Delete {name}", { name });
  const element = button(t("Delete"), () => (element.dataset.asks ? remove(name, element) : ask()));
  const ask = () => {
    element.dataset.asks = "yes";
    element.textContent = t("Really delete?");
    element.ariaLabel = `${label}: ${element.textContent}`;
  };
  element.ariaLabel = label;
  return element;
}

async function remove(name, element) {
  element.disabled = true;
  try {
    await post(pathOf("delete"), { model: name }, undefined, "DELETE");
    element.blur();
  } catch (error) {
    element.blur();
    toast(explain(error));
  }
  await changed();
}
