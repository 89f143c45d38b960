// Conversations in this browser's IndexedDB: they hold images, for which localStorage is too small.
// A conversation: { id, title, changed, settings, tip, messages: [{ role, parent, content, reasoning, calls, ... }] }.

import { asTree } from "./tree.js";

const NAME = "lean_ovms";
const TABLE = "conversations";
const ROLES = ["user", "assistant", "tool"];
const ID = /^[\w.-]{3,60}$/;
let opened;

export const fresh = (settings = {}) => ({ id: newId(), title: "", changed: Date.now(), settings, messages: [], tip: -1 });
const newId = () => (crypto.randomUUID ? crypto.randomUUID() : String(Math.random()));

function database() {
  opened ||= new Promise((resolve, reject) => {
    const asked = indexedDB.open(NAME, 1);
    asked.addEventListener("upgradeneeded", () => asked.result.createObjectStore(TABLE, { keyPath: "id" }));
    asked.addEventListener("success", () => resolve(asked.result));
    asked.addEventListener("error", () => reject(asked.error));
  });
  return opened;
}

async function run(mode, work) {
  const table = (await database()).transaction(TABLE, mode).objectStore(TABLE);
  return new Promise((resolve, reject) => {
    const asked = work(table);
    asked.addEventListener("success", () => resolve(asked.result));
    asked.addEventListener("error", () => reject(asked.error));
  });
}

export const save = (conversation) => run("readwrite", (table) => table.put(structuredClone(conversation)));
export const remove = (id) => run("readwrite", (table) => table.delete(id));

export const newestFirst = (conversations) => conversations.sort((one, other) => other.changed - one.changed);

// One that cannot be shown stays where it is.
export async function all() {
  const found = await run("readonly", (table) => table.getAll());
  return newestFirst(found.flatMap((entry) => {
    try {
      return [{ ...entry, ...checked(entry) }];
    } catch {
      return [];
    }
  }));
}

const isText = (value) => typeof value === "string";
const isFlag = (value) => typeof value === "boolean";
const listOf = (isOne) => (value) => Array.isArray(value) && value.every((one) => one && isOne(one));
// What a message may have, each with its test.
const FIELDS = {
  role: (value) => ROLES.includes(value), content: isText, parent: Number.isInteger, shown: Number.isInteger,
  reasoning: isText, model: isText, callId: isText, finish: isText, declined: isFlag, calledEnough: isFlag,
  left: Number.isInteger, thoughtMs: Number.isFinite, images: listOf(isText),
  files: listOf(({ name, text }) => isText(name) && isText(text)),
  calls: listOf((call) => isText(call.id) && isText(call.function?.name) && isText(call.function.arguments)),
  tokens: listOf(({ text, p, others }) => isText(text) && Number.isFinite(p) && listOf(([other]) => isText(other))(others)),
  cost: ({ prompt, completion, ttft, ...more }) => [prompt, completion, ttft, ...Object.values(more).map((value) => value ?? 0)].every(Number.isFinite),
  failed: ({ text, until }) => isText(text) && Number.isFinite(until),
};

// The messages, the end and the settings of a conversation, without what no version of this page knows. Throws if they
// cannot be shown.
function checked(entry) {
  const { messages: found, tip, settings } = asTree({ ...entry, messages: entry.messages || [] });
  const messages = found.map((message, place) => {
    const known = Object.entries(message).filter(([name, value]) => name in FIELDS && value !== null && value !== undefined);
    const wrong = known.find(([name, value]) => !FIELDS[name](value));
    if (wrong) throw new Error(`${wrong[0]} of a message is not valid`);
    const kept = Object.fromEntries(known);
    if (!("role" in kept && "content" in kept)) throw new Error("a message has no text");
    if (!(kept.parent >= -1 && kept.parent < place)) throw new Error("a message has no place");
    return kept;
  });
  if (tip < -1 || tip >= messages.length) throw new Error("a conversation has no end");
  const usable = Object.entries(settings || {}).filter(([, value]) => isText(value) || isFlag(value));
  return { messages, tip, settings: Object.fromEntries(usable) };
}

// What a conversation says, message by message: not what was shown of it, or how fast it came.
const said = ({ messages }) => messages.map(({ role, parent, content, reasoning, calls, callId, files, images }) => JSON.stringify([role, parent, content, reasoning, calls, callId, files, images]));
const begins = (start, whole) => start.length <= whole.length && start.every((text, place) => text === whole[place]);

// Of conversations of a file, those that say something that no kept one says. One that goes on with a kept one takes its
// place, another one with the same id gets its own.
export function unknown(found, kept) {
  const known = kept.map((one) => ({ id: one.id, texts: said(one) }));
  const fresh = [];
  for (const one of found) {
    const texts = said(one);
    if (known.some((other) => begins(texts, other.texts))) continue;
    const same = known.find((other) => other.id === one.id);
    if (same && !begins(same.texts, texts)) one.id = newId();
    known.push({ id: one.id, texts });
    fresh.push(one);
  }
  return fresh;
}

// The conversations of an exported file. Throws for another file.
export function parseExport(text) {
  const found = JSON.parse(text);
  if (!Array.isArray(found)) throw new Error("the file is not a list of conversations");
  return found.map((entry) => {
    const id = ID.test(entry.id ?? "") ? { id: entry.id } : {};
    const changed = Number.isFinite(entry.changed) ? { changed: Math.min(entry.changed, Date.now()) } : {};
    return { ...fresh(), ...checked(entry), ...id, ...changed, title: String(entry.title || "") };
  });
}
