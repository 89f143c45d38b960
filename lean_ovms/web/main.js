// The page: views, the model, the API key.

import { ServerError, get, restoreKey } from "./api.js";
import * as chat from "./chat.js";
import { byId, make, showProblem } from "./dom.js";
import * as server from "./server.js";
import * as speech from "./speech.js";
import * as texts from "./texts.js";

const VIEWS = ["chat", "texts", "speech", "server"];
const MODEL = "lean_ovms.model";
let models = [];

function show(view) {
  for (const name of VIEWS) {
    byId(`view-${name}`).hidden = name !== view;
    byId(`tab-${name}`).setAttribute("aria-pressed", String(name === view));
  }
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
  const before = localStorage.getItem(MODEL);
  byId("model").replaceChildren(...models.map((model) => make("option", { value: model.id, textContent: model.id })));
  if (models.some((model) => model.id === before)) byId("model").value = before;
  chosen();
}

function chosen() {
  const model = models.find((one) => one.id === byId("model").value) || {};
  const kind = model.pooling?.kind;
  chat.setVision((model.input_modalities || []).includes("image"));
  const own = speech.choose(model) ? "speech" : kind ? "texts" : "chat"; // the view of this kind of model
  for (const view of ["chat", "texts", "speech"]) byId(`tab-${view}`).hidden = view !== own;
  byId("embed-panel").hidden = kind !== "embed";
  byId("rerank-panel").hidden = !["embed", "score"].includes(kind);
  if (byId("view-server").hidden) show(own);
}

restoreKey();
byId("key").addEventListener("change", readModels);
byId("model").onchange = () => {
  localStorage.setItem(MODEL, byId("model").value);
  chosen();
};
for (const view of VIEWS) byId(`tab-${view}`).onclick = () => show(view);
texts.start();
speech.start();
server.start();
await chat.start();
await readModels();
