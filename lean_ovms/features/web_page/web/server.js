// The server view: models, and charts of the load over the last minutes. It asks only while it is visible.

import { explain, get, pathOf, post } from "./api.js";
import { EVERY_MS, POINTS, chart, minutesFor } from "./charts.js";
import { button, byId, make, showProblem, toast } from "./dom.js";
import { t } from "./i18n.js";
import * as pulls from "./pulls.js";

const STATES = { ready: "loaded", loaded: "loaded", loading: "loading", unloaded: "unloaded", sleeping: "asleep", failed: "failed" };
const COLUMNS = ["Task", "Context", "Memory", "Device", "Pipeline"];
const history = new Map(); // by the chart's name: { unit, most, values }
let last = null;
let visible = false;
let asking = false;
let listed = ""; // the models of the table, and their states
let known = new Map(); // what /v1/models says of them
let readModels;
let taskName;

// read: lists the models again for the other views. named: what models are for, by the name of a feature's task.
export function start(read, named) {
  [readModels, taskName] = [read, named];
  pulls.start(() => Promise.all([readModels(), refresh()]));
  setInterval(() => visible && !document.hidden && refresh(), EVERY_MS);
}

export function setVisible(now) {
  visible = now;
  if (now) refresh();
  pulls.show();
}

async function refresh() {
  if (asking) return; // a connection that is lost for a while must not be flooded
  asking = true;
  try {
    const { models, engines, load, options, version } = await get("server_info");
    byId("version").textContent = `lean_ovms ${version}`;
    byId("load-note").hidden = "prompt_tokens" in load;
    drawOptions(options);
    record({ ...load, at: performance.now() / 1000 });
    const minutes = minutesFor(Math.max(...[...history.values()].map(({ values }) => values.length)));
    byId("charts").replaceChildren(...[...history].map(([name, { unit, values, most }]) => chart(name, unit, values, minutes, most)));
    const now = JSON.stringify(models);
    if (now !== listed) known = new Map((await get("v1/models")).data.map((model) => [model.id, model]));
    listed = now;
    drawModels(models, engines);
    showProblem("");
  } catch (error) {
    showProblem(explain(error));
    if (error.status === 401 || error.status === 403) visible = false; // until the view or the key changes
  }
  asking = false;
}

function drawOptions(options) {
  const rows = Object.entries(options).map(([name, value]) => make("tr", {}, make("th", { textContent: "--" + name }), make("td", { textContent: String(value) })));
  byId("options").replaceChildren(...rows);
  byId("options-section").hidden = !rows.length;
}

// states: by name, of all models.
function drawModels(states, engines) {
  if (byId("models").contains(document.activeElement)) return; // a button that is being used stays
  const head = make("tr", {}, ...["Model", "State", ...COLUMNS].map((name) => make("th", { textContent: t(name) })), make("td"));
  byId("models").replaceChildren(head, ...Object.entries(states).map(([name, state]) => modelRow(name, state, known.get(name) || {}, engines[name] || {})));
}

function modelRow(name, state, model, { device = "", memory }) {
  const cell = (label, textContent, className = "") => {
    const element = make("td", { className, textContent });
    element.dataset.label = t(label);
    return element;
  };
  const stateCell = make("td", {}, make("span", { className: `state ${STATES[state] || ""}`, textContent: t(STATES[state] || state) }));
  const { type = "", reason = "" } = model.generates_by || {};
  const pipeline = cell("Pipeline", type);
  pipeline.title = reason;
  return make(
    "tr",
    {},
    make("th", { textContent: name }),
    stateCell,
    cell("Task", model.task === "text_generation" ? t("Chat") : taskName(model.task)),
    cell("Context", model.max_model_len?.toLocaleString() ?? "", "number"),
    cell("Memory", memory ? `${Math.round(memory / 2 ** 20).toLocaleString()} MiB` : "", "number"),
    cell("Device", device),
    pipeline,
    make("td", {}, ...(model.parent || !pathOf("load") ? [] : [switchButton(name, state)]), ...(model.parent || !pathOf("delete") ? [] : [pulls.deleteButton(name)])),
  );
}

// Loads the model or unloads it.
function switchButton(name, state) {
  const loads = STATES[state] !== "loaded";
  const element = button(loads ? t("Load") : t("Unload"), async () => {
    element.disabled = true;
    element.textContent = loads ? t("Loading…") : t("Unloading…");
    try {
      await post(pathOf(loads ? "load" : "unload"), { model: name });
      element.blur();
      await readModels();
    } catch (error) {
      element.blur();
      toast(explain(error)); // a problem would go with the next answer that is right
    }
  });
  element.ariaLabel = loads ? t("Load {name}", { name }) : t("Unload {name}", { name });
  element.disabled = state === "loading";
  return element;
}

function record(now) {
  add(t("Running"), "", now.running);
  add(t("Waiting"), "", now.waiting);
  add(t("KV cache in use"), "%", 100 * now.kv_cache_usage, 100);
  const rates = {
    generation_tokens: t("Generated"),
    prompt_tokens: t("Prompt"),
    cached_tokens: t("Prompt, cached"),
    disk_tokens: t("Prompt, from disk"),
  };
  for (const [field, name] of Object.entries(rates))
    if (field in now) add(name, t("tokens/s"), last && (now[field] - last[field]) / (now.at - last.at));
  for (const field of ["ttft", "itl"])
    if (field in now) for (const q of [50, 95]) add(`${field.toUpperCase()} p${q}`, "ms", quantile(now[field], q / 100, last?.[field]));
  last = now;
}

function add(name, unit, point, most) {
  const values = [...(history.get(name)?.values || []), Number.isFinite(point) ? point : null];
  history.set(name, { unit, most, values: values.slice(-POINTS) });
}

// Of what a histogram counted since before, in ms; undefined if nothing was. bounds: in seconds; counts: one more.
export function quantile({ bounds, counts }, q, before) {
  const since = counts.map((count, place) => count - (before ? before.counts[place] : 0));
  const total = since.reduce((sum, count) => sum + count, 0);
  if (total <= 0) return undefined;
  let below = 0;
  for (const [place, count] of since.entries()) {
    const lower = place ? bounds[place - 1] : 0;
    if (below + count >= q * total) return 1000 * (place === bounds.length ? lower : lower + ((bounds[place] - lower) * (q * total - below)) / Math.max(1, count));
    below += count;
  }
  return undefined;
}
