"""A speech model from its directory, config.json and graph, in a child with the real engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lean_ovms.embed import opened
from lean_ovms.features.deployment.listing import servable
from lean_ovms.features.speech.model import SpeechModel
from lean_ovms.features.speech.params import (
    TextDelta,
    TranscribeParams,
    TurnDetection,
    TurnStarted,
    TurnStopped,
    WindowDone,
)
from tests.features.speech.child.words import EXACT, recordings, unpacked

pytestmark = pytest.mark.model

GRAPH = """
input_stream: "HTTP_REQUEST_PAYLOAD:input"
output_stream: "HTTP_RESPONSE_PAYLOAD:output"
node {
  name: "S2tExecutor"
  input_side_packet: "STT_NODE_RESOURCES:s2t_servable"
  calculator: "S2tCalculator"
  input_stream: "HTTP_REQUEST_PAYLOAD:input"
  output_stream: "HTTP_RESPONSE_PAYLOAD:output"
  node_options: { [type.googleapis.com / mediapipe.S2tCalculatorOptions]: {
    models_path: "./", enable_word_timestamps: true, plugin_config: '%s' } }
}
"""


async def blocks(*parts: bytes) -> AsyncIterator[bytes]:
    data = b"".join(parts)
    for at in range(0, len(data), 12345):
        yield data[at : at + 12345]


async def test_a_speech_model_is_served_by_its_graph(tmp_path: Path) -> None:
    model_dir = unpacked(tmp_path)
    (model_dir / "graph.pbtxt").write_text(GRAPH % EXACT)
    assert servable(tmp_path) == ["model"]
    (tmp_path / "config.json").write_text(
        json.dumps({"model_config_list": [], "mediapipe_config_list": [{"name": "words", "base_path": "model"}]})
    )
    silence = bytes(2 * 16000 * 2)
    spoken = ["up stop", "on on three six on"]
    data = recordings()
    async with opened(config_path=str(tmp_path)) as app:
        model = app.registry.get("words", SpeechModel)
        assert (model.speech.backend, model.speech.vad) == ("decode_loop", "silero")
        assert model.config.value("enable_word_timestamps")

        params = TranscribeParams(words=True, segments=True, fallback=False)
        events = [event async for event in model.transcribe(blocks(data[spoken[0]]), params)]
        [window] = [event for event in events if isinstance(event, WindowDone) and event.text]
        assert [word.word for word in window.words] == spoken[0].split()
        assert (window.language, len(window.segments)) == ("en", 1)

        live = TranscribeParams(turns=TurnDetection(), live=True, fallback=False)
        audio = blocks(silence, data[spoken[0]], silence, data[spoken[1]], silence)
        events = [event async for event in model.transcribe(audio, live)]
        windows = [event for event in events if isinstance(event, WindowDone)]
        assert len(windows) == sum(isinstance(event, TurnStarted) for event in events) == 2
        assert sum(isinstance(event, TurnStopped) for event in events) == 2
        assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "".join(
            window.text for window in windows
        )
        assert windows[0].text.split()[-1] == "stop"
        assert 1.5 < windows[0].start < 2.5
