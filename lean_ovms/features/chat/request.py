"""Reads the body of a chat request and checks its messages, and builds the choices of its response.

The chat template decides on the meaning of messages. The rules and the error texts are those of OVMS and OpenAI:
https://github.com/openvinotoolkit/model_server/blob/main/docs/model_server_rest_api_chat.md,
https://platform.openai.com/docs/api-reference/chat.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ...api.fields import Field, Values
from ...api.generation.common_fields import (
    ADD_GENERATION_PROMPT,
    CHAT_TEMPLATE,
    CONTINUE_FINAL_MESSAGE,
    DOCUMENTS,
    LOGPROBS,
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
    template_kwargs,
    token_limit,
)
from ...api.generation.sampling import SAMPLING, GenerationFields
from ...api.schemas import FUNCTION, VOICE, any_of, array, object_of
from ...api.services import Services
from ...composition import Composition
from ...errors import BadRequest, RequestError
from ...manifest import INPUT_EMBEDDINGS, SPOKEN_ANSWERS
from ...models.generation import CompletedChoice, DeltaStream, Generation
from ...types import ChatPrompt, Delta, Json, TokenLogprob, ToolOffer
from ...util.chunked_json import serialized
from .chunks import ChunkOptions, Envelope
from .generation import BodyReader, GenerationBody, read_offer
from .logprobs import LogprobsRequest, logprob_entry


@contextmanager
def errors_of_input(param: str) -> Iterator[None]:
    """Sets the field of each error of a message to `param`, as the client has not sent the messages in this form."""
    try:
        yield
    except RequestError as error:
        if error.param and error.param.startswith("messages"):
            error.param = param
        raise


def read_messages(value: Any, composition: Composition) -> list[Json]:
    """Reads the field `messages`, and converts older forms of messages to the current one. Raises BadRequest.

    Some features of the composition read content other than text.
    """
    if value is None:
        raise BadRequest("Messages missing in request", param="messages")
    if not isinstance(value, list):
        raise BadRequest("Messages are not an array", param="messages")
    if not value:
        raise BadRequest("Messages array cannot be empty", param="messages")
    messages = [_checked(message, f"messages[{index}]", composition) for index, message in enumerate(value)]
    lines = composition.changing_lines
    return _without_functions([_without_changing_line(message, lines) for message in messages])


def without_changing_line(text: str, lines: tuple[str, ...]) -> str:
    """Removes the first line of a system text if it begins with one of `lines`, since such lines always change."""
    return text.partition("\n")[2] if text.startswith(lines) else text


def _without_changing_line(message: Json, lines: tuple[str, ...]) -> Json:
    content = message.get("content")
    if message["role"] != "system" or not content:
        return message
    if isinstance(content, str):
        return {**message, "content": without_changing_line(content, lines)}
    parts = []
    for part in content:
        text = part.get("text")
        kept = without_changing_line(text, lines) if isinstance(text, str) else text
        if kept or kept == text:
            parts.append(part if kept == text else {**part, "text": kept})
    return {**message, "content": parts}


def _without_functions(messages: list[Json]) -> list[Json]:
    """Converts OpenAI's old function calling to tool calls: function_call of an assistant, and the role function."""
    if not any(m["role"] == "function" or m.get("function_call") for m in messages):
        return messages
    found, number = [], 0
    for message in messages:
        if call := message.get("function_call"):
            number += 1
            calls = [{"id": f"call_{number}", "type": "function", "function": call}]
            message = {**message, "tool_calls": message.get("tool_calls") or calls}
            del message["function_call"]
        elif message["role"] == "function":
            message = {**message, "role": "tool", "tool_call_id": f"call_{number}"}
        found.append(message)
    return found


def _checked(message: Any, param: str, composition: Composition) -> Json:
    """Checks a message, and returns it with its content parts in chat's form. Raises BadRequest."""
    if not isinstance(message, dict):
        raise BadRequest("Message is not a JSON object", param=param)
    if not isinstance(message.get("role"), str):
        raise BadRequest("Every message must have 'role' field", param=f"{param}.role")
    content = message.get("content")
    if message.get("audio") and not content and not message.get("tool_calls"):
        raise BadRequest("spoken answers are not stored; send the transcript as content", param=f"{param}.audio")
    if isinstance(content, list):
        from .content import checked_part  # late: text is mostly a string

        tool = message["role"] in ("tool", "function")
        places = [f"{param}.content[{index}]" for index in range(len(content))]
        pairs = zip(content, places, strict=True)
        parts = [checked_part(part, at, composition, of_tool=tool) for part, at in pairs]
        message = {**message, "content": parts}
    elif content is not None and not isinstance(content, str):
        raise BadRequest("Message content must be a string, an array or null", param=f"{param}.content")
    elif content is None and isinstance(message.get("refusal"), str):
        message = {**message, "content": message["refusal"]}
    checked: Json = _with_functions(message)
    _check_calls(checked, param)
    return checked


def _with_functions(message: Json) -> Json:
    """Converts a message's calls of OpenAI's custom tools, which take a text, to calls of functions."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not any(isinstance(call, dict) and "custom" in call for call in calls):
        return message
    return {**message, "tool_calls": list(map(_as_function, calls))}


def _as_function(call: Any) -> Any:
    custom = call.get("custom") if isinstance(call, dict) else None
    if not isinstance(custom, dict) or not isinstance(custom.get("input"), str):
        return call
    function = {"name": custom.get("name"), "arguments": {"input": custom["input"]}}
    return {"id": call.get("id"), "type": "function", "function": function}


def _check_calls(message: Json, param: str) -> None:
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise BadRequest("tool_calls must be an array", param=f"{param}.tool_calls")
    old = message.get("function_call")
    if old is not None and not (isinstance(old, dict) and isinstance(old.get("name"), str)):
        raise BadRequest("function_call must be an object with a name", param=f"{param}.function_call")
    for call in calls or ():
        if not isinstance(call, dict):
            raise BadRequest("Each tool_call must be an object", param=f"{param}.tool_calls")
        if not isinstance(call.get("function"), dict):
            raise BadRequest("Each tool_call must have a 'function' object", param=f"{param}.tool_calls")
        if not isinstance(call["function"].get("name"), str):
            raise BadRequest("The function of each tool_call must have a name", param=f"{param}.tool_calls")


def chat_prompt(
    values: Values, messages: list[Json], tools: list[Json], *, add_special_tokens: bool = False
) -> ChatPrompt:
    """Makes the prompt for a chat template from a request's fields and the messages that read_messages returned.

    Raises BadRequest if the prompt is to end in two ways.
    """
    kwargs, continued = template_kwargs(values), values["continue_final_message"]
    add = kwargs.get("add_generation_prompt", values["add_generation_prompt"])
    if continued and add:
        text = "continue_final_message and add_generation_prompt cannot both be true"
        raise BadRequest(text, param="continue_final_message")
    return ChatPrompt(
        messages=messages,
        tools=tools,
        template_kwargs=kwargs,
        add_generation_prompt=values["add_generation_prompt"] is not False,
        continue_final_message=continued,
        add_special_tokens=add_special_tokens,
        template=values["chat_template"] or "",
        frames=values.get("media_io_kwargs") or {},
    )


def text_conversation(
    values: Values, no_images: str, composition: Composition, *, add_special_tokens: bool = False
) -> ChatPrompt:
    """Makes the prompt of a request that only needs the text of a conversation and generates nothing.

    Args:
        values: The values of the field messages and of the fields in OF_TEMPLATE.
        no_images: The text of the error for content such as images.
        composition: The features.
        add_special_tokens: Whether the tokenizer adds special tokens such as BOS.

    Raises:
        BadRequest: The conversation is not well-formed, or has content other than text.
    """
    from .content import refuse_media  # late: chats that generate need neither
    from .tools import read_tools

    tools, _ = read_tools(values["tools"], None)
    messages = read_messages(values["messages"], composition)
    refuse_media(messages, no_images, composition)
    return chat_prompt(values, messages, tools, add_special_tokens=add_special_tokens)


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


def _frames(value: Json) -> Json:
    """Returns how many frames of a video to read, in the form of ChatPrompt.frames. Raises BadRequest."""
    video = value.get("video")
    if video is None:
        return {}
    if not isinstance(video, dict):
        raise BadRequest("media_io_kwargs.video must be an object", param="media_io_kwargs.video")
    count, rate = video.get("num_frames"), video.get("fps")
    if count is not None and (type(count) is not int or count < -1 or count == 0):
        raise BadRequest(
            "media_io_kwargs.video.num_frames must be a positive integer or -1",
            param="media_io_kwargs.video.num_frames",
        )
    if rate is not None and (type(rate) not in (int, float) or not (0 < rate <= MAX_FPS or rate == -1)):
        raise BadRequest(
            f"media_io_kwargs.video.fps must be above 0 and at most {MAX_FPS}, or -1", param="media_io_kwargs.video.fps"
        )
    return {"num_frames": count, "fps": rate if rate != -1 else None}


MAX_FPS = 1000
MEDIA_IO_KWARGS = Field(
    "media_io_kwargs",
    "object",
    "(vLLM) video.num_frames: most frames read from a video; video.fps: most frames per second; other keys are ignored",
    read=_frames,
    seam=INPUT_EMBEDDINGS,
)
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
        called: Whether the choice has tool calls, all complete; clients must not run half a call.
    """
    if not called or reason != "stop":
        return reason
    return FUNCTION_FINISH if chat.functions else "tool_calls"


def chat_logprobs(tokens: list[TokenLogprob], options: ChunkOptions) -> Json:
    """Returns the member `logprobs` of a choice or of a chunk's choice, for chunked_json."""
    return {"content": serialized(logprob_entry(token, by_id=options.named_by_id) for token in tokens)}
