// The page: views, the model of each, the API key.

import { ServerError, get, restoreKey } from "./api.js";
import * as chat from "./chat.js";
import { byId, make, showProblem } from "./dom.js";
import * as server from "./server.js";
import * as speech from "./speech.js";
import * as texts from "./texts.js";

const VIEWS = ["chat", "texts", "speech", "server"];
const TASKS = { text_generation: "chat", embeddings: "texts", rerank: "texts", speech2text: "speech", text2speech: "speech" };
const MODEL = "lean_ovms.model."; // and the view: the model that was chosen there
let models = [];
let current = VIEWS[0];

const served = (view) => models.filter((model) => TASKS[model.task] === view);

function show(view) {
  current = view;
  for (const name of VIEWS) {
    byId(`view-${name}`).hidden = name !== view;
    byId(`tab-${name}`).setAttribute("aria-pressed", String(name === view));
  }
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
    showProblem(models.length ? "" : "No model is ready.");
  } catch (error) {
    models = [];
    showProblem(error instanceof ServerError && error.status === 401 ? "The server needs an API key." : "The models cannot be listed.");
  }
  const views = VIEWS.filter((view) => view === "server" || served(view).length || (view === "chat" && !models.length));
  for (const view of VIEWS) byId(`tab-${view}`).hidden = !views.includes(view);
  show(views.includes(current) ? current : views[0]);
}

function chosen() {
  const model = models.find((one) => one.id === byId("model").value) || {};
  if (current === "chat") chat.setVision((model.input_modalities || []).includes("image"));
  if (current === "texts") byId("embed-panel").hidden = model.task !== "embeddings" || model.pooling?.kind === "token_embed";
  if (current === "speech") speech.choose(model);
}

restoreKey();
byId("key").addEventListener("change", readModels);
byId("model").onchange = () => {
  localStorage.setItem(MODEL + current, byId("model").value);
  chosen();
};
for (const view of VIEWS) byId(`tab-${view}`).onclick = () => show(view);
texts.start();
speech.start(readModels);
server.start();
await chat.start();
await readModels();
