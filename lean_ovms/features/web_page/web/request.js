// A conversation and its settings as the body of a request, and that as text to copy.

import { Problem, address } from "./api.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
const THINKING = { on: true, off: false };

// Throws a Problem that names the setting at fault. goesOn: the model continues the last message. offered: further tools.
// callsLeft: whether the model may call tools again.
export function body(model, messages, settings, { goesOn = false, offered = [], callsLeft = true } = {}) {
  const said = messages.filter((message) => message.role !== "assistant" || message.content || message.calls?.length);
  const found = { model, messages: [...system(settings), ...said.map(wire)], stream: true, stream_options: { include_usage: true } };
  if (goesOn) Object.assign(found, { continue_final_message: true, add_generation_prompt: false });
  for (const name of NUMBERS) if (settings[name] !== "" && settings[name] !== undefined) found[name] = Number(settings[name]);
  const stop = (settings.stop || "").split("\n").filter(Boolean);
  if (stop.length) found.stop = stop;
  if (settings.format === "json_object") found.response_format = { type: "json_object" };
  if (settings.format === "json_schema")
    found.response_format = { type: "json_schema", json_schema: { name: "answer", schema: parsed(settings.schema, "JSON Schema") } };
  const tools = [...((settings.tools || "").trim() ? [].concat(parsed(settings.tools, "Tools")) : []), ...offered];
  if (tools.length) found.tools = tools;
  if (tools.length && !callsLeft) found.tool_choice = "none";
  if (settings.logprobs) Object.assign(found, { logprobs: true, top_logprobs: 5 });
  if (settings.thinking in THINKING) found.chat_template_kwargs = { enable_thinking: THINKING[settings.thinking] };
  return found;
}

const system = (settings) => ((settings.system || "").trim() ? [{ role: "system", content: settings.system }] : []);

function wire(message) {
  if (message.role === "tool") return { role: "tool", tool_call_id: message.callId, content: message.content };
  if (message.role === "assistant" && message.calls?.length)
    return { role: "assistant", content: message.content || null, tool_calls: message.calls };
  const text = [...(message.files || []).map(fileText), message.content].join("\n\n");
  if (!message.images?.length) return { role: message.role, content: text };
  const images = message.images.map((url) => ({ type: "image_url", image_url: { url } }));
  return { role: message.role, content: [{ type: "text", text }, ...images] };
}

// In a fence that is longer than any in the file.
function fileText({ name, text }) {
  const fence = "`".repeat(Math.max(3, ...[...text.matchAll(/`+/g)].map(([run]) => run.length + 1)));
  return `${name}:\n${fence}\n${text}\n${fence}`;
}

function parsed(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Problem(`${what}: ${error.message}`);
  }
}

export function asCurl(request, keyed) {
  const key = keyed ? ' -H "Authorization: Bearer $API_KEY"' : "";
  const data = JSON.stringify(request).replaceAll("'", "'\\''");
  return `curl -N ${address("v1/chat/completions")} -H 'Content-Type: application/json'${key} -d '${data}'`;
}

export function asPython(request, keyed) {
  const { stream, stream_options, chat_template_kwargs, top_k, min_p, ...rest } = request;
  const fields = Object.entries({ ...rest, stream: true, stream_options }).map(([name, value]) => `    ${name}=${literal(value)},`);
  const extra = Object.entries({ chat_template_kwargs, top_k, min_p }).filter(([, value]) => value !== undefined);
  if (extra.length) fields.push(`    extra_body=${literal(Object.fromEntries(extra))},`);
  const key = keyed ? 'os.environ["API_KEY"]' : '"none"';
  return `${keyed ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${literal(address("v1"))}, api_key=${key})
for chunk in client.chat.completions.create(
${fields.join("\n")}
):
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
`;
}

function literal(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([k, v]) => `${JSON.stringify(k)}: ${literal(v)}`).join(", ")}}`;
  return JSON.stringify(value);
}
