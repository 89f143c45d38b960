// One streamed answer: deltas are added to a message, and what it cost is measured.

import { ServerError, events, post } from "./api.js";

// Fills message as the answer arrives and calls changed after each event. Throws ServerError, or AbortError when stopped.
export async function stream(request, message, changed, signal) {
  const began = performance.now();
  let first = 0;
  const answer = await post("v1/chat/completions", request, signal);
  for await (const event of events(answer)) {
    if (event.error) throw new ServerError(event.error.code || 500, event.error);
    const choice = event.choices?.[0];
    if (choice) {
      if (add(message, choice) && !first) first = performance.now();
      if (choice.finish_reason) message.finish = choice.finish_reason;
    }
    if (event.usage) message.cost = cost(event.usage, began, first);
    changed();
  }
}

// Whether the event had anything of the answer.
function add(message, choice) {
  const delta = choice.delta || {};
  if (delta.content) message.content += delta.content;
  if (delta.reasoning_content) message.reasoning = (message.reasoning || "") + delta.reasoning_content;
  for (const part of delta.tool_calls || []) addCall(message, part);
  if (choice.logprobs?.content) message.tokens = [...(message.tokens || []), ...choice.logprobs.content.map(token)];
  return Boolean(delta.content || delta.reasoning_content || delta.tool_calls);
}

function addCall(message, part) {
  message.calls ||= [];
  const call = (message.calls[part.index] ||= { id: "", type: "function", function: { name: "", arguments: "" } });
  if (part.id) call.id = part.id;
  if (part.function?.name) call.function.name += part.function.name;
  if (part.function?.arguments) call.function.arguments += part.function.arguments;
}

const token = (entry) => ({ text: entry.token, p: Math.exp(entry.logprob), others: (entry.top_logprobs || []).map((o) => [o.token, Math.exp(o.logprob)]) });

function cost(usage, began, first) {
  const now = performance.now();
  const seconds = (now - (first || now)) / 1000;
  return {
    prompt: usage.prompt_tokens,
    completion: usage.completion_tokens,
    cached: usage.prompt_tokens_details?.cached_tokens,
    ttft: first ? first - began : now - began,
    rate: seconds > 0 && usage.completion_tokens > 1 ? (usage.completion_tokens - 1) / seconds : 0,
  };
}

export function costLine(cost) {
  const parts = [`${cost.prompt} prompt tokens`, `${cost.completion} completion tokens`, `first after ${cost.ttft.toFixed(0)} ms`];
  if (cost.cached !== undefined && cost.cached !== null) parts.splice(1, 0, `${cost.cached} cached`);
  if (cost.rate) parts.push(`${cost.rate.toFixed(1)} tokens/s`);
  return parts.join(" · ");
}
