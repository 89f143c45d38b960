// Panels for models that hear and models that speak.

import { ServerError, events, post, postForm } from "./api.js";
import { byId, copyButton, make, showProblem } from "./dom.js";
import { RATE_IN, joined, toSamples, toWav } from "./sound.js";

const RATE_OUT = 24000; // of response_format pcm
let running = null; // the AbortController of the request in work
let recorder = null;
let chosen = {}; // the model, as /v1/models has it
let readModels;

// read: lists the models again, and calls choose.
export function start(read) {
  readModels = read;
  byId("speak").onclick = () => run(speak);
  byId("speak-stop").onclick = () => running?.abort();
  byId("record").onclick = () => (recorder ? recorder.stop() : record().catch(failed));
  byId("audio-file").onchange = (event) => {
    const [file] = event.target.files;
    if (file) run((signal) => transcribe(file, file.name, signal));
    event.target.value = "";
  };
  byId("record").disabled = !navigator.mediaDevices; // a page that was not loaded by https or from this machine
  if (byId("record").disabled) byId("record").title = "Browsers allow the microphone on https pages and localhost only.";
}

export function choose(model) {
  chosen = model;
  const voices = model.voices; // of one that has been loaded
  const speaks = (model.output_modalities || []).includes("audio");
  byId("speak-panel").hidden = !speaks;
  byId("transcribe-panel").hidden = speaks;
  byId("voice").replaceChildren(...(voices?.voices || []).map((name) => make("option", { textContent: name })));
  byId("voice-field").hidden = !voices?.voices.length;
  byId("speed-field").hidden = !voices || voices.speed[0] === voices.speed[1];
  if (voices) [byId("speed").min, byId("speed").max] = voices.speed;
}

async function run(work) {
  running?.abort();
  const mine = (running = new AbortController());
  setRunning(true);
  try {
    await work(mine.signal);
    showProblem("");
    if (!chosen.voices && !chosen.speech) await readModels(); // it has been loaded
  } catch (error) {
    if (error.name !== "AbortError") failed(error);
  }
  if (running === mine) {
    running = null;
    setRunning(false);
  }
}

function setRunning(now) {
  byId("speak-stop").disabled = !now;
  byId("speech-state").textContent = now ? "Working…" : "";
}

const failed = (error) => showProblem(error instanceof ServerError ? error.text : error.message || "The connection was lost.");

// --- text to speech: each sentence is played as it arrives

async function speak(signal) {
  const request = { model: byId("model").value, input: byId("speak-text").value, response_format: "pcm", stream_format: "audio" };
  if (byId("voice").value) request.voice = byId("voice").value;
  if (!byId("speed-field").hidden && byId("speed").value) request.speed = Number(byId("speed").value);
  const began = performance.now();
  const answer = await post("v1/audio/speech", request, signal);
  const player = new AudioContext({ sampleRate: RATE_OUT });
  signal.addEventListener("abort", () => player.close());
  const pieces = [];
  let [rest, at, first] = [new Uint8Array(), 0, 0];
  const reader = answer.body.getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    first ||= performance.now();
    const bytes = joined([rest, value]);
    const whole = bytes.subarray(0, bytes.length - (bytes.length % 2));
    rest = bytes.slice(whole.length);
    if (!whole.length) continue;
    pieces.push(whole);
    at = play(player, toSamples(whole), at);
  }
  const sound = joined(pieces);
  byId("speak-result").replaceChildren(
    make("audio", { controls: true, src: URL.createObjectURL(toWav(sound, RATE_OUT)), ariaLabel: "Speech" }),
    make("p", { className: "cost", textContent: `${(sound.length / 2 / RATE_OUT).toFixed(1)} s of speech · first after ${(first - began).toFixed(0)} ms` }),
  );
}

// Schedules samples after those before; returns when they end.
function play(player, samples, at) {
  const buffer = player.createBuffer(1, samples.length, RATE_OUT);
  buffer.copyToChannel(samples, 0);
  const source = new AudioBufferSourceNode(player, { buffer });
  source.connect(player.destination);
  const starts = Math.max(at, player.currentTime + 0.05);
  source.start(starts);
  return starts + buffer.duration;
}

// --- transcription

// The microphone until the button is pressed again. It is sent as WAV, which every server reads.
async function record() {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const parts = [];
  recorder = new MediaRecorder(stream);
  recorder.ondataavailable = (event) => parts.push(event.data);
  recorder.onstop = () => {
    recorder = null;
    byId("record").textContent = "Record";
    byId("record").setAttribute("aria-pressed", "false");
    for (const track of stream.getTracks()) track.stop();
    run(async (signal) => transcribe(await asWav(new Blob(parts)), "recording.wav", signal));
  };
  recorder.start();
  byId("record").textContent = "Stop recording";
  byId("record").setAttribute("aria-pressed", "true");
}

async function asWav(blob) {
  const decoded = await new OfflineAudioContext(1, 1, RATE_IN).decodeAudioData(await blob.arrayBuffer());
  const samples = decoded.getChannelData(0);
  const bytes = new Int16Array(samples.map((sample) => Math.round(32767 * Math.max(-1, Math.min(1, sample)))));
  return toWav(new Uint8Array(bytes.buffer), RATE_IN);
}

async function transcribe(file, name, signal) {
  const form = new FormData();
  form.append("model", byId("model").value);
  form.append("stream", "true");
  if (byId("audio-language").value.trim()) form.append("language", byId("audio-language").value.trim());
  form.append("file", file, name);
  const path = byId("translate").checked ? "v1/audio/translations" : "v1/audio/transcriptions";
  const answer = await postForm(path, form, signal);
  const text = make("p", { className: "body" });
  byId("transcript").replaceChildren(text);
  for await (const event of events(answer)) {
    if (event.error) throw new ServerError(event.error.code || 500, event.error);
    if (event.type === "transcript.text.delta") text.textContent += event.delta;
    if (event.type === "transcript.text.done") text.textContent = event.text;
  }
  byId("transcript").append(copyButton("Copy", () => text.textContent));
}
