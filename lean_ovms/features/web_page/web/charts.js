// Small charts of the last minutes, with a scale.

import { make, makeSvg } from "./dom.js";
import { t } from "./i18n.js";

export const EVERY_MS = 2000; // a point
const A_MINUTE = 60_000 / EVERY_MS; // in points
export const POINTS = 5 * A_MINUTE;
const STEPS = [1, 2, 5, 10];
const [WIDTH, HEIGHT] = [300, 80];

// The least round number that is not less.
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return unit * STEPS.find((step) => step * unit >= value * (1 - 1e-9));
}

const short = (value) => value.toLocaleString(undefined, { maximumSignificantDigits: 3, notation: value >= 10_000 ? "compact" : "standard" });

// The minutes that a chart shows: it begins with one, and grows as there is more to show.
export const minutesFor = (points) => Math.max(1, Math.ceil(points / A_MINUTE));

// values: the oldest first, null where nothing was measured. most: of a scale that is fixed.
export function chart(name, unit, values, minutes, most) {
  const known = values.filter((value) => value !== null);
  const top = most ?? roundUp(Math.max(0, ...known));
  const x = (place) => WIDTH - ((values.length - 1 - place) * WIDTH) / (minutes * A_MINUTE - 1);
  const y = (value) => HEIGHT - (HEIGHT * Math.min(value, top)) / top;
  const points = values.map((value, place) => (value === null ? "" : `${x(place).toFixed(1)},${y(value).toFixed(1)}`)).filter(Boolean);
  const svg = makeSvg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": t("{name} over the last minutes", { name }) });
  for (const height of [0, HEIGHT / 2, HEIGHT]) svg.append(makeSvg("line", { x1: 0, x2: WIDTH, y1: height, y2: height, class: "grid" }));
  if (points.length > 1) {
    const [first, last] = [points[0].split(",")[0], points.at(-1).split(",")[0]];
    svg.append(makeSvg("polygon", { points: `${first},${HEIGHT} ${points.join(" ")} ${last},${HEIGHT}` }), makeSvg("polyline", { points: points.join(" ") }));
  }
  const latest = known.length ? short(known.at(-1)) : "–";
  const head = make("figcaption", {}, make("span", { textContent: name }), make("strong", { textContent: `${latest}${known.length && unit ? " " + unit : ""}` }));
  const scale = make("div", { className: "scale" }, ...[top, top / 2, 0].map((value) => make("span", { textContent: short(value) })));
  const times = make("div", { className: "times" }, make("span", { textContent: t("{n} min ago", { n: minutes }) }), make("span", { textContent: t("now") }));
  return make("figure", {}, head, make("div", { className: "plot" }, scale, svg), times);
}
