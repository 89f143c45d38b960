// Tools that the page runs when a model calls them, each call after the reader has allowed it: its own ones, which touch
// nothing, and those of the MCP servers that the server may use.

import { Problem, get, pathOf, post } from "./api.js";
import { calculate } from "./calculate.js";
import { byId, make } from "./dom.js";
import { t } from "./i18n.js";

export const MAX_ROUNDS = 10; // answers with calls to one question; then the model answers without further ones
const OWN = "tools:page"; // the names of the settings
const OF_SERVER = "tools:server:";
const BETWEEN = "__"; // a server and its tool, in the name of a function
let servers = null; // with their tools, prompts and resources; null: not asked yet

const describe = (name, description, parameters) => ({ type: "function", function: { name, description, parameters } });
const text = { type: "string" };
const MINE = {
  calculate: {
    function: describe("calculate", "Computes an arithmetic expression, such as 2 * (3 + sqrt(16)) ^ 2.", { type: "object", properties: { expression: text }, required: ["expression"] }),
    run: ({ expression }) => String(calculate(String(expression))),
  },
  current_time: {
    function: describe("current_time", "Tells the date and the time of the user, with the time zone.", { type: "object", properties: {} }),
    run: () => `${new Date()} (${Intl.DateTimeFormat().resolvedOptions().timeZone})`,
  },
};

// The MCP servers of this server, asked once.
export async function toolServers() {
  if (!pathOf("tool_servers")) return [];
  servers ||= get(pathOf("tool_servers")).then(({ data }) => data);
  return servers.catch((error) => ((servers = null), Promise.reject(error)));
}

export const isOn = (settings, server) => Boolean(settings[OF_SERVER + server.name]);

// Shows what there is as checkboxes of the settings. refill: sets the fields again.
export async function drawChoices(refill) {
  const found = await toolServers().catch(() => []);
  const choice = (name, label, title, disabled = false) => make("label", { className: "check", title }, make("input", { type: "checkbox", name, disabled }), make("span", { textContent: label }));
  const own = choice(OWN, t("Tools of this page"), Object.keys(MINE).join(", "));
  const rows = found.map((server) => choice(OF_SERVER + server.name, server.error ? `${server.name}: ${server.error}` : server.name, server.tools.map(({ name }) => name).join(", "), Boolean(server.error)));
  byId("tool-choices").replaceChildren(own, ...rows);
  refill();
}

// The tools that the settings of a conversation offer to the model, as the API has them.
export async function offered(settings) {
  const wanted = Object.keys(settings).some((name) => name.startsWith(OF_SERVER) && settings[name]) ? await toolServers() : [];
  const functions = wanted.filter((server) => isOn(settings, server)).flatMap((server) => server.tools.map((tool) => describe(server.name + BETWEEN + tool.name, tool.description || "", tool.input_schema)));
  return [...(settings[OWN] ? Object.values(MINE).map((one) => one.function) : []), ...functions];
}

// Whether the page can make a call with these settings.
export function canRun(settings, { function: { name } }) {
  const server = name.split(BETWEEN)[0];
  return Object.hasOwn(MINE, name) ? Boolean(settings[OWN]) : Boolean(pathOf("call_tool")) && isOn(settings, { name: server });
}

// The result of a call, as the model gets it. Throws AbortError.
export async function run({ function: { name, arguments: given } }, signal) {
  try {
    const values = JSON.parse(given || "{}");
    if (Object.hasOwn(MINE, name)) return MINE[name].run(values);
    const [server, ...rest] = name.split(BETWEEN);
    return (await (await post(pathOf("call_tool"), { server, name: rest.join(BETWEEN), arguments: values }, signal)).json()).output;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return `Error: ${error instanceof Problem ? error.text : error.message}`;
  }
}
