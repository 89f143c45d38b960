// The chat view: conversations, the composer, and one answer at a time.

import { stream } from "./answer.js";
import { ServerError } from "./api.js";
import { byId, copy, make, showProblem } from "./dom.js";
import { render } from "./message.js";
import { asCurl, asPython, body } from "./request.js";
import * as store from "./store.js";

const SETTINGS = "lean_ovms.settings";
let conversations = [];
let current = fresh();
let running = null; // the AbortController of the answer that arrives
let images = [];

function fresh() {
  return { id: crypto.randomUUID ? crypto.randomUUID() : String(Math.random()), title: "", changed: Date.now(), messages: [] };
}

export async function start() {
  restoreSettings();
  byId("composer").onsubmit = (event) => {
    event.preventDefault();
    send();
  };
  byId("text").onkeydown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  };
  byId("stop").onclick = () => running?.abort();
  byId("new").onclick = () => show(fresh());
  byId("copy-curl").onclick = () => copyRequest(asCurl);
  byId("copy-python").onclick = () => copyRequest(asPython);
  startImages();
  startFiles();
  conversations = await store.all().catch(() => []);
  show(conversations[0] || fresh());
}

export function setVision(sees) {
  byId("attach").hidden = !sees;
  if (!sees) setImages([]);
}

// --- settings

export function settings() {
  const found = {};
  for (const field of byId("settings").querySelectorAll("[name]")) found[field.name] = field.type === "checkbox" ? field.checked : field.value;
  return found;
}

function restoreSettings() {
  const kept = JSON.parse(localStorage.getItem(SETTINGS) || "{}");
  for (const field of byId("settings").querySelectorAll("[name]")) {
    if (!(field.name in kept)) continue;
    if (field.type === "checkbox") field.checked = kept[field.name];
    else field.value = kept[field.name];
  }
  byId("settings").onchange = () => localStorage.setItem(SETTINGS, JSON.stringify(settings()));
  if (window.matchMedia("(min-width: 60rem)").matches) byId("settings").open = true;
}

// --- conversations

function show(conversation) {
  running?.abort();
  current = conversation;
  draw();
  list();
}

function list() {
  const rows = conversations.map((conversation) => {
    const open = make("button", { type: "button", textContent: conversation.title || "New chat", ariaPressed: String(conversation === current) });
    open.onclick = () => show(conversation);
    const remove = make("button", { type: "button", textContent: "×", ariaLabel: `Delete ${conversation.title}` });
    remove.onclick = async () => {
      await store.remove(conversation.id);
      conversations = conversations.filter((one) => one !== conversation);
      if (conversation === current) show(fresh());
      else list();
    };
    return make("li", {}, open, remove);
  });
  byId("conversations").replaceChildren(...rows);
}

async function keep() {
  current.changed = Date.now();
  current.title ||= (current.messages[0]?.content || "").slice(0, 60);
  conversations = [current, ...conversations.filter((one) => one !== current)];
  list();
  await store.save(current).catch((error) => showProblem(`The conversation was not kept: ${error.message}`));
}

const actions = {
  edit(message, text) {
    current.messages = current.messages.slice(0, current.messages.indexOf(message));
    ask({ ...message, content: text });
  },
  again(message) {
    const kept = current.messages.indexOf(message) + (message.role === "assistant" ? 0 : 1);
    current.messages = current.messages.slice(0, kept);
    answer();
  },
  answerCall(message, call, text) {
    message.answered = [...(message.answered || []), call.id];
    current.messages.push({ role: "tool", callId: call.id, content: text });
    if (message.calls.every((one) => message.answered.includes(one.id))) answer();
    else draw();
  },
};

function draw() {
  const box = byId("messages");
  const shown = running ? null : actions;
  box.replaceChildren(...current.messages.map((message) => render(message, shown)));
  box.scrollTop = box.scrollHeight;
}

// --- an answer

function send() {
  const text = byId("text").value;
  if (running || (!text.trim() && !images.length)) return;
  byId("text").value = "";
  ask({ role: "user", content: text, images });
  setImages([]);
}

function ask(message) {
  current.messages.push(message);
  answer();
}

async function answer() {
  let request;
  try {
    request = body(byId("model").value, current.messages, settings());
  } catch (error) {
    draw();
    return showProblem(error.message);
  }
  const conversation = current;
  const message = { role: "assistant", content: "" };
  for (const one of conversation.messages) delete one.failed;
  conversation.messages.push(message);
  running = new AbortController();
  setRunning(true);
  const redraw = painter(message);
  try {
    await keep();
    await stream(request, message, redraw, running.signal);
    showProblem("");
  } catch (error) {
    const empty = !message.content && !message.reasoning && !message.calls;
    if (empty) conversation.messages.pop();
    if (empty || error.name !== "AbortError") fail(empty ? conversation.messages.at(-1) : message, error);
  }
  running = null;
  setRunning(false);
  if (conversation === current) draw();
  await store.save(conversation).catch(() => {});
}

// The message that got no whole answer says why, and when to try again.
function fail(message, error) {
  const text = error instanceof ServerError ? error.text : error.name === "AbortError" ? "Stopped." : "The connection was lost.";
  if (message) message.failed = { text, until: Date.now() + 1000 * (error.retryAfter || 0) };
  else showProblem(text);
}

// Redraws the last message at most once a frame, and follows its end unless the reader has scrolled up.
function painter(message) {
  const box = byId("messages");
  draw();
  let due = false;
  return () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      if (current.messages.at(-1) !== message || !running) return;
      const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 80;
      box.lastElementChild.replaceWith(render(message, null));
      if (atEnd) box.scrollTop = box.scrollHeight;
    });
  };
}

function setRunning(now) {
  byId("send").disabled = now;
  byId("stop").disabled = !now;
  byId("messages").setAttribute("aria-busy", String(now));
}

function copyRequest(write) {
  const text = byId("text").value;
  const messages = text.trim() ? [...current.messages, { role: "user", content: text, images }] : current.messages;
  try {
    copy(write(body(byId("model").value, messages, settings()), Boolean(byId("key").value)));
    showProblem("");
  } catch (error) {
    showProblem(error.message);
  }
}

// --- images and files

function startImages() {
  byId("attach").onclick = () => byId("image-file").click();
  byId("image-file").onchange = (event) => addImages([...event.target.files]);
  byId("text").onpaste = (event) => addImages([...(event.clipboardData?.files || [])]);
  const composer = byId("composer");
  composer.ondragover = (event) => event.preventDefault();
  composer.ondrop = (event) => {
    event.preventDefault();
    addImages([...event.dataTransfer.files]);
  };
}

async function addImages(files) {
  if (byId("attach").hidden) return;
  const urls = await Promise.all(files.filter((file) => file.type.startsWith("image/")).map(asDataUrl));
  setImages([...images, ...urls]);
}

function asDataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

function setImages(urls) {
  images = urls;
  byId("attached").replaceChildren(
    ...urls.map((url, place) => {
      const remove = make("button", { type: "button", textContent: "×", ariaLabel: "Remove the image" });
      remove.onclick = () => setImages(images.filter((_, other) => other !== place));
      return make("span", {}, make("img", { src: url, alt: "image to send" }), remove);
    }),
  );
}

function startFiles() {
  byId("export").onclick = () => {
    const url = URL.createObjectURL(new Blob([JSON.stringify(conversations, null, 1)], { type: "application/json" }));
    make("a", { href: url, download: "conversations.json" }).click();
    URL.revokeObjectURL(url);
  };
  byId("import").onclick = () => byId("import-file").click();
  byId("import-file").onchange = async (event) => {
    try {
      const found = store.parseExport(await event.target.files[0].text());
      for (const conversation of found) await store.save(conversation);
      conversations = await store.all();
      show(conversations[0] || fresh());
    } catch (error) {
      showProblem(`The file cannot be imported: ${error.message}`);
    }
    event.target.value = "";
  };
}
