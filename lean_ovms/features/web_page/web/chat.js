// The chat view: the conversation that is shown, and one answer at a time.

import { stream } from "./answer.js";
import { explain, key } from "./api.js";
import * as composer from "./composer.js";
import * as conversations from "./conversations.js";
import { byId, copy, keepFocus, showProblem, toast } from "./dom.js";
import { t } from "./i18n.js";
import { render, renderGrowing } from "./message.js";
import { asCurl, asPython, body } from "./request.js";
import * as settings from "./settings.js";
import { fresh } from "./store.js";
import * as tools from "./tools.js";
import * as tree from "./tree.js";
import { welcome } from "./welcome.js";

const NEAR_END = 80; // pixels
const TOO_LONG = "context_length_exceeded";
const KEPT = 3 / 4; // of a conversation that is too long, at most, so that there is room for answers
let current = fresh();
let model = {};
let device = "";
let several = false; // models that chat
let running = null; // the AbortController of the answer that arrives
let readModels;

// read: lists the models again. opened: a conversation was chosen.
export async function start(read, opened) {
  readModels = read;
  composer.start(send);
  settings.start((found) => {
    current.settings = found;
    if (current.messages.length) conversations.save(current);
  }, () => tools.drawChoices(() => settings.fill(current.settings || {})));
  byId("stop").addEventListener("click", stop);
  byId("copy-curl").addEventListener("click", () => copyRequest(asCurl));
  byId("copy-python").addEventListener("click", () => copyRequest(asPython));
  byId("messages").addEventListener("scroll", showWayDown);
  byId("to-end").addEventListener("click", scrollToEnd);
  await conversations.start((conversation) => (show(conversation || fresh(settings.defaults())), opened()));
  show(conversations.first() || fresh(settings.defaults()), false);
}

// where: the model's device, or "". many: whether there are others.
export function setModel(chosen, where, many) {
  const renamed = many !== several;
  [model, device, several] = [chosen, where, many];
  composer.setInputs((model.input_modalities || []).includes("image"));
  settings.showDefaults(model);
  if (!running && (renamed || !current.messages.length)) draw();
  else showContext(tree.path(current));
}

export const stop = () => running?.abort();

// goesTo: the reader can go back from there.
function show(conversation, goesTo = true) {
  running?.abort();
  current = conversation;
  settings.fill(current.settings || {});
  conversations.setShown(current, goesTo);
  draw();
  scrollToEnd();
}

const actions = {
  edit(message, content) {
    const { parent, failed, ...said } = message;
    ask({ ...said, content }, tree.parentOf(current, message));
    byId("text").focus();
  },
  again(message) {
    answer(message.role === "assistant" ? tree.parentOf(current, message) : message);
  },
  shorten(message) {
    current.shortens = true;
    actions.again(message);
  },
  goOn(message) {
    answer(tree.parentOf(current, message), message);
  },
  choose(version) {
    tree.choose(current, version);
    conversations.save(current);
    draw();
  },
  canRun: (call) => tools.canRun(current.settings || {}, call),
  async runCall(message, call) {
    const mine = new AbortController();
    setRunning(mine);
    message.runs = call.id;
    draw();
    showProblem("");
    const content = await tools.run(call, mine.signal).catch(() => null); // null: stopped
    delete message.runs;
    if (running !== mine) return;
    setRunning(null);
    if (content === null) draw();
    else actions.answerCall(message, call, content);
  },
  answerCall(message, call, content, declined = false) {
    const result = { role: "tool", callId: call.id, content, ...(declined ? { declined } : {}) };
    tree.add(current, tree.path(current).at(-1), result);
    const { results } = tree.callsOf(tree.path(current)).get(message);
    if (message.calls.every((one) => results.has(one.id))) return answer(result);
    conversations.save(current);
    draw();
  },
};

function draw() {
  const shown = tree.path(current);
  const last = shown.at(-1);
  const calls = tree.callsOf(shown);
  const folded = new Set([...calls.values()].flatMap(({ results }) => [...results.values()]));
  const elements = shown
    .filter((message) => !folded.has(message)) // results stand in their calls
    .map((message) => render(message, tree.versions(current, message), running ? null : actions, named(), message === last, calls.get(message)));
  keepFocus(byId("messages"), () => byId("messages").replaceChildren(...(shown.length ? elements : [welcome(model, device, sendText, composer.pickFile)])));
  byId("hint").hidden = shown.length > 0;
  showContext(shown);
  showWayDown();
}

// How much of the model's context the conversation takes, by the last answer that told.
function showContext(shown) {
  const used = shown.findLast((message) => message.cost?.used)?.cost.used;
  const most = model.max_model_len;
  byId("context").hidden = !used || !most;
  if (!used || !most) return;
  const text = t("{used} of {most} tokens of context", { used: used.toLocaleString(), most: most.toLocaleString() });
  byId("context").title = byId("context-meter").ariaLabel = text;
  byId("context-meter").value = used / most;
  byId("context-text").textContent = `${used.toLocaleString()} / ${most.toLocaleString()}`;
}

// Whether an answer says which model gave it: where several chat, or did in this conversation.
const named = () => several || new Set(current.messages.map((message) => message.model).filter(Boolean)).size > 1;

function showWayDown() {
  byId("to-end").hidden = below() < 2 * NEAR_END;
}

// Pixels of the conversation below what is visible.
function below() {
  const box = byId("messages");
  return box.scrollHeight - box.scrollTop - box.clientHeight;
}

function scrollToEnd() {
  byId("messages").scrollTop = byId("messages").scrollHeight;
}

// --- an answer

function send() {
  const message = composer.written();
  if (running || !message) return;
  composer.clear();
  ask(message, tree.path(current).at(-1) || null);
}

const sendText = (content) => ask({ role: "user", content }, null);

function ask(message, parent) {
  tree.add(current, parent, message);
  answer(message);
}

// Lets the model answer what is said up to parent. cut: the answer there that it continues.
async function answer(parent, cut = null) {
  const conversation = current;
  conversation.tip = conversation.messages.indexOf(cut || parent);
  for (const one of conversation.messages) delete one.failed;
  const said = tree.path(conversation);
  const callsLeft = rounds(said) < tools.MAX_ROUNDS;
  const loads = model.status && model.status.value !== "loaded";
  const message = cut || { role: "assistant", content: "", model: model.id };
  const mine = new AbortController();
  setRunning(mine);
  tell();
  draw();
  if (cut) byId("messages").lastChild.remove();
  else tree.add(conversation, parent, message);
  delete message.finish;
  if (!callsLeft) message.calledEnough = true;
  const growing = painter(message, loads ? t("Loading the model…") : t("Waiting for the first token…"));
  try {
    await conversations.keep(conversation);
    const offered = await tools.offered(conversation.settings || {});
    const options = { goesOn: Boolean(cut), offered, callsLeft };
    const more = model.generates_by?.type === "PAGED" ? { return_progress: true } : {};
    const request = (sent) => ({ ...body(model.id, sent, conversation.settings || {}, options), ...more });
    message.left = await streamShortened(conversation, said, (sent) => stream(request(sent), message, growing, mine.signal));
    showProblem("");
  } catch (error) {
    const empty = !message.content && !message.reasoning && !message.calls;
    if (empty) tree.takeBack(conversation);
    else message.finish = "cut";
    if (empty || error.name !== "AbortError") fail(conversation, empty ? tree.path(conversation).at(-1) : message, error);
  }
  delete message.progress;
  if (running === mine) setRunning(null);
  if (conversation === current) (redraw(), tell(tree.path(current).at(-1)));
  await conversations.save(conversation);
  if (loads) await readModels();
}

// Calls send with the messages, without the oldest questions and what follows them if the reader chose that and the context
// is too short for all. Returns the number of messages that were left out.
async function streamShortened(conversation, said, send) {
  for (let left = conversation.shortens ? said.findLast((message) => message.left)?.left || 0 : 0; ; ) {
    try {
      await send(said.slice(left));
      return left;
    } catch (error) {
      const next = said.findIndex((message, place) => place > left && message.role === "user" && length(said.slice(place)) <= KEPT * length(said.slice(left)));
      const last = said.findLastIndex((message) => message.role === "user");
      if (!conversation.shortens || error.code !== TOO_LONG || last <= left) throw error;
      left = next < 0 ? last : next;
    }
  }
}

// For screen readers: only what is new, since the whole conversation is drawn again at the end of an answer.
function tell({ role, content, calls = [], failed } = {}) {
  const asks = calls.map((call) => t("May {name} be called?", { name: call.function.name }));
  byId("said").textContent = [role === "assistant" && content, ...asks, failed?.text].filter(Boolean).join("\n");
}

const length = (messages) => messages.reduce((sum, message) => sum + (message.content || "").length, 0);

// How many answers with calls the last question has.
function rounds(said) {
  const question = said.findLastIndex((message) => message.role === "user");
  return said.slice(question + 1).filter((message) => message.calls).length;
}

// The message that got no whole answer says why, and when to try again.
function fail(conversation, message, error) {
  const text = error.name === "AbortError" ? t("Stopped.") : explain(error);
  const questions = tree.path(conversation).filter((one) => one.role === "user");
  const long = error.code === TOO_LONG && questions.length > 1 && !conversation.shortens;
  message.failed = { text, long, until: Date.now() + 1000 * (error.retryAfter || 0) };
}

// Shows an answer that arrives, at most once a frame, and follows its end unless the reader has scrolled up.
function painter(message, waitsFor) {
  const { element, update } = renderGrowing(message, waitsFor, named());
  const mine = running;
  byId("messages").append(element);
  scrollToEnd();
  let due = false;
  return () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      if (running !== mine || !element.isConnected) return;
      const atEnd = below() < NEAR_END;
      update();
      if (atEnd) scrollToEnd();
    });
  };
}

// Draws again where the reader is.
function redraw() {
  const atEnd = below() < NEAR_END;
  const top = byId("messages").scrollTop;
  draw();
  if (atEnd) scrollToEnd();
  else byId("messages").scrollTop = top;
}

function setRunning(controller) {
  running = controller;
  byId("send").disabled = byId("send").hidden = Boolean(running);
  byId("stop").disabled = byId("stop").hidden = !running;
  byId("messages").setAttribute("aria-busy", String(Boolean(running)));
}

async function copyRequest(write) {
  const said = [...tree.path(current), composer.written()].filter(Boolean);
  try {
    const offered = await tools.offered(current.settings || {});
    copy(write(body(model.id, said, current.settings || {}, { offered }), Boolean(key())));
    toast(t("Copied."));
  } catch (error) {
    showProblem(explain(error));
  }
}
