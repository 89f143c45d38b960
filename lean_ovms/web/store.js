// Conversations in this browser's IndexedDB: they hold images, for which localStorage is too small.
// A conversation: { id, title, changed, messages: [{ role, content, reasoning, calls, cost, ... }] }.

const NAME = "lean_ovms";
const TABLE = "conversations";
let opened;

function database() {
  opened ||= new Promise((resolve, reject) => {
    const asked = indexedDB.open(NAME, 1);
    asked.onupgradeneeded = () => asked.result.createObjectStore(TABLE, { keyPath: "id" });
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error);
  });
  return opened;
}

async function run(mode, work) {
  const table = (await database()).transaction(TABLE, mode).objectStore(TABLE);
  return new Promise((resolve, reject) => {
    const asked = work(table);
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error);
  });
}

export const save = (conversation) => run("readwrite", (table) => table.put(structuredClone(conversation)));
export const remove = (id) => run("readwrite", (table) => table.delete(id));

export async function all() {
  const found = await run("readonly", (table) => table.getAll());
  return found.sort((one, other) => other.changed - one.changed);
}

const ROLES = ["user", "assistant", "tool"];

// The conversations of an exported file. Throws for another file.
export function parseExport(text) {
  const found = JSON.parse(text);
  if (!Array.isArray(found)) throw new Error("the file is not a list of conversations");
  return found.map((entry) => {
    const messages = (entry.messages || []).filter((message) => ROLES.includes(message.role));
    if (!messages.every((message) => typeof message.content === "string")) throw new Error("a message has no text");
    return { id: crypto.randomUUID ? crypto.randomUUID() : String(Math.random()), title: String(entry.title || ""), changed: Date.now(), messages };
  });
}
