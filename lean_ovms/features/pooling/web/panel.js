// Panels for models that compute vectors and scores.

import { explain, post } from "../api.js";
import { byId, make, showProblem } from "../dom.js";
import { t } from "../i18n.js";

const lines = (id) => byId(id).value.split("\n").filter((line) => line.trim());

export function start() {
  byId("embed").addEventListener("click", () => run(embed));
  byId("rerank").addEventListener("click", () => run(rerank));
}

export function choose(model) {
  byId("embed-panel").hidden = model.task !== "embeddings" || model.pooling?.kind === "token_embed";
}

async function run(work) {
  try {
    await work();
    showProblem("");
  } catch (error) {
    showProblem(explain(error));
  }
}

async function embed() {
  const input = lines("embed-texts");
  const answer = await (await post("v1/embeddings", { model: byId("model").value, input })).json();
  const vectors = answer.data.map((entry) => entry.embedding);
  const head = make("tr", {}, make("td"), ...input.map((text, place) => make("th", { className: "right", textContent: place + 1, title: text })));
  const rows = vectors.map((vector, place) =>
    make("tr", {}, make("th", { textContent: `${place + 1}. ${input[place]}` }), ...vectors.map((other) => make("td", { className: "number", textContent: cosine(vector, other).toFixed(3) }))),
  );
  const caption = t("{n} dimensions, {tokens} tokens; cosine of each pair", { n: vectors[0].length, tokens: answer.usage.prompt_tokens });
  byId("embed-result").replaceChildren(make("p", { className: "cost", textContent: caption }), make("table", {}, head, ...rows));
}

function cosine(one, other) {
  const dot = (a, b) => a.reduce((sum, value, place) => sum + value * b[place], 0);
  return dot(one, other) / Math.sqrt(dot(one, one) * dot(other, other));
}

async function rerank() {
  const documents = lines("rerank-texts");
  const answer = await (await post("v1/rerank", { model: byId("model").value, query: byId("rerank-query").value, documents })).json();
  const rows = answer.results.map((result) =>
    make("tr", {}, make("td", { className: "number", textContent: result.relevance_score.toFixed(4) }), make("td", { textContent: documents[result.index] })),
  );
  byId("rerank-result").replaceChildren(make("table", {}, ...rows));
}
