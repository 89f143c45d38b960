// A message as elements.

import { costLine } from "./answer.js";
import { button, copyButton, icon, iconButton, make, onEnter, onEscape } from "./dom.js";
import { t } from "./i18n.js";
import { MarkdownView, markdown } from "./markdown.js";

const WHO = { user: "You", assistant: "Model", tool: "Tool" };

// actions: { edit(message, text), again(message), shorten(message), goOn(message), answerCall(message, call, text),
// runCall(message, call),
// canRun(call), choose(version) }; null while an answer arrives. called: what tree.js knows of
// its calls. versions: the message and its alternatives. named: whether an answer says which model gave it. isLast:
// whether it is the end of the conversation.
export function render(message, versions, actions, named, isLast, called) {
  const box = frame(message, named);
  box.append(...attachments(message));
  if (message.reasoning) box.append(thought(message).element);
  if (message.tokens?.length) box.append(heat(message.tokens, message.content));
  else if (message.role === "assistant") box.append(markdown(message.content));
  else if (message.content) box.append(make("div", { className: "body", textContent: message.content }));
  for (const call of message.calls || []) if (call) box.append(callBox(call, message, actions, called));
  if (message.finish === "length") box.append(make("p", { className: "note", textContent: t("Cut off at the limit of tokens.") }));
  if (message.left) box.append(make("p", { className: "note", textContent: t("The model did not get the first {n} messages.", { n: message.left }) }));
  if (message.calledEnough) box.append(make("p", { className: "note", textContent: t("The limit of calls was reached.") }));
  if (message.failed) box.append(failure(message, actions));
  if (actions) box.append(foot(message, versions, actions, box, isLast));
  return box;
}

// An answer that arrives: its element, and update(), which shows what message has by now. waitsFor: of the model. What the
// message has at the start is shown at once, as the model continues it.
export function renderGrowing(message, waitsFor, named) {
  const box = frame(message, named);
  const had = message.content;
  const wait = waiting(waitsFor);
  const thinking = thought(message);
  const view = new MarkdownView();
  box.append(wait.element);
  const update = () => {
    wait.update(message);
    if (message.reasoning && !thinking.element.isConnected) wait.element.before(thinking.element);
    if (message.content && !view.element.isConnected) wait.element.before(view.element);
    thinking.update();
    if (message.content) view.update(message.content, false);
    if (message.content !== had || (!had && (message.reasoning || message.calls))) wait.element.remove();
  };
  if (had) update();
  return { element: box, update };
}

// With a heading for readers that go from one to the next.
function frame(message, named) {
  const model = named && message.model;
  const className = model || message.role === "tool" ? "who" : "hidden";
  return make("article", { className: `message ${message.role}` }, make("h2", { className, textContent: model || t(WHO[message.role]) }));
}

function attachments(message) {
  const images = (message.images || []).filter(isImage).map((src) => make("img", { src, alt: t("attached image") }));
  const files = (message.files || []).map(({ name, text }) => folded("file", make("summary", {}, icon("file"), name), make("pre", { tabIndex: 0, textContent: text })));
  return images.length + files.length ? [make("div", { className: "attachments" }, ...images, ...files)] : [];
}

// An image of this page's own making: nothing is fetched from elsewhere.
const isImage = (url) => /^data:image\/(png|jpeg|webp|gif|bmp);base64,/.test(url);

const folded = (className, summary, inside) => make("details", { className }, summary, inside);

// What goes on before the first token, with the share of the prompt that is read if it is known.
function waiting(text) {
  const label = make("span", { textContent: text });
  const bar = make("progress", { max: 1, hidden: true, ariaLabel: t("Reading the prompt") });
  const update = ({ progress }) => {
    if (!progress || progress >= 1) return;
    bar.hidden = false;
    bar.value = progress;
    label.textContent = t("Reading the prompt: {n} %", { n: Math.round(100 * progress) });
  };
  return { element: make("p", { className: "waiting", role: "status" }, make("span", { className: "pulse" }), label, bar), update };
}

// The reasoning: open while the model thinks, then folded with the time that it took.
function thought(message) {
  const label = make("span");
  const text = make("div", { className: "reasoning" });
  const element = folded("thought", make("summary", {}, icon("thought"), label), text);
  let thinking = null;
  const update = () => {
    if (thinking === false) return;
    const now = !message.content && !message.calls && !message.finish && !message.cost;
    if (now !== thinking) element.open = thinking = now;
    text.textContent = message.reasoning || "";
    const seconds = ((message.thoughtMs || 0) / 1000).toFixed(1);
    label.textContent = now ? t("Thinking…") : message.thoughtMs ? t("Thought for {n} s", { n: seconds }) : t("Thoughts");
    element.classList.toggle("active", now);
  };
  update();
  return { element, update };
}

// Tokens with the colour of their probability; those that are not of the text, such as its end, are left out.
function heat(tokens, content) {
  const line = make("div", { className: "body heat" });
  for (const { text, p, others } of tokens.filter((token) => content.includes(token.text))) {
    const span = make("span", { className: "token", textContent: text });
    span.style.backgroundColor = `hsl(${Math.round(120 * p)} 70% 50% / .3)`;
    span.title = [[text, p], ...others.filter(([other]) => other !== text)].map(([t, q]) => `${JSON.stringify(t)} ${(100 * q).toFixed(1)} %`).join("\n");
    line.append(span);
  }
  return line;
}

// A call and its result, folded once it has one.
function callBox(call, message, actions, called) {
  const name = call.function.name;
  const result = called?.results.get(call.id);
  const waits = !result && called?.open;
  const state = make("span", { className: "call-state", textContent: result ? (result.declined ? t("Declined") : t("Done")) : message.runs === call.id ? t("Working…") : "" });
  const code = (content) => make("pre", { tabIndex: 0 }, make("code", { textContent: pretty(content) }));
  const box = folded("call", make("summary", {}, icon("tool"), make("strong", { textContent: name }), state), code(call.function.arguments));
  if (result) box.append(code(result.content));
  box.open = waits;
  if (!actions || !waits) return box;
  if (actions.canRun(call)) {
    const decline = () => actions.answerCall(message, call, t("The user declined this call."), true);
    const row = make("div", { className: "row" }, button(t("Run"), () => actions.runCall(message, call), "primary"), button(t("Decline"), decline));
    row.setAttribute("role", "group");
    row.ariaLabel = t("May {name} be called?", { name });
    box.append(row);
    return box;
  }
  const text = make("textarea", { rows: 2, ariaLabel: t("Result of {name}", { name }) });
  const send = () => actions.answerCall(message, call, text.value);
  onEnter(text, send);
  box.append(text, button(t("Send the result"), send));
  return box;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function foot(message, versions, actions, box, isLast) {
  const row = make("div", { className: "foot" });
  if (versions.length > 1) row.append(...pager(message, versions, actions));
  if (message.content) row.append(copyButton(() => message.content));
  if (message.role === "user") row.append(iconButton("edit", t("Edit"), () => edit(message, actions, box)));
  if (message.role === "assistant") row.append(iconButton("again", t("Regenerate"), () => actions.again(message)));
  if (["length", "cut"].includes(message.finish) && message.content && !message.calls && isLast)
    row.append(button(t("Continue"), () => actions.goOn(message), "go-on"));
  if (message.cost) row.append(make("span", { className: "cost", textContent: costLine(message.cost) }));
  return row;
}

function pager(message, versions, actions) {
  const place = versions.indexOf(message);
  const step = (name, label, by) => {
    const element = iconButton(name, label, () => actions.choose(versions[place + by]));
    element.disabled = !versions[place + by];
    return element;
  };
  const shown = make("span", { className: "pager", textContent: `${place + 1}/${versions.length}` });
  return [step("left", t("Previous version"), -1), shown, step("right", t("Next version"), 1)];
}

// The button counts Retry-After down.
function failure(message, actions) {
  const row = make("p", { className: "failed" }, make("span", { textContent: message.failed.text }));
  if (!actions) return row;
  const again = button(t("Try again"), () => actions.again(message));
  const tick = () => {
    const seconds = Math.ceil((message.failed.until - Date.now()) / 1000);
    again.disabled = seconds > 0;
    again.textContent = seconds > 0 ? t("Try again in {n} s", { n: seconds }) : t("Try again");
    if (seconds > 0) setTimeout(() => again.isConnected && tick(), 1000);
  };
  tick();
  if (message.failed.long) row.append(button(t("Leave out the oldest messages"), () => actions.shorten(message)));
  else row.append(again);
  return row;
}

function edit(message, actions, box) {
  const before = [...box.childNodes];
  const text = make("textarea", { value: message.content, rows: 4, ariaLabel: t("Edited message") });
  const opener = document.activeElement;
  const cancel = () => (box.replaceChildren(...before), opener.focus());
  const send = () => actions.edit(message, text.value);
  const row = make("div", { className: "row" }, button(t("Cancel"), cancel), button(t("Send"), send, "primary"));
  onEnter(text, send);
  onEscape(text, cancel);
  box.replaceChildren(make("div", { className: "editor" }, text, row));
  text.focus();
}
