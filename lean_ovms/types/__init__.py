"""The dataclasses that packages pass to each other, in the order in which a request meets them. Read this file first.

    transport --Request--> api --Prompt, SamplingParams, OutputParams--> models --> engine
    transport <-Response-- api <------------- Delta, Usage ------------- models <-- engine

engine.py in this package has what an engine reports, audio.py the form of audio samples, and push.py how the pieces of
a stream are passed on. This module imports nothing else of the package, and its classes have no behaviour beyond
counting and copying. Token ids are plain ints ("tokens"), text is str, and bytes are what clients receive.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .push import Sink

# --- HTTP: between transports and api ------------------------------------------------------------------------------


class StoredBody(Protocol):
    """A request body that is stored in a file (util.spool)."""

    size: int
    """The size in bytes."""

    def read(self, start: int, size: int) -> bytes:
        """Returns at most `size` bytes, beginning at `start`. Raises OSError."""

    def fileno(self) -> int: ...

    def close(self) -> None:
        """Deletes the stored body. Idempotent."""


@dataclass(slots=True)
class Request:
    """A complete HTTP request. The transport has already enforced the size and time limits."""

    method: str
    """The HTTP method in upper case."""
    path: str
    """The path without the query, percent-decoded."""
    query: str = ""
    """The query as it was sent, without "?"."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The headers by lower-case name; the values of repeated headers are joined with ", "."""
    body: bytes = b""
    """The body; empty after it was parsed, to free its memory."""
    peer: str = ""
    """The client as host:port, for the access line."""
    upgrade: str = ""
    """The protocol to which the client asks to switch the connection, if the transport supports it; empty for none."""
    api_key: str = ""
    """An API key sent elsewhere than in a header for keys; empty for none."""
    spool: StoredBody | None = None
    """A large form, stored instead of in `body`. The code that answers the request must call `drop_body`."""
    on_behalf_of: str = ""
    """The name of the client for which the server itself makes the request. Transports never set it."""
    ids: tuple[str, ...] = ()
    """The texts in the path at the places of "{id}" in the route. Transports never set it."""

    @property
    def size(self) -> int:
        """The size of the body in bytes."""
        return len(self.body) if self.spool is None else self.spool.size

    def drop_body(self) -> None:
        """Frees the body. Idempotent."""
        self.body = b""
        if self.spool is not None:
            self.spool.close()


class ByteStream(Protocol):
    """A response body, produced while it is sent (a PushStream). Its owner closes it, sent or not."""

    async def push_to(self, sink: Sink[bytes]) -> None: ...

    async def aclose(self) -> None: ...


SWITCHING_PROTOCOLS = 101
"""The status of a `Switch`, and of no other response."""


@dataclass(slots=True)
class Response:
    """The response to a request."""

    status: int
    """The HTTP status."""
    headers: list[tuple[str, str]] = field(default_factory=list)
    """The headers."""
    body: bytes | ByteStream = b""
    """The body: bytes, which are sent with Content-Length, or a stream, which is sent in chunks."""
    close: bool = False
    """Whether the transport ends the connection after this response."""

    async def aclose(self) -> None:
        """Releases the resources of the body. The transport calls this exactly once in any case."""
        if not isinstance(self.body, bytes):
            await self.body.aclose()


class Switch(Response):
    """A response that switches the connection to another protocol.

    Its status is 101, or that of the error which a transport sends instead if it cannot switch.
    """

    __slots__ = ("on_close", "on_open", "on_send", "protocol")

    def __init__(self, protocol: str) -> None:
        """Creates the response for a protocol, given by its name in `Request.upgrade`."""
        super().__init__(SWITCHING_PROTOCOLS)
        self.protocol = protocol
        self.on_open: list[Callable[[], object]] = []
        """Functions called in the task that serves the connection, once it is switched."""
        self.on_send: list[Callable[[int], None]] = []
        """Functions called with the size in bytes of each message that is sent."""
        self.on_close: list[Callable[[], None]] = []
        """Functions called when the transport closes the response."""

    def head_lines(self, headers: Mapping[str, str]) -> str:
        """Returns additional headers that the protocol needs in the response, given those of the request."""
        return ""

    async def aclose(self) -> None:
        while self.on_close:
            self.on_close.pop()()


Handle = Callable[[Request], Awaitable[Response]]
"""The application as transports call it. It raises no RequestError; cancelling the awaiting task stops the work."""

# --- generation request: from api to models ------------------------------------------------------------------------

Json = dict[str, Any]
"""A JSON object received from a client or sent to one."""
SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")
"""The keywords of JSON Schema whose value maps names to schemas: https://json-schema.org/draft/2020-12."""
SCHEMA_LITERALS = ("enum", "const", "default", "examples")
"""The keywords of JSON Schema whose value is never a schema, whatever it looks like."""


@dataclass(frozen=True, slots=True)
class Image:
    """A decoded image, or the frames of a video."""

    height: int
    """The height in pixels."""
    width: int
    """The width in pixels."""
    pixels: bytes = field(repr=False)
    """The RGB bytes, height * width * 3 for each frame."""
    param: str = "messages"
    """The name of the request field that holds it, for errors."""
    digest: str = ""
    """The result of `content`, if it has been computed; otherwise empty."""
    times: tuple[float, ...] = ()
    """The time of each frame of a video in seconds; empty for an image."""
    seconds: float = 0.0
    """The duration of a video in seconds; 0 for an image."""

    def content(self) -> str:
        """Returns a digest of size, times and pixels. It takes 4 ms for a megapixel unless `digest` has it."""
        key = hashlib.blake2b(repr((self.height, self.width, self.seconds, self.times)).encode()).digest()
        return self.digest or hashlib.blake2b(self.pixels, digest_size=32, key=key).hexdigest()


def distinct_pixels(images: Sequence[Image]) -> list[bytes]:
    """Returns the pixels of each image, or b"" for one with the digest of an earlier one."""
    first = {image.digest: number for number, image in reversed([*enumerate(images)])}
    return [b"" if image.digest and first[image.digest] < at else image.pixels for at, image in enumerate(images)]


def all_pixels(digests: Sequence[str], pixels: Sequence[bytes]) -> list[bytes]:
    """Returns the pixels of each image, of which `distinct_pixels` left out some. Raises ValueError."""
    digests = digests or [""] * len(pixels)
    sent = {digest: each for digest, each in zip(digests, pixels, strict=True) if digest and each}
    return [each or sent.get(digest, b"") for digest, each in zip(digests, pixels, strict=True)]


IMAGE_TAG_START = "<ov_genai_"
"""The beginning of every placeholder that openvino_genai knows. No other text of a prompt may contain it."""
IMAGE_TAG = IMAGE_TAG_START + "image_{}>"
"""The placeholder for an image in a prompt's text, with its number from 0, in the notation of openvino_genai."""
AUDIO_TAG = IMAGE_TAG_START + "audio_{}>"
"""The placeholder for audio in a prompt's text, with its number from 0, in a notation of this package."""


@dataclass(slots=True)
class ChatPrompt:
    """A conversation for the model's chat template. It is not changed once it is built.

    If there are many texts, they are counted in a worker thread.
    """

    messages: list[Json]
    """OpenAI's message objects, validated."""
    tools: list[Json] = field(default_factory=list)
    """OpenAI's tool objects, validated."""
    template_kwargs: Json = field(default_factory=dict)
    """The client's chat_template_kwargs, without names that the server itself sets."""
    add_generation_prompt: bool = True
    """Whether the prompt ends with the header of an answer, if it does not end inside the last message."""
    continue_final_message: bool = False
    """Whether the prompt ends inside the last message, which the model continues."""
    add_special_tokens: bool = False
    """Whether the tokenizer adds special tokens such as BOS to the rendered text."""
    template: str = ""
    """The client's chat template; empty for the model's own."""
    images: tuple[Image, ...] = ()
    """The images, one for each tag of an image in the messages."""
    audio: tuple[bytes, ...] = ()
    """The audio samples, one item for each tag of audio in the messages."""
    frames: Json = field(default_factory=dict)
    """The client's choice of frames to read from videos: num_frames (-1 for all) and fps."""
    num_chars: int = field(init=False)
    """The number of characters in the texts of all messages, without image data."""
    other_chars: int = field(init=False)
    """The number of characters in tools, tool calls and template_kwargs, some of which a template may leave out."""
    shared_chars: int = field(init=False, default=0)
    """The number of characters in tools and template_kwargs, which several conversations of one request share."""
    has_parts: bool = field(init=False)
    """Whether the content of any message is a list of parts."""
    own_roles: frozenset[str] = frozenset()
    """The roles of messages that the server itself adds, which the template need not support."""

    def __post_init__(self) -> None:
        if self.tools or self.template_kwargs:
            self.shared_chars = num_chars(self.tools) + num_chars(self.template_kwargs)
        self._count_messages()

    def _count_messages(self) -> None:
        contents = [message.get("content") for message in self.messages]
        self.num_chars = sum(map(_num_chars, contents))
        self.other_chars = sum(num_chars(m) - num_chars(m.get("content")) for m in self.messages if len(m) > 2)
        self.other_chars += self.shared_chars
        self.has_parts = any(isinstance(content, list) for content in contents)

    def with_messages(self, messages: list[Json]) -> ChatPrompt:
        """Returns another conversation of the same request. Values that both share are not counted again."""
        prompt = copy.copy(self)
        prompt.messages = messages
        prompt._count_messages()
        return prompt

    def with_media(self, messages: list[Json], images: tuple[Image, ...], audio: tuple[bytes, ...] = ()) -> ChatPrompt:
        """Returns a copy whose messages have a tag for each image and audio. The value of num_chars does not change.

        Args:
            messages: The messages with tags.
            images: The images, in the order of the tags.
            audio: The audio samples, in the order of the tags.
        """
        prompt = copy.copy(self)
        prompt.messages, prompt.images, prompt.audio = messages, images, audio
        return prompt

    @property
    def render_cost(self) -> int:
        """The estimated cost of rendering in characters: 2000 for a message or a tool, 20 for a variable."""
        objects = len(self.messages) + len(self.tools)
        return self.num_chars + self.other_chars + 2000 * objects + 20 * len(self.template_kwargs)


def num_chars(value: Any) -> int:
    """Returns the characters in all texts of a JSON value, including names; any other value counts as one."""
    total, left = 0, [value]
    while left:
        inner = left.pop()
        if isinstance(inner, dict):
            left += [*inner, *inner.values()]
        elif isinstance(inner, list):
            left += inner
        else:
            total += len(inner) if isinstance(inner, str) else 1
    return total


def _num_chars(content: Any) -> int:
    if isinstance(content, str):
        return len(content)
    if isinstance(content, list):
        return sum(len(part["text"]) for part in content if isinstance(part.get("text"), str))
    return 0


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A text for the model to continue."""

    text: str
    """The text."""
    add_special_tokens: bool = True
    """Whether the tokenizer adds special tokens such as BOS."""


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids for the model to continue."""

    tokens: list[int]
    """The ids."""


Prompt = ChatPrompt | TextPrompt | TokenPrompt


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """The parameters with which the engine samples tokens. They are complete and valid: defaults are filled in.

    An object is not changed once it is built; frozen it would take four times as long to build.
    """

    max_tokens: int | None = None
    """The most tokens to generate; None for as many as fit into the context."""
    min_tokens: int = 0
    """The number of tokens before which no stop token may be generated."""
    temperature: float = 1.0
    """The divisor of the logits; 0 for greedy decoding."""
    top_p: float = 1.0
    """The probability mass of the likeliest tokens to sample from; 1 for all tokens."""
    top_k: int = 0
    """The number of likeliest tokens to sample from; 0 for all."""
    min_p: float = 0.0
    """The least probability of a sampled token, relative to the likeliest token."""
    repetition_penalty: float = 1.0
    """The factor by which positive logits of tokens so far are divided, and negative ones multiplied."""
    presence_penalty: float = 0.0
    """The amount subtracted from the logit of each token that was generated before."""
    frequency_penalty: float = 0.0
    """The amount subtracted from the logit of a token for each time that it was generated before."""
    n: int = 1
    """The number of sequences to return."""
    beams: int = 1
    """The number of beams, at least `n`; 1 for no beam search."""
    length_penalty: float = 1.0
    """The exponent of a text's length, by which beam search divides its log probability."""
    seeds: tuple[int, ...] = (0,)
    """The seeds of the `n` sequences; without effect in beam search and at temperature 0."""
    stop_token_ids: tuple[int, ...] = ()
    """The ids of tokens that end the text, in addition to the model's own."""
    ignore_eos: bool = False
    """Whether the model's own stop tokens do not end the text."""
    logprobs: bool = False
    """Whether the log probability of each generated token is requested."""
    top_logprobs: int = 0
    """The number of likeliest alternatives that are requested for each generated token."""
    logprob_token_ids: tuple[int, ...] = ()
    """The tokens whose log probabilities are requested instead of those of the likeliest."""
    prompt_logprobs: bool = False
    """Whether the log probabilities of the prompt tokens are requested."""
    prompt_top_logprobs: int = 0
    """The number of likeliest alternatives that are requested for each prompt token."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Pairs of a token id and the amount added to its logit."""
    sampler_chain: Json | None = None
    """The settings of the samplers that a feature applies instead of the usual ones; None for the usual ones."""
    allowed_token_ids: tuple[int, ...] | None = None
    """The only tokens that may be generated; None for all."""
    bad_words: tuple[str, ...] = ()
    """Texts that must not be generated."""
    early_stopping: bool | str = False
    """The end condition of beam search: True, False (by an estimate) or "never" (by a bound)."""
    repetition: tuple[int, int, int] | None = None
    """The shortest and longest pattern in tokens, and the repetitions at which a text ends; None for never."""
    thinking_token_budget: int | None = None
    """The number of reasoning tokens after which the end of the reasoning is forced; None for no limit."""
    thinking_tags: tuple[str, str] = ("", "")
    """The texts that begin and end the reasoning, for thinking_token_budget."""
    thinking_open: bool = False
    """Whether the prompt ends inside the reasoning."""
    cache_salt: str = ""
    """The salt of the prefix cache, which is shared only between requests with the same salt."""
    id_slot: int = 0
    """llama.cpp's slot that keeps the computed prompt, if the server has slots."""
    lora: tuple[tuple[int, float], ...] = ()
    """The adapters of a request to a model itself, by their places, with their scales; () for the model's own."""
    report_progress: bool = False
    """Whether the progress of the prompt is reported after each step."""
    speaker: str | None = None
    """The voice of a spoken answer; empty for the model's default, None for an answer without speech."""
    num_assistant_tokens: int = 0
    """The number of draft tokens at a time; 0 for the engine's default. Without effect if nothing drafts tokens."""
    assistant_confidence_threshold: float = 0.0
    """The least probability at which a draft model continues to draft; 0 for the engine's default."""
    max_ngram_size: int = 0
    """The most tokens of an n-gram to look up for draft tokens; 0 for the engine's default."""

    @property
    def penalised(self) -> bool:
        """Whether there are penalties, so that logits depend on earlier tokens."""
        return bool(self.repetition_penalty != 1 or self.presence_penalty or self.frequency_penalty)


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """The tools that tool_choice leaves, and the rules for calling them."""

    tools: list[Json]
    """The tools that the model sees."""
    required: bool = False
    """Whether one of them must be called."""
    parallel: bool | None = None
    """Whether the answer may have several calls; None if the client does not say."""
    strict: bool = False
    """Whether calls must match the tool's schema even where the model may decide not to call it, as OpenAI promises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConstraint:
    """The constraint on the generated text for structured output."""

    format: Json | None = None
    """An XGrammar format ({"type": "json_schema", "json_schema": {...}}, regex, sequence, ...); None for any text."""
    param: str = "response_format"
    """The field of the request that asks for the format, for errors."""
    strict: bool = False
    """Whether a part that cannot be enforced is an error; otherwise it is ignored, with a Warning header."""
    tool_calls: str = ""
    """The constraint on tool calls: an empty text for none, "schema" if their arguments must match the tools' schemas,
    or "required" if there must also be at least one call."""
    checked: bool = False
    """Whether an invalid schema of the format or a strict tool is an error even if other parts are ignored."""


@dataclass(slots=True, kw_only=True)
class OutputParams:
    """The parameters by which generated tokens become text and events. It is not changed once it is built."""

    stop: tuple[str, ...] = ()
    """The stop strings, which are also found across token boundaries."""
    include_stop: bool = False
    """Whether the stop string stays in the text."""
    min_tokens: int = 0
    """The number of tokens at the beginning in which stop strings have no effect."""
    skip_special_tokens: bool = True
    """Whether special tokens are left out of the text."""
    parse: bool = False
    """Whether the text is parsed: by the model's reasoning parser, and by its tool parser if there are tools."""
    parse_reasoning: bool = True
    """Whether, with `parse`, reasoning is separated from the text."""
    parse_calls: bool = True
    """Whether, with `parse`, tool calls are separated from the text."""
    tools: tuple[Json, ...] = ()
    """The tools that the model may call."""
    parallel: bool | None = None
    """Whether an answer may have several calls; None if the client does not say."""
    constraint: OutputConstraint | None = None
    """The constraint on the text; None for free text."""


# --- generation: from models to api --------------------------------------------------------------------------------


@dataclass(slots=True)
class Text:
    """New text of an answer's content."""

    text: str
    """The new text."""


@dataclass(slots=True)
class Reasoning:
    """New text of the reasoning."""

    text: str
    """The new text."""


@dataclass(slots=True)
class ToolCallStart:
    """The beginning of a tool call."""

    index: int
    """The number of the call within its choice, from 0."""
    id: str
    """The id of the call: made by the server, or the model's own."""
    name: str
    """The name of the function."""


@dataclass(slots=True)
class ToolCallDelta:
    """New text of a tool call's arguments. The texts with the same index, joined, are the arguments as JSON."""

    index: int
    """The number of the call within its choice, from 0."""
    text: str
    """The new text."""


Event = Text | Reasoning | ToolCallStart | ToolCallDelta


@dataclass(slots=True)
class TokenLogprob:
    """A token with its log probability."""

    id: int
    """The id of the token."""
    token: str
    """The text of the token."""
    bytes: bytes
    """The bytes of the token, which may be a part of a character."""
    logprob: float | None
    """The natural logarithm of its probability; None if unknown."""
    top: Sequence[TokenLogprob] = ()
    """The likeliest tokens at its position, likeliest first, or those that the request names; empty if unknown."""
    rank: int = 0
    """The rank of the token at its position, 1 for the likeliest; 0 if unknown."""


@dataclass(slots=True)
class Delta:
    """The new part of one choice since its previous delta."""

    index: int
    """The number of the choice."""
    events: list[Event] = field(default_factory=list)
    """The new text, reasoning and tool calls."""
    tokens: list[int] = field(default_factory=list)
    """The ids of the new tokens."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """The log probability of each of these tokens, if requested."""
    finish: str | None = None
    """The finish reason, "stop" or "length"; None while the choice continues."""
    stop: str | int | None = None
    """The stop string or token id that ended the choice, if any."""
    broken_call: bool = False
    """Whether the arguments of a tool call in the choice are not a JSON object, for instance because the choice ends
    inside it. It is set together with `finish`."""
    progress: PromptProgress | None = None
    """The progress of the prompt, if requested. In such a delta nothing else is set."""
    audio: bytes = b""
    """The audio samples of the text, in the form of types.audio, if the answer is spoken."""


@dataclass(slots=True)
class Usage:
    """Token counts of a request: the prompt once, the completion summed over all choices."""

    prompt_tokens: int = 0
    """The tokens of the prompt."""
    completion_tokens: int = 0
    """The generated tokens."""
    reasoning_tokens: int = 0
    """The number of generated tokens that are reasoning."""
    cached_tokens: int | None = None
    """The number of prompt tokens found in the prefix cache; None if unknown."""


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """The progress of computing a prompt."""

    total: int
    """The tokens of the prompt."""
    cached: int
    """The number of prompt tokens found in the prefix cache."""
    processed: int
    """The number of computed tokens, including cached ones."""
    time_ms: float
    """The milliseconds since the prefill began."""


@dataclass(frozen=True, slots=True)
class Timings:
    """The times and token counts of a request in the engine."""

    cached: int
    """The number of prompt tokens from the prefix cache; 0 if unknown."""
    prompt: int
    """The number of prompt tokens that were computed."""
    prompt_ms: float
    """The milliseconds of the prefill; 0.0 as long as they are unknown."""
    predicted: int
    """The number of generated tokens of all choices."""
    predicted_ms: float
    """The milliseconds since the first generated token."""
    queue_ms: float = 0.0
    """The milliseconds before the prefill began; 0.0 as long as `prompt_ms` is unknown."""
    drafted: Sequence[int] | None = None
    """The number of draft tokens in each draft of the choices that have ended; None if unknown."""
    accepted: Sequence[int] = ()
    """The number of accepted tokens in each of these drafts."""
