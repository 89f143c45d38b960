"""Transcription by a served model and its engine child against a bare WhisperPipeline, the same windows in turns.

Without HTTP: audio goes into SpeechModel.transcribe, as the endpoints do it. Without --model_path the small Whisper of
tests/data is measured, whose windows are so short that this is mostly the cost around the networks.
"""

from __future__ import annotations

import asyncio
import base64
import tempfile
import time
import wave
import zipfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from bench import figures
from bench.processes import ROOT, KvBudget, Worker, closing
from bench.report import Report, options, tick
from lean_ovms.config import Config
from lean_ovms.models.factory import make
from lean_ovms.models.speech_model import SpeechModel
from lean_ovms.speech_types import TextDelta, TranscribeParams, WindowDone

ZIP = ROOT / "tests" / "data" / "whisper_words.zip"
CLIENTS = 8
GAP = bytes(2 * 4800)


def main(argv: Sequence[str]) -> None:
    """One row for each case and contestant; then the ratios to the bare pipeline."""
    parser = options("speech", __doc__)
    parser.add_argument("--model_path", default="", help="a Whisper model; empty: the one of the tests")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=4, help="times that each recording is a window")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(ZIP) as file:
            file.extractall(folder)
        path = args.model_path or f"{folder}/model"
        windows = [frames(name) for name in sorted(Path(folder, "speech").glob("*.wav"))] * args.repeat
        report = Report("speech", args)
        with closing(bare := Worker("bare_speech", path)):
            asyncio.run(measured(report, args.rounds, path, windows, bare))


def frames(path: Path) -> bytes:
    """The samples of a file, with silence around them."""
    with wave.open(str(path)) as sound:
        return GAP + sound.readframes(sound.getnframes()) + GAP


async def measured(report: Report, rounds: int, path: str, windows: list[bytes], bare: Worker) -> None:
    """All rounds, and the table."""
    model = make(Config(model_path=path, task="speech2text"))
    assert isinstance(model, SpeechModel)
    await model.load()
    seen: dict[tuple[str, str], list[float]] = {}
    try:
        with report.progress(rounds + 1, "warming up") as bar:
            for number in range(rounds + 1):
                for case, found in (await once(model, windows, bare)).items():
                    for who, value in found.items():
                        if number:
                            seen.setdefault((case, who), []).append(value)
                tick(bar, f"round {number + 1}")
    finally:
        await model.stop()
    for (case, who), values in seen.items():
        limit = seen.get((case, "bare"))
        ratio = {"ratio": figures.ratios(values, limit)} if who != "bare" and limit else {}
        report.row(case=case, who=who, value=figures.spread(values), **ratio)
    report.table("windows per second; ms where the case says so", ("case", "who", "value", "ratio"))


async def once(model: SpeechModel, windows: list[bytes], bare: Worker) -> dict[str, dict[str, float]]:
    """One round of every case: figures by contestant."""
    found: dict[str, dict[str, float]] = {}
    encoded = [base64.b64encode(one).decode() for one in windows]
    for timed in (False, True):
        name = "with times" if timed else "plain"
        limit = bare.ask({"windows": encoded, "timed": timed})
        params = TranscribeParams(segments=timed, fallback=False)
        for case, clients in (("one client", 1), (f"{CLIENTS} clients", CLIENTS)):
            budget = KvBudget({"engine": model.engine.pid or 0})
            began, before = time.perf_counter(), time.process_time()
            await asyncio.gather(*(client(model, windows[at::clients], params) for at in range(clients)))
            seconds, front = time.perf_counter() - began, time.process_time() - before
            rate = found.setdefault(f"{name}, {case}", {})
            rate["bare"], rate["lean_ovms"] = len(windows) / limit["seconds"], len(windows) / seconds  # type: ignore[operator]
            cost = found.setdefault(f"{name}, {case}, CPU ms a window", {})
            cost["bare"] = 1e3 * limit["cpu"] / len(windows)  # type: ignore[operator]
            cost["lean_ovms"] = 1e3 * (budget.since()["engine"] + front) / len(windows)
            cost["front end of it"] = 1e3 * front / len(windows)
    found.update(await behind(model, windows))
    return found


async def client(model: SpeechModel, windows: list[bytes], params: TranscribeParams) -> None:
    """One request after the other."""
    for window in windows:
        await answered(model, window, params)


async def answered(model: SpeechModel, audio: bytes, params: TranscribeParams) -> tuple[float, float]:
    """Milliseconds until the first text, and until the end."""
    began, first = time.perf_counter(), 0.0
    async for event in model.transcribe(blocks(audio), params):
        if isinstance(event, (TextDelta, WindowDone)) and event.text and not first:
            first = time.perf_counter() - began
    return 1e3 * first, 1e3 * (time.perf_counter() - began)


async def blocks(audio: bytes) -> AsyncIterator[bytes]:
    """Seconds of audio."""
    for at in range(0, len(audio), 32000):
        yield audio[at : at + 32000]


async def behind(model: SpeechModel, windows: list[bytes]) -> dict[str, dict[str, float]]:
    """A long file alone, and a short request while it is transcribed."""
    params = TranscribeParams(fallback=False)
    long, short = b"".join(windows * 3), windows[0]
    alone = (await answered(model, short, params))[1]
    work = asyncio.ensure_future(answered(model, long, params))
    await asyncio.sleep(0.2)
    waited = (await answered(model, short, params))[1]
    first, _ = await work
    return {
        "a short request, ms": {"alone": alone, "behind a long file": waited},
        "first text of a long file, ms": {"lean_ovms": first},
    }
