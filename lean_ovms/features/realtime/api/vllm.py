"""vLLM's dialect (vllm/entrypoints/speech_to_text/realtime, 0.32): the client commits, then sends audio, then commits.

https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html, with later additions that vLLM's tests expect: the
confirmation of session.update, language, prompt and include in it, and the refusal of timestamps. Beyond vLLM, there is
sample_rate, and no session.update is needed if there is only one model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....api.fields import Field, FieldSet, read, read_one
from ....errors import BadRequest, RequestError
from ....types import Json
from ...speech.params import SpeechEvent, TextDelta, WindowDone
from .audio import RATES, AudioFormat
from .dialect import Said, audio_of, logprobs
from .session import Stream, TranscriptionSession
from .settings import LOGPROBS, MAX_PROMPT, Settings, shown


def _prompt(value: str) -> str:
    if len(value) > MAX_PROMPT:
        raise BadRequest(f"prompt has more than {MAX_PROMPT} characters", param="prompt")
    return value


def _include(values: list[str]) -> list[str]:
    for one in values:
        if one != LOGPROBS:
            raise BadRequest(f"include has {shown(one)}; it may only have {LOGPROBS!r}", param="include")
    return values


def _granularities(values: list[str]) -> list[str]:
    """Raises BadRequest with vLLM's codes for every granularity, so that clients do not wait for timestamps."""
    if not values:
        return values
    text, code = "this model does not support segment timestamps in a session", "unsupported_timestamp_granularity"
    if values[0] != "segment":
        text = f"timestamp_granularities has {shown(values[0])}; in a session it may only have 'segment'"
        code = "invalid_timestamp_granularity"
    raise BadRequest(text, param="timestamp_granularities", code=code)


UPDATE = FieldSet((
    Field("model", "string", "name of the model", default=""),
    Field("language", "string", "code of the language; detected if empty", default=""),
    Field("prompt", "string", "text that was said before the audio", default="", read=_prompt),
    Field("sample_rate", "int", "sample rate of the audio in Hz", default=16000, choices=RATES,
        outside=f"sample_rate must be one of: {', '.join(map(str, RATES))}"),
    Field("include", "array", f"[{LOGPROBS!r}] returns log probabilities", default=(), read=_include),
    Field("timestamp_granularities", "array", "", default=(), read=_granularities),
))  # fmt: skip
FINAL = Field("final", "bool", "true after the last audio", default=False)


@dataclass(slots=True)
class _Text(Said):
    """The text of one stream that has been sent, and its tokens."""

    stream: Stream | None = None
    """The stream; None before the first one."""
    prompt_tokens: int = 0
    """The number of tokens of the decoder's prompts."""
    tokens: int = 0
    """The number of tokens that the decoder has generated."""


class Vllm:
    """One client's session in vLLM's dialect."""

    def __init__(self, session: TranscriptionSession) -> None:
        self._session = session
        self._started = False  # whether a commit has started the transcription
        self._text = _Text()  # streams are transcribed one after another, so one text suffices
        session.settings = Settings(model=session.model_name, joined=True)

    async def handle(self, event: Json) -> None:
        session = self._session
        match event["type"]:
            case "session.update":
                await self._update(event)
            case "input_audio_buffer.append":
                audio, stream = audio_of(event), await session.open()
                if self._started:
                    stream.committed.set()
                await session.append(stream, audio)
            case "input_audio_buffer.commit":
                await self._commit(final=read_one(FINAL, event.get("final")))
            case _:
                if session.current is not None:
                    await session.drop_stream(session.current)
                self._started = False

    async def _update(self, event: Json) -> None:
        session = self._session
        given = {name.removesuffix("[]"): value for name, value in event.items()}
        values = read(UPDATE, given)
        if not values["model"] and not session.settings.model:
            raise BadRequest("Missing required field: model", param="model", code="invalid_event")
        await session.configure(
            replace(
                session.settings,
                model=(await session.model(values["model"])).name,
                language=values["language"],
                prompt=values["prompt"],
                format=AudioFormat(rate=values["sample_rate"]),
                logprobs=LOGPROBS in values["include"],
            )
        )
        await session.send({"type": "session.updated", "id": session.id, "model": session.settings.model})

    async def _commit(self, *, final: bool) -> None:
        session = self._session
        try:
            await session.model()
        except BadRequest as error:
            if error.code != "model_not_validated":
                raise
            message = "Model not validated. Make sure to validate the model by sending a session.update event."
            raise BadRequest(message, code="model_not_validated") from None
        self._started = not final
        if final:
            await session.close_stream(await session.open())
        elif session.current is not None:
            session.current.committed.set()

    async def refuse(self, error: RequestError, event: Json) -> None:
        code = error.code or ("invalid_event" if isinstance(error, BadRequest) else error.kind)
        await self._session.send({"type": "error", "error": error.message, "code": code})

    async def transcribed(self, stream: Stream, event: SpeechEvent) -> None:
        said = self._text_of(stream)
        if isinstance(event, TextDelta):
            await self._delta(said, event)
        elif isinstance(event, WindowDone):
            if rest := said.rest(event.text):
                await self._delta(said, TextDelta(rest))
            said.window = ""
            said.prompt_tokens += event.prompt_tokens
            said.tokens += event.tokens

    def _text_of(self, stream: Stream) -> _Text:
        if self._text.stream is not stream:
            self._text = _Text(stream=stream)
        return self._text

    async def _delta(self, said: _Text, event: TextDelta) -> None:
        text = said.add(event.text)
        if text:  # the event has log probabilities if they are wanted
            await self._session.send({"type": "transcription.delta", "delta": text, "logprobs": logprobs(event)})

    async def finished(self, stream: Stream) -> None:
        said = self._text_of(stream)
        usage = {
            "prompt_tokens": said.prompt_tokens,
            "total_tokens": said.prompt_tokens + said.tokens,
            "completion_tokens": said.tokens,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        }
        await self._session.send({"type": "transcription.done", "text": said.text, "usage": usage})

    async def failed(self, stream: Stream, error: RequestError) -> None:
        await self.refuse(error, {})

    def close(self) -> None:
        pass
