// Where a message is written: it grows with its text, and takes images, text files, and what features read.

import { explain, pathOf, postForm } from "./api.js";
import { byId, icon, iconButton, make, onEnter, showProblem, toast } from "./dom.js";
import { t } from "./i18n.js";

const MAX_HEIGHT = 260;
const MAX_FILE = 500_000; // bytes of a text file
let attached = { images: [], files: [] };
let sees = false;
const takers = new Map(); // of files: functions by the beginning of the media type

// send: called when the reader wants to.
export function start(send) {
  const [text, composer] = [byId("text"), byId("composer")];
  composer.addEventListener("submit", (event) => (event.preventDefault(), send()));
  onEnter(text, send);
  text.addEventListener("input", grow);
  text.addEventListener("paste", (event) => take([...(event.clipboardData?.files || [])]));
  composer.addEventListener("dragover", (event) => event.preventDefault());
  composer.addEventListener("drop", (event) => (event.preventDefault(), take([...event.dataTransfer.files])));
  byId("attach").addEventListener("click", () => byId("file-input").click());
  byId("file-input").addEventListener("change", (event) => (take([...event.target.files]), (event.target.value = "")));
}

// vision: whether the model takes images.
export function setInputs(vision) {
  sees = vision;
  const others = [...takers].filter(([, take]) => take).map(([type]) => `${type}*`);
  const kinds = [pathOf("read_pdf") ? "application/pdf" : "", sees ? "image/*" : "", ...others, "text/*,.md,.py,.js,.ts,.json,.csv,.yaml,.yml,.toml,.log,.sh,.c,.cpp,.h,.rs,.go,.java,.sql,.xml,.html,.css"];
  byId("file-input").accept = kinds.filter(Boolean).join(",");
  if (!sees) attached.images = [];
  draw();
}

// A feature's button beside the others.
export function addButton(button) {
  byId("attach").after(button);
}

// How a feature takes files. type: how their media types begin. take: gets a file and its name; without one it takes none now.
export function takeFiles(type, take) {
  takers.set(type, take);
  setInputs(sees);
}

// Puts a text that comes bit by bit behind what is written. read: gets a function that it calls with the text so far.
export async function write(read) {
  const field = byId("text");
  const before = field.value && !/\s$/.test(field.value) ? field.value + " " : field.value;
  const show = (text) => ((field.value = before + text), grow());
  show("…");
  try {
    await read(show);
  } catch (error) {
    show("");
    showProblem(explain(error));
  }
  field.focus();
}

// The message that is written. Nothing written: null.
export function written() {
  const content = byId("text").value;
  const { images, files } = attached;
  if (!content.trim() && !images.length && !files.length) return null;
  return { role: "user", content, ...(images.length ? { images } : {}), ...(files.length ? { files } : {}) };
}

export function clear() {
  byId("text").value = "";
  attached = { images: [], files: [] };
  draw();
  grow();
}

export function pickFile() {
  byId("attach").click();
}

// Puts a text behind what is written.
export function insert(text) {
  const field = byId("text");
  field.value = field.value.trim() ? `${field.value}\n\n${text}` : text;
  grow();
}

export function attachText(name, text) {
  attached.files.push({ name, text });
  draw();
}

function grow() {
  const text = byId("text");
  text.style.height = "auto";
  text.style.height = `${Math.min(MAX_HEIGHT, text.scrollHeight)}px`;
}

async function take(files) {
  for (const file of files) {
    const [, takes] = [...takers].find(([type, take]) => take && file.type.startsWith(type)) || [];
    if (takes) await takes(file, file.name);
    else if (file.type.startsWith("image/")) await takeImage(file);
    else if (isPdf(file) && pathOf("read_pdf")) await takePdf(file);
    else await takeText(file);
  }
  draw();
}

async function takeImage(file) {
  if (!sees) return showProblem(t("The model does not read images."));
  attached.images.push(await asDataUrl(file));
}

const isPdf = ({ name, type }) => type === "application/pdf" || name.toLowerCase().endsWith(".pdf");

// The server reads its text.
async function takePdf(file) {
  const form = new FormData();
  form.append("file", file, file.name);
  byId("attach").disabled = true;
  toast(t("Reading {name}…", { name: file.name }));
  try {
    const { text } = await (await postForm(pathOf("read_pdf"), form)).json();
    attachText(file.name, text);
    toast("");
  } catch (error) {
    showProblem(explain(error));
  }
  byId("attach").disabled = false;
}

async function takeText(file) {
  const text = file.size <= MAX_FILE ? await file.text() : "";
  if (file.size > MAX_FILE) return showProblem(t("{name} is larger than {n} kB.", { name: file.name, n: MAX_FILE / 1000 }));
  if (text.includes("\0") || text.includes("\ufffd")) return showProblem(t("{name} is not a text file.", { name: file.name }));
  attachText(file.name, text);
}

function asDataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}

function draw() {
  const chip = (inside, label, remove) => make("span", { className: "chip" }, ...inside, iconButton("close", label, () => (remove(), draw())));
  const images = attached.images.map((src, place) =>
    chip([make("img", { src, alt: t("image to send") })], t("Remove the image"), () => attached.images.splice(place, 1)),
  );
  const files = attached.files.map(({ name }, place) => chip([icon("file"), name], t("Remove {name}", { name }), () => attached.files.splice(place, 1)));
  byId("attached").replaceChildren(...images, ...files);
}
