// The panel for models that make images: each is shown while it is made, and can be saved.

import { events, post } from "../api.js";
import { byId, make } from "../dom.js";
import { t } from "../i18n.js";
import { oneAtATime } from "../work.js";

const PARTIAL = 3; // unfinished images of each

export function start() {
  const run = oneAtATime(byId("draw-stop"), byId("image-state"));
  byId("draw").addEventListener("click", () => run(draw));
}

async function draw(signal) {
  const prompt = byId("image-prompt").value;
  const request = { model: byId("model").value, prompt, stream: true, partial_images: PARTIAL };
  if (byId("image-size").value) request.size = byId("image-size").value;
  for (const name of ["n", "seed"]) if (byId(`image-${name}`).value) request[name] = Number(byId(`image-${name}`).value);
  byId("images").replaceChildren();
  let image = null;
  for await (const event of events(await post("v1/images/generations", request, signal))) {
    if (!image) byId("images").append(make("figure", {}, (image = make("img", { alt: prompt }))));
    image.src = `data:image/${event.output_format};base64,${event.b64_json}`;
    if (event.type !== "image_generation.completed") continue;
    const save = make("a", { href: image.src, download: `${event.seed}.${event.output_format}`, textContent: t("Save") });
    image.after(make("figcaption", {}, `${event.size}, ${t("Seed")} ${event.seed} `, save));
    image = null;
  }
}
