// Requests to this server, and to no other.

import { byId } from "./dom.js";

const KEY = "lean_ovms.key";

export const address = (path) => new URL(path, document.baseURI).href;

export function restoreKey() {
  byId("key").value = sessionStorage.getItem(KEY) || "";
  byId("key").onchange = () => sessionStorage.setItem(KEY, byId("key").value);
}

export function headers(more = {}) {
  const key = byId("key").value;
  return key ? { ...more, Authorization: "Bearer " + key } : more;
}

// retryAfter: seconds, 0 if the server named none.
export class ServerError extends Error {
  constructor(status, error, retryAfter = 0) {
    super(error.message || "status " + status);
    this.status = status;
    this.retryAfter = retryAfter;
    this.field = error.param || "";
  }

  get text() {
    return this.field ? `${this.message} (field: ${this.field})` : this.message;
  }
}

async function failure(answer) {
  let error = {};
  try {
    error = (await answer.json()).error || {};
  } catch {
    error = { message: `the server answered with status ${answer.status}` };
  }
  return new ServerError(answer.status, error, Number(answer.headers.get("Retry-After")) || 0);
}

export async function get(path) {
  const answer = await fetch(address(path), { headers: headers() });
  if (!answer.ok) throw await failure(answer);
  return answer.headers.get("content-type").includes("json") ? answer.json() : answer.text();
}

export async function post(path, body, signal) {
  const options = { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body), signal };
  const answer = await fetch(address(path), options);
  if (!answer.ok) throw await failure(answer);
  return answer;
}

export async function postForm(path, form, signal) {
  const answer = await fetch(address(path), { method: "POST", headers: headers(), body: form, signal });
  if (!answer.ok) throw await failure(answer);
  return answer;
}

// The data of each server-sent event, parsed.
export async function* events(answer) {
  let rest = "";
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        yield JSON.parse(data);
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
