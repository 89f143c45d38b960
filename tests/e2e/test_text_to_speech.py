"""A small random SpeechT5 with a graph, with OpenAI's client. Its speech is noise with a known length."""

from __future__ import annotations

import io
import wave
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
import pytest_asyncio

from tests.archives import extract
from tests.e2e.conftest import LocalServer, local_server

ZIP = Path(__file__).parents[1] / "data" / "voice_model.zip"
SAMPLES_PER_STEP = 512
GRAPH = """
input_stream: "HTTP_REQUEST_PAYLOAD:input"
output_stream: "HTTP_RESPONSE_PAYLOAD:output"
node {
  name: "T2sExecutor"
  calculator: "T2sCalculator"
  input_side_packet: "TTS_NODE_RESOURCES:t2s_servable"
  input_stream: "HTTP_REQUEST_PAYLOAD:input"
  output_stream: "HTTP_RESPONSE_PAYLOAD:output"
  node_options: {
    [type.googleapis.com / mediapipe.T2sCalculatorOptions]: {
      models_path: "./",
      target_device: "CPU",
      speed_min: 0.5
      voices: [ { name: "cleo", path: "cleo.bin" } ]
    }
  }
}
"""

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalServer]:
    folder = extract(ZIP, tmp_path_factory.mktemp("models"))
    model = folder / "speecht5_tiny"
    (model / "graph.pbtxt").write_text(GRAPH)
    (model / "cleo.bin").write_bytes((model / "voices" / "ada.bin").read_bytes())
    async with local_server(model_repository_path=str(folder)) as local:
        yield local


def steps(data: bytes) -> float:
    """Returns the number of decoder steps: as many as the model's files allow for the text."""
    with wave.open(io.BytesIO(data)) as file:
        assert file.getframerate() == 16_000
        return len(file.readframes(1 << 24)) / 2 / SAMPLES_PER_STEP


async def test_a_sentence_and_its_voices(local: LocalServer) -> None:
    async with local.client() as client:
        answer = await client.audio.speech.create(
            model="speecht5_tiny", voice="ada", input="hey.", response_format="wav"
        )
        ada = answer.content
        assert steps(ada) == 6  # one step each for the leading space, four letters, and the end
        for voice, same in (("cleo", True), ("ben", False)):
            other = await client.audio.speech.create(
                model="speecht5_tiny", voice=voice, input="hey.", response_format="wav"
            )
            assert (other.content == ada) is same
        with pytest.raises(openai.BadRequestError, match="available voices: default, ada, ben, cleo"):
            await client.audio.speech.create(model="speecht5_tiny", voice="alloy", input="hey.")
        with pytest.raises(openai.BadRequestError, match=r"between speed_min \(0.5\)"):
            await client.audio.speech.create(model="speecht5_tiny", voice="ada", input="hey.", speed=0.4)


async def test_sentences_are_streamed(local: LocalServer) -> None:
    text = "the quick brown fox jumps. the lazy dog does not."
    async with (
        local.client() as client,
        client.audio.speech.with_streaming_response.create(
            model="speecht5_tiny", voice="ben", input=text, response_format="pcm"
        ) as answer,
    ):
        assert answer.headers["content-type"] == "audio/pcm"
        data = b"".join([part async for part in answer.iter_bytes()])
    assert len(data) / 2 * 16_000 / 24_000 / SAMPLES_PER_STEP == pytest.approx(len(text) + 3, abs=2)
