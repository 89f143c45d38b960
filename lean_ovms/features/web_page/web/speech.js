// Panels for models that hear and models that speak.

import { explain, post } from "./api.js";
import { byId, copyButton, make, showProblem } from "./dom.js";
import { hasMicrophone, record, transcribe } from "./hearing.js";
import { t } from "./i18n.js";
import { joined, toSamples, toWav } from "./sound.js";

const RATE_OUT = 24000; // of response_format pcm
let running = null; // the AbortController of the request in work
let stopRecording = null;
let chosen = {}; // the model, as /v1/models has it
let readModels;

// read: lists the models again, and calls choose.
export function start(read) {
  readModels = read;
  byId("speak").addEventListener("click", () => run(speak));
  byId("speak-stop").addEventListener("click", () => running?.abort());
  byId("record").addEventListener("click", () => toggleRecording().catch(failed));
  byId("audio-file").addEventListener("change", (event) => {
    const [file] = event.target.files;
    if (file) run((signal) => showTranscript(file, file.name, signal));
    event.target.value = "";
  });
  byId("record").disabled = !hasMicrophone();
  if (!hasMicrophone()) byId("record").title = t("Browsers allow the microphone on https pages and localhost only.");
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
  byId("speech-state").textContent = now ? t("Working…") : "";
}

const failed = (error) => showProblem(error.name === "NotAllowedError" ? error.message : explain(error));

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
    make("audio", { controls: true, src: URL.createObjectURL(toWav(sound, RATE_OUT)), ariaLabel: t("Speech") }),
    make("p", { className: "cost", textContent: t("{n} s of speech · first after {ms} ms", { n: (sound.length / 2 / RATE_OUT).toFixed(1), ms: (first - began).toFixed(0) }) }),
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

// The microphone until the button is pressed again.
async function toggleRecording() {
  const stop = stopRecording;
  stopRecording = stop ? null : await record();
  byId("record").textContent = stop ? t("Record") : t("Stop recording");
  byId("record").setAttribute("aria-pressed", String(!stop));
  if (stop) await run(async (signal) => showTranscript(await stop(), "recording.wav", signal));
}

async function showTranscript(file, name, signal) {
  const text = make("p", { className: "body" });
  byId("transcript").replaceChildren(text);
  const fields = { model: byId("model").value, language: byId("audio-language").value.trim() };
  await transcribe(file, name, fields, (heard) => (text.textContent = heard), { translate: byId("translate").checked, signal });
  byId("transcript").append(copyButton(() => text.textContent));
}
