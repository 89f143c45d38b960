"""A conversation with speech in and out: the demo model, the small Whisper and SpeechT5, with OpenAI's client."""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from lean_ovms.config import DEMO_MODEL
from tests.archives import extract
from tests.e2e.conftest import LocalServer, local_server
from tests.features.speech.child.words import EXACT, recordings, unpacked
from tests.recordings import wav

VOICE = Path(__file__).parents[1] / "data" / "voice_model.zip"
SAID = "three five seven eight four zero"

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalServer]:
    """A server in this process with at most two of the three models in memory."""
    repository = tmp_path_factory.mktemp("repository")
    (repository / "chat").symlink_to(DEMO_MODEL)
    unpacked(tmp_path_factory.mktemp("speech")).rename(repository / "whisper")
    extract(VOICE, repository)
    options = {"model_repository_path": str(repository), "max_loaded_models": 2, "plugin_config": EXACT}
    async with local_server(**options, audio_input_model="whisper", audio_output_model="speecht5_tiny") as local:
        yield local
        await local.app.close()


async def test_the_transcript_is_the_prompts(local: LocalServer) -> None:
    data = base64.b64encode(wav(recordings()[SAID])).decode()
    part: Any = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    async with local.client() as client:

        async def answer(*content: Any) -> Any:
            messages: Any = [{"role": "user", "content": list(content)}]
            return await client.chat.completions.with_raw_response.create(
                model="chat", messages=messages, max_tokens=8, temperature=0
            )

        asked: Any = {"type": "text", "text": "Repeat:"}
        heard, read = await answer(asked, part), await answer(asked, {"type": "text", "text": SAID})
        assert heard.parse().choices[0].message == read.parse().choices[0].message
        assert heard.parse().usage.prompt_tokens == read.parse().usage.prompt_tokens
        assert "messages[0].content[1] is the transcript of" in heard.headers["warning"]
        assert "warning" not in read.headers
        items: Any = [{"role": "user", "content": [{"type": "input_text", "text": "Repeat:"}, part]}]
        response = await client.responses.create(model="chat", input=items, max_output_tokens=8, temperature=0)
        assert response.output_text == read.parse().choices[0].message.content


async def test_an_answer_is_spoken_whole_and_as_a_stream(local: LocalServer) -> None:
    async with local.client() as client:
        ask: Any = {
            "model": "chat",
            "messages": [{"role": "user", "content": "Hello"}],
            "modalities": ["text", "audio"],
            "max_tokens": 24,
            "temperature": 0,
        }
        read = await client.chat.completions.create(**{**ask, "modalities": ["text"]})
        whole = await client.chat.completions.create(**ask, audio={"voice": "ada", "format": "wav"})
        audio = whole.choices[0].message.audio
        assert audio is not None
        assert (whole.choices[0].message.content, audio.transcript) == (None, read.choices[0].message.content)
        with wave.open(io.BytesIO(base64.b64decode(audio.data))) as file:
            assert file.getframerate() == 16_000
            seconds = file.getnframes() / 16_000
        transcript, data = "", ""
        async for chunk in await client.chat.completions.create(
            **ask, audio={"voice": "ada", "format": "pcm16"}, stream=True
        ):
            if (part := chunk.choices[0].delta.audio) is not None:
                transcript += part.transcript or ""
                data += part.data or ""
        assert transcript == audio.transcript
        assert len(base64.b64decode(data)) / 48_000 == pytest.approx(seconds, rel=0.01)
        async with client.chat.completions.stream(**ask, audio={"voice": "ada", "format": "pcm16"}) as stream:
            final = (await stream.get_final_completion()).choices[0].message.audio
        assert final is not None
        assert (final.transcript, len(base64.b64decode(final.data))) == (transcript, len(base64.b64decode(data)))
