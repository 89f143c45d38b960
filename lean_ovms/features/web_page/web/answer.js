// One streamed answer: deltas are added to a message, and what it cost is measured.

import { events, post } from "./api.js";
import { t } from "./i18n.js";

const MIN_RATED = 32; // completion tokens: the rate of fewer says nothing

// Fills message as the answer arrives and calls changed after each event. Throws ServerError, or AbortError when stopped.
// message.progress: the share of the prompt that is read, from servers that say it.
export async function stream(request, message, changed, signal) {
  const began = performance.now();
  const before = message.cost?.completion || 0;
  let [first, thought] = [0, 0];
  const answer = await post("v1/chat/completions", request, signal);
  for await (const event of events(answer)) {
    const now = performance.now();
    const { total, processed, cache = 0 } = event.prompt_progress || {};
    if (total) message.progress = Math.min(1, Math.max(processed, cache) / total);
    const choice = event.choices?.[0];
    if (choice) {
      if (add(message, choice) && !first) first = now;
      if (message.reasoning && !message.content && !message.calls) message.thoughtMs = now - (thought ||= now);
      if (choice.finish_reason) message.finish = choice.finish_reason;
    }
    if (event.usage) message.cost = cost(event.usage, began, first, before);
    changed();
  }
}

// Whether the event had anything of the answer.
function add(message, choice) {
  const delta = choice.delta || {};
  if (delta.content) message.content += delta.content;
  if (delta.reasoning_content) message.reasoning = (message.reasoning || "") + delta.reasoning_content;
  for (const part of delta.tool_calls || []) addCall(message, part);
  if (choice.logprobs?.content) (message.tokens ||= []).push(...choice.logprobs.content.map(token));
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

// before: completion tokens of the part of the answer that this one continues.
function cost(usage, began, first, before) {
  const now = performance.now();
  const seconds = (now - (first || now)) / 1000;
  return {
    prompt: usage.prompt_tokens,
    completion: before + usage.completion_tokens,
    used: usage.prompt_tokens + usage.completion_tokens, // of the context
    cached: usage.prompt_tokens_details?.cached_tokens,
    ttft: first ? first - began : now - began,
    rate: seconds > 0 && usage.completion_tokens > 1 ? (usage.completion_tokens - 1) / seconds : 0,
  };
}

export function costLine({ prompt, completion, cached, ttft, rate }) {
  const parts = [t("{n} prompt tokens", { n: prompt.toLocaleString() }), t("{n} completion tokens", { n: completion.toLocaleString() }), t("first after {n} ms", { n: ttft.toFixed(0) })];
  if (cached) parts.splice(1, 0, t("{n} cached", { n: cached.toLocaleString() }));
  if (rate && completion >= MIN_RATED) parts.push(t("{n} tokens/s", { n: rate.toFixed(1) }));
  return parts.join(" · ");
}
