// The microphone, and what a model for transcription hears in it or in a file.

import { events, postForm } from "../api.js";
import { toWav } from "../sound.js";

const RATE_IN = 16000; // that models hear

// A page that was not loaded by https or from this machine has no microphone.
export const hasMicrophone = () => Boolean(navigator.mediaDevices);

// Starts to record. Returns a function that ends it and returns a WAV file, which every server reads.
export async function record() {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const parts = [];
  const recorder = new MediaRecorder(stream);
  recorder.addEventListener("dataavailable", (event) => parts.push(event.data));
  const stopped = new Promise((done) => recorder.addEventListener("stop", done));
  recorder.start();
  return async () => {
    recorder.stop();
    await stopped;
    for (const track of stream.getTracks()) track.stop();
    return asWav(new Blob(parts));
  };
}

async function asWav(blob) {
  const decoded = await new OfflineAudioContext(1, 1, RATE_IN).decodeAudioData(await blob.arrayBuffer());
  const samples = decoded.getChannelData(0);
  const bytes = new Int16Array(samples.map((sample) => Math.round(32767 * Math.max(-1, Math.min(1, sample)))));
  return toWav(new Uint8Array(bytes.buffer), RATE_IN);
}

// Calls shown with the text so far. fields: more of the form.
export async function transcribe(file, name, fields, shown, { translate = false, signal } = {}) {
  const form = new FormData();
  for (const [field, value] of Object.entries({ ...fields, stream: "true" })) if (value) form.append(field, value);
  form.append("file", file, name);
  let text = "";
  const answer = await postForm(translate ? "v1/audio/translations" : "v1/audio/transcriptions", form, signal);
  for await (const event of events(answer)) {
    if (event.type === "transcript.text.delta") text += event.delta;
    if (event.type === "transcript.text.done") text = event.text;
    shown(text);
  }
}
