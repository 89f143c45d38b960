// A message as elements.

import { costLine } from "./answer.js";
import { copyButton, make } from "./dom.js";
import { markdown } from "./markdown.js";

const WHO = { user: "You", assistant: "Model", tool: "Tool" };

// actions: { edit(message, text), again(message), answerCall(call, text) }; null while an answer arrives.
export function render(message, actions) {
  const box = make("article", { className: `message ${message.role}` });
  box.append(make("div", { className: "who", textContent: WHO[message.role] }));
  for (const url of message.images || []) if (isImage(url)) box.append(make("img", { src: url, alt: "attached image" }));
  if (message.reasoning) box.append(folded("Reasoning", message.reasoning, !message.content && !actions));
  if (message.tokens?.length) box.append(heat(message.tokens, message.content));
  else if (message.role === "assistant") box.append(markdown(message.content));
  else box.append(make("div", { className: "body", textContent: message.content }));
  for (const call of message.calls || []) if (call) box.append(callBox(call, message, actions));
  if (message.failed) box.append(failure(message, actions));
  if (message.finish === "length") box.append(make("p", { className: "cost", textContent: "Cut off at the limit of tokens." }));
  if (message.cost) box.append(make("p", { className: "cost", textContent: costLine(message.cost) }));
  if (actions) box.append(buttons(message, actions, box));
  return box;
}

// An image of this page's own making: nothing is fetched from elsewhere.
const isImage = (url) => /^data:image\/(png|jpeg|webp|gif|bmp);base64,/.test(url);

function folded(title, text, open) {
  return make("details", { open }, make("summary", { textContent: title }), make("div", { textContent: text }));
}

// Tokens with the colour of their probability; those that are not of the text, such as its end, are left out.
function heat(tokens, content) {
  const line = make("div", { className: "body" });
  for (const { text, p, others } of tokens.filter((token) => content.includes(token.text))) {
    const span = make("span", { className: "token", textContent: text });
    span.style.backgroundColor = `hsl(${Math.round(120 * p)} 70% 50% / .3)`;
    span.title = [[text, p], ...others.filter(([other]) => other !== text)].map(([t, q]) => `${JSON.stringify(t)} ${(100 * q).toFixed(1)} %`).join("\n");
    line.append(span);
  }
  return line;
}

function callBox(call, message, actions) {
  const box = make("div", { className: "call" }, make("strong", { textContent: call.function.name }), make("pre", {}, make("code", { textContent: pretty(call.function.arguments) })));
  if (!actions || message.answered?.includes(call.id)) return box;
  const text = make("textarea", { rows: 2, ariaLabel: `Result of ${call.function.name}` });
  const send = make("button", { type: "button", textContent: "Send the result" });
  send.onclick = () => actions.answerCall(message, call, text.value);
  box.append(text, send);
  return box;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function buttons(message, actions, box) {
  const row = make("p", { className: "actions row" }, copyButton("Copy", () => message.content));
  if (message.role === "user") row.append(button("Edit", () => edit(message, actions, box)));
  if (message.role === "assistant") row.append(button("Regenerate", () => actions.again(message)));
  return row;
}

// The button counts Retry-After down.
function failure(message, actions) {
  const row = make("p", { className: "failed row" }, make("span", { textContent: message.failed.text }));
  if (!actions) return row;
  const again = button("Try again", () => actions.again(message));
  const tick = () => {
    const seconds = Math.ceil((message.failed.until - Date.now()) / 1000);
    again.disabled = seconds > 0;
    again.textContent = seconds > 0 ? `Try again in ${seconds} s` : "Try again";
    if (seconds > 0) setTimeout(() => again.isConnected && tick(), 1000);
  };
  tick();
  row.append(again);
  return row;
}

function edit(message, actions, box) {
  const text = make("textarea", { value: message.content, rows: 4, ariaLabel: "Edited message" });
  const row = make("p", { className: "row" }, button("Send", () => actions.edit(message, text.value)), button("Cancel", () => box.replaceWith(render(message, actions))));
  box.replaceChildren(text, row);
  text.focus();
}

function button(label, action) {
  const element = make("button", { type: "button", textContent: label });
  element.onclick = action;
  return element;
}
