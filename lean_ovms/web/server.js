// The server view: models, and charts of /metrics over the last minutes. It asks only while it is visible.

import { ServerError, get } from "./api.js";
import { byId, make } from "./dom.js";

const EVERY_MS = 2000;
const POINTS = 150; // five minutes
const history = new Map();
let last = null;
let visible = false;

export function start() {
  setInterval(() => visible && !document.hidden && refresh(), EVERY_MS);
}

export function setVisible(now) {
  visible = now;
  if (now) refresh();
}

async function refresh() {
  await Promise.all([drawModels(), drawCharts(), drawOptions()]);
}

async function drawOptions() {
  const { options } = await get("server_info").catch(() => ({ options: {} }));
  const rows = Object.entries(options).map(([name, value]) => make("tr", {}, make("th", { textContent: "--" + name }), make("td", { textContent: String(value) })));
  byId("options").replaceChildren(...rows);
  byId("options-section").hidden = !rows.length;
}

async function drawModels() {
  try {
    const [{ data }, states] = await Promise.all([get("v1/models"), get("v1/config").catch(() => ({}))]);
    const head = make("tr", {}, ...["Model", "State", "Context", "Input"].map((text) => make("th", { textContent: text })));
    const known = new Map(data.map((model) => [model.id, model]));
    const names = [...new Set([...known.keys(), ...Object.keys(states)])];
    const rows = names.map((name) => {
      const model = known.get(name) || {};
      const state = states[name]?.model_version_status?.[0]?.state || "AVAILABLE";
      const cells = [name, state, model.max_model_len ?? "", (model.input_modalities || []).join(", ")];
      return make("tr", {}, ...cells.map((text) => make("td", { textContent: text })));
    });
    byId("models").replaceChildren(head, ...rows);
  } catch {
    byId("models").replaceChildren();
  }
}

async function drawCharts() {
  const off = byId("metrics-off");
  try {
    const samples = parse(await get("metrics"));
    off.hidden = true;
    record(samples);
  } catch (error) {
    off.hidden = false;
    off.textContent =
      error instanceof ServerError && error.status === 404
        ? "The server was started without metrics; --metrics_enable switches them on."
        : "The metrics cannot be read.";
    byId("charts").replaceChildren();
    return;
  }
  byId("charts").replaceChildren(...[...history].map(([name, values]) => chart(name, values)));
}

// Prometheus' text format, summed over all labels but le.
export function parse(text) {
  const found = { at: performance.now() / 1000, values: new Map(), buckets: new Map() };
  for (const line of text.split("\n")) {
    const match = /^([\w:]+)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!match || line.startsWith("#")) continue;
    const [, name, labels, value] = match;
    const bound = /(?:^|,)le="([^"]*)"/.exec(labels || "");
    if (bound) {
      const buckets = found.buckets.get(name) || new Map();
      const upper = bound[1] === "+Inf" ? Infinity : Number(bound[1]);
      buckets.set(upper, (buckets.get(upper) || 0) + Number(value));
      found.buckets.set(name, buckets);
    } else found.values.set(name, (found.values.get(name) || 0) + Number(value));
  }
  return found;
}

function record(now) {
  const value = (name) => now.values.get(name);
  const rate = (name) => (last && value(name) !== undefined ? (value(name) - last.values.get(name)) / (now.at - last.at) : undefined);
  const percent = (number) => (number === undefined ? undefined : 100 * number);
  const shown = {
    "Running": value("vllm:num_requests_running"),
    "Waiting": value("vllm:num_requests_waiting"),
    "KV cache in use, %": percent(value("vllm:kv_cache_usage_perc")),
    "Generated tokens/s": rate("vllm:generation_tokens_total"),
    "Prompt tokens/s": rate("vllm:prompt_tokens_total"),
    "TTFT p50, ms": quantile(now, "vllm:time_to_first_token_seconds_bucket", 0.5),
    "TTFT p95, ms": quantile(now, "vllm:time_to_first_token_seconds_bucket", 0.95),
    "ITL p50, ms": quantile(now, "vllm:inter_token_latency_seconds_bucket", 0.5),
    "ITL p95, ms": quantile(now, "vllm:inter_token_latency_seconds_bucket", 0.95),
  };
  for (const [name, point] of Object.entries(shown)) {
    const values = history.get(name) || [];
    values.push(Number.isFinite(point) ? point : null);
    history.set(name, values.slice(-POINTS));
  }
  last = now;
}

// Of what was counted since the last time, in ms; undefined if nothing was.
export function quantile(now, name, q, before = last) {
  const buckets = [...(now.buckets.get(name) || new Map())].sort(([one], [other]) => one - other);
  const earlier = before?.buckets.get(name) || new Map();
  const counts = buckets.map(([upper, count]) => [upper, count - (before ? earlier.get(upper) || 0 : count)]);
  const total = counts.at(-1)?.[1] || 0;
  if (total <= 0) return undefined;
  let lower = 0;
  let below = 0;
  for (const [upper, count] of counts) {
    if (count >= q * total) {
      if (upper === Infinity) return 1000 * lower;
      return 1000 * (lower + ((upper - lower) * (q * total - below)) / Math.max(1, count - below));
    }
    [lower, below] = [upper, count];
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
