// The server view: models, and charts of the load over the last minutes. It asks only while it is visible.

import { ServerError, get } from "./api.js";
import { byId, make } from "./dom.js";

const EVERY_MS = 2000;
const POINTS = 150; // five minutes
const history = new Map();
let last = null;
let visible = false;
let listed = ""; // the models of the table, and their states

export function start() {
  setInterval(() => visible && !document.hidden && refresh(), EVERY_MS);
}

export function setVisible(now) {
  visible = now;
  if (now) refresh();
}

async function refresh() {
  const note = byId("load-note");
  try {
    const { models, load, options } = await get("server_info");
    note.textContent = "prompt_tokens" in load ? "" : "--metrics_enable adds tokens and latencies.";
    note.hidden = !note.textContent;
    drawOptions(options);
    record({ ...load, at: performance.now() / 1000 });
    byId("charts").replaceChildren(...[...history].map(([name, values]) => chart(name, values)));
    if (listed !== JSON.stringify(models)) await drawModels(models);
    listed = JSON.stringify(models);
  } catch (error) {
    note.hidden = false;
    note.textContent = error instanceof ServerError ? error.text : "The server does not answer.";
    if (error.status === 401) visible = false; // until the view or the key changes
  }
}

function drawOptions(options) {
  const rows = Object.entries(options).map(([name, value]) => make("tr", {}, make("th", { textContent: "--" + name }), make("td", { textContent: String(value) })));
  byId("options").replaceChildren(...rows);
  byId("options-section").hidden = !rows.length;
}

// states: by name, of all models.
async function drawModels(states) {
  const known = new Map((await get("v1/models")).data.map((model) => [model.id, model]));
  const head = make("tr", {}, ...["Model", "State", "Task", "Context", "Input"].map((text) => make("th", { textContent: text })));
  const rows = Object.entries(states).map(([name, state]) => {
    const model = known.get(name) || {};
    const cells = [name, state, model.task ?? "", model.max_model_len ?? "", (model.input_modalities || []).join(", ")];
    return make("tr", {}, ...cells.map((text) => make("td", { textContent: text })));
  });
  byId("models").replaceChildren(head, ...rows);
}

function record(now) {
  const shown = { "Running": now.running, "Waiting": now.waiting, "KV cache in use, %": 100 * now.kv_cache_usage };
  for (const [name, what] of [["generation_tokens", "Generated"], ["prompt_tokens", "Prompt"]])
    if (name in now) shown[`${what} tokens/s`] = last && (now[name] - last[name]) / (now.at - last.at);
  for (const name of ["ttft", "itl"])
    if (name in now) for (const q of [50, 95]) shown[`${name.toUpperCase()} p${q}, ms`] = quantile(now[name], q / 100, last?.[name]);
  for (const [name, point] of Object.entries(shown)) {
    const values = history.get(name) || [];
    values.push(Number.isFinite(point) ? point : null);
    history.set(name, values.slice(-POINTS));
  }
  last = now;
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

const SVG = "http://www.w3.org/2000/svg";

function chart(name, values) {
  const known = values.filter((value) => value !== null);
  const highest = Math.max(1e-9, ...known);
  const points = values.map((value, place) => (value === null ? null : `${place},${40 - (36 * value) / highest}`)).filter(Boolean);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${POINTS - 1} 42`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${name} over the last minutes`);
  const line = document.createElementNS(SVG, "polyline");
  line.setAttribute("points", points.join(" "));
  svg.append(line);
  const latest = known.length ? known.at(-1).toLocaleString(undefined, { maximumSignificantDigits: 4 }) : "–";
  return make("figure", {}, make("figcaption", { textContent: `${name}: ${latest}` }), svg);
}
