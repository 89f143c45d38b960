"""Reads the body of a chat request, and builds the choices of its response.

https://platform.openai.com/docs/api-reference/chat
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ...api.fields import Field, Values
from ...api.generation.common_fields import (
    ADD_GENERATION_PROMPT,
    CHAT_TEMPLATE,
    CONTINUE_FINAL_MESSAGE,
    DOCUMENTS,
    LOGPROBS,
    MEDIA_IO_KWARGS,
    MESSAGES,
    PROMPT_LOGPROBS,
    RESPONSE_FIELDS,
    RESPONSE_FORMAT,
    STRUCTURED,
    TEMPLATE_KWARGS,
    TOOLS,
    TOP_LOGPROBS,
    UNSUPPORTED,
    audio_in,
    token_limit,
)
from ...api.generation.request import BodyReader, GenerationBody, ToolOffer, read_offer
from ...api.generation.sampling import SAMPLING, GenerationFields, LogprobsRequest
from ...api.response import logprob_entry
from ...api.schemas import FUNCTION, VOICE, any_of, array, object_of
from ...api.services import Services
from ...composition import Composition
from ...errors import BadRequest
from ...manifest import SPOKEN_ANSWERS
from ...models.generation import CompletedChoice, DeltaStream, Generation
from ...types import ChatPrompt, Delta, Json, TokenLogprob
from .chunks import ChunkOptions, Envelope
from .messages import chat_prompt, read_messages

MAX_TOKENS = token_limit("max_completion_tokens", "(OpenAI) newer name of max_tokens, which has precedence over it")

FUNCTION_FINISH = "function_call"
"""The finish reason of an answer that calls one of `functions`."""


def _functions(value: list[Any]) -> list[Json]:
    for place, function in enumerate(value):
        param = f"functions[{place}]"
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise BadRequest("Each function must be an object with a name", param=param)
        if not isinstance(function.get("parameters"), dict | None):
            raise BadRequest("Function parameters are not a valid JSON object", param=f"{param}.parameters")
    return value


def _function_call(value: Any) -> str | Json:
    """Converts the value of function_call to tool_choice. Raises BadRequest."""
    if value in ("none", "auto"):
        return str(value)
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str):
        raise BadRequest("function_call must be 'none', 'auto' or an object with a name", param="function_call")
    return {"type": "function", "function": {"name": name}}


FUNCTION_FIELDS = (
    Field("functions", "array",
        "(OpenAI) older form of tools, which has precedence; calls are returned in function_call",
        read=_functions, schema=array(FUNCTION)),
    Field("function_call", "any",
        "(OpenAI) older form of tool_choice: none, auto or an object with a name", read=_function_call,
        schema=any_of({"enum": ["none", "auto"]}, object_of({"name": {"type": "string"}}))),
)  # fmt: skip


def read_functions(values: Values) -> tuple[list[Json], str | Json] | None:
    """Converts the old functions and function_call to tools and tool_choice; None without them. Raises BadRequest."""
    if not values["functions"] or values["tools"] is not None:
        return None
    names = [function["name"] for function in values["functions"]]
    tools = [{"type": "function", "function": function} for function in values["functions"]]
    choice = values["function_call"] or "auto"
    if isinstance(choice, dict) and (name := choice["function"]["name"]) not in names:
        raise BadRequest(f"function_call names {name!r}, which is not in functions", param="function_call")
    return tools, choice


AUDIO_FORMATS = ("wav", "mp3", "flac", "opus", "pcm16")

SPOKEN_FIELDS = (
    replace(UNSUPPORTED.named("modalities"), seam=SPOKEN_ANSWERS,
        help='["text", "audio"] also returns the answer as speech',
        schema={"items": {"enum": ["text", "audio"]}}),
    Field("audio", "object", "voice and format of a spoken answer: wav, mp3, flac, opus or pcm16; streams have pcm16",
        seam=SPOKEN_ANSWERS, read=audio_in(AUDIO_FORMATS),
        schema={"properties": {"format": {"enum": list(AUDIO_FORMATS)}, "voice": VOICE}}),
)  # fmt: skip
"""The fields of a chat or Responses request whose answer is spoken."""


class ChunkedAudio(Protocol):
    """Makes the `delta` objects with audio in the stream of a spoken chat answer."""

    def transcript(self, text: str) -> bytes:
        """Returns the `delta` object for new text of the transcript."""

    def of(self, delta: Delta) -> Iterator[bytes]:
        """Yields the `delta` objects for new audio samples, and the last one at the end."""


class AudioPieces(Protocol):
    """Encodes audio samples in base64 in pieces that clients may join before they decode them."""

    def add(self, samples: bytes) -> Iterator[str]:
        """Yields the encoded pieces of new samples."""

    def rest(self) -> str:
        """Returns the last piece, which may be empty."""


class AnswerAudio(Protocol):
    """The voice and audio format of a spoken answer."""

    def with_speech(self, deltas: DeltaStream) -> DeltaStream:
        """Returns the deltas of an answer with its audio added."""

    def file(self, samples: bytes) -> bytes:
        """Returns the complete audio file. Raises BadRequest if the format is not available."""

    def message(self, transcript: str, samples: bytes) -> Json:
        """Returns the `audio` member of a chat message."""

    def with_audio(self, response: Json, samples: bytes) -> Json:
        """Returns a response object with the audio added to its message."""

    def deltas(self) -> ChunkedAudio:
        """Returns a renderer for the audio of a streamed chat answer."""

    def pieces(self) -> AudioPieces:
        """Returns an encoder for the audio of a streamed response of the Responses API."""


def read_spoken(
    values: Values, generation: GenerationBody, services: Services
) -> tuple[GenerationBody, AnswerAudio | None]:
    """Returns the generation and the audio of its answer, None for an answer in text alone. Raises RequestError.

    If the model itself speaks, the generation has its voice.
    """
    wanted = values["modalities"] or values["audio"]
    read = services.config.part(SPOKEN_ANSWERS) if wanted else None
    found: tuple[GenerationBody, AnswerAudio | None] = (
        (generation, None) if read is None else read(values, generation, services)
    )
    return found


def deltas_of(deltas: DeltaStream, answer: AnswerAudio | None) -> DeltaStream:
    """Returns the deltas of an answer; if the answer is spoken, with its audio."""
    return deltas if answer is None else answer.with_speech(deltas)


FIELDS = (
    replace(MESSAGES, required=True),
    *TOOLS,
    *FUNCTION_FIELDS,
    RESPONSE_FORMAT,
    MAX_TOKENS,
    LOGPROBS,
    TOP_LOGPROBS,
    PROMPT_LOGPROBS,
    TEMPLATE_KWARGS,
    Field("reasoning_effort", "string",
        "sets reasoning_effort for the chat template, and enable_thinking, which is false for none"),
    Field("verbosity", "string", "passed to the chat template"),
    ADD_GENERATION_PROMPT,
    CONTINUE_FINAL_MESSAGE,
    DOCUMENTS,
    CHAT_TEMPLATE,
    *SPOKEN_FIELDS,
    MEDIA_IO_KWARGS,
    Field("include_reasoning", "bool", "false leaves out the model's reasoning", default=True),
    Field("add_special_tokens", "bool", "let the tokenizer add special tokens such as BOS", default=False),
)  # fmt: skip
ALL_FIELDS = GenerationFields((*RESPONSE_FIELDS, *FIELDS, *STRUCTURED, *SAMPLING))


@dataclass(slots=True)
class ChatRequest:
    """A parsed chat request. It is never changed."""

    prompt: ChatPrompt
    """The conversation."""
    generation: GenerationBody
    """The parameters of the generation."""
    options: ChunkOptions
    """The options for the form of the response."""
    functions: bool
    """Whether calls are written in the older form, as function_call."""
    audio: AnswerAudio | None
    """How the answer is spoken; None if it is not spoken."""

    def deltas(self, generation: Generation) -> DeltaStream:
        """Returns the deltas of a started generation, with audio if the answer is spoken."""
        return deltas_of(self.generation.deltas(generation), self.audio)


def parse_chat(body: Json, services: Services) -> ChatRequest:
    """Reads the body of a chat request. Raises RequestError."""
    reader = BodyReader(ALL_FIELDS, body, services, other_clients=True)
    values = reader.values
    reader.check_max_tokens(MAX_TOKENS.name)
    most = values[MAX_TOKENS.name]
    functions, offer, messages = conversation(values, services.config.composition)
    generation = reader.generation(
        {} if most is None else {"max_tokens": most},
        offer=offer,
        logprobs=LogprobsRequest(
            chosen=values["logprobs"], top=values["top_logprobs"] or 0, prompt=values["prompt_logprobs"]
        ),
        max_tokens_name=MAX_TOKENS.name,
    )
    prompt = chat_prompt(values, messages, offer.tools, add_special_tokens=values["add_special_tokens"])
    options = ChunkOptions.of(values, generation, services.config, single=generation.sampling.n == 1)
    generation, audio = read_spoken(values, generation, services)
    return ChatRequest(prompt, generation, options, functions, audio)


def conversation(values: Values, composition: Composition) -> tuple[bool, ToolOffer, list[Json]]:
    """Returns whether calls are in the older form, and the tools and messages of the body. Raises BadRequest."""
    functions = read_functions(values)
    tools, choice = functions or (values["tools"], values["tool_choice"])
    offer = read_offer(tools, choice, values["parallel_tool_calls"] if functions is None else False)
    return functions is not None, offer, read_messages(values["messages"], composition)


def envelope(chat: ChatRequest, kind: str = "chat.completion") -> Envelope:
    """Returns the members that the response and its chunks have besides the choices."""
    return Envelope(id=chat.options.response_id("chatcmpl"), model=chat.generation.model.name, object=kind)


def choice(chat: ChatRequest, index: int, answer: CompletedChoice) -> Json:
    """Returns one choice of a chat.completion object."""
    message: Json = {"content": answer.text, "role": chat.generation.model.config.response_role}
    if answer.reasoning and chat.options.reasoning:
        message["reasoning_content"] = message["reasoning"] = answer.reasoning
    if chat.audio is not None and answer.text:
        message |= {"content": None, "audio": chat.audio.message(answer.text, b"".join(answer.audio))}
    message |= _calls(chat, answer)
    if message["tool_calls"]:
        message.setdefault("reasoning", None)  # vLLM's clients read this field, and send it back with the calls
    found: Json = {
        "finish_reason": finish_reason(chat, answer.finish, called=bool(answer.calls) and not answer.broken_call),
        "index": index,
        "logprobs": chat_logprobs(answer.logprobs, chat.options) if chat.generation.sampling.logprobs else None,
        "message": message,
    }
    if answer.stop is not None:
        found["stop_reason"] = answer.stop
    if chat.options.token_ids:
        found["token_ids"] = answer.tokens
    return found


def _calls(chat: ChatRequest, answer: CompletedChoice) -> Json:
    """Returns the members of a message that contain its calls."""
    functions = [{"name": call.name, "arguments": call.arguments} for call in answer.calls]
    if chat.functions and functions:
        return {"tool_calls": [], "function_call": functions[0]}
    calls = zip(answer.calls, functions, strict=True)
    return {"tool_calls": [{"id": call.id, "type": "function", "function": function} for call, function in calls]}


def finish_reason(chat: ChatRequest, reason: str, *, called: bool) -> str:
    """Returns OpenAI's finish_reason for a choice.

    Args:
        chat: The request.
        reason: The engine's reason for the end of the text.
        called: Whether the choice has tool calls, all of which are complete; a client that relies on the reason must
            not run half a call.
    """
    if not called or reason != "stop":
        return reason
    return FUNCTION_FINISH if chat.functions else "tool_calls"


def chat_logprobs(tokens: list[TokenLogprob], options: ChunkOptions) -> Json:
    """Returns the member `logprobs` of a choice or of a chunk's choice."""
    return {"content": [logprob_entry(token, by_id=options.named_by_id) for token in tokens]}
