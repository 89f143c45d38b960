"""The dataclasses that packages pass to each other, in the order in which a request meets them. Read this file first.

    transport --Request--> api --Prompt, SamplingParams, OutputParams--> models --> engine
    transport <-Response-- api <------------- Delta, Usage ------------- models <-- engine

engine.py beside it has what an engine reports, audio.py how samples are stored, push.py how pieces of a stream are
passed down. This module imports nothing else of the package; its classes count and copy themselves, and do nothing
else. Token ids are plain ints ("tokens"), text is str, bytes are what clients get.
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
    """A body in a file (util.spool)."""

    size: int
    """The size in bytes."""

    def read(self, start: int, size: int) -> bytes:
        """Returns at most `size` bytes from a place on. Raises OSError."""

    def fileno(self) -> int: ...

    def close(self) -> None:
        """Frees it. Idempotent."""


@dataclass(slots=True)
class Request:
    """One whole HTTP request; the transport has already enforced size and time limits."""

    method: str
    """The HTTP method in upper case."""
    path: str
    """The path, percent-decoded, without the query."""
    query: str = ""
    """The query as it was sent, without "?"."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The headers by their names in lower case; those of repeated names are joined with ", "."""
    body: bytes = b""
    """The body; empty once it is parsed, to free its memory."""
    peer: str = ""
    """The client as host:port, for the access line."""
    upgrade: str = ""
    """The protocol to which the client asks to switch the connection, if the transport can; empty: none."""
    api_key: str = ""
    """An API key that the client could send in no header for keys; empty: there is none."""
    spool: StoredBody | None = None
    """A large form, in place of `body`. Whoever answers the request drops it (`drop_body`)."""
    on_behalf_of: str = ""
    """The name of the client for which the server itself sends the request. No transport sets it."""
    ids: tuple[str, ...] = ()
    """What the path has in the place of each "{id}" of its route. No transport sets it."""

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return len(self.body) if self.spool is None else self.spool.size

    def drop_body(self) -> None:
        """Frees its memory. Idempotent."""
        self.body = b""
        if self.spool is not None:
            self.spool.close()


class ByteStream(Protocol):
    """A response body that is produced while it is sent, a PushStream. Its owner closes it, sent or not."""

    async def push_to(self, sink: Sink[bytes]) -> None: ...

    async def aclose(self) -> None: ...


SWITCHING_PROTOCOLS = 101
"""The status of a `Switch`, and of no other response."""


@dataclass(slots=True)
class Response:
    """The answer to a request."""

    status: int
    """The HTTP status."""
    headers: list[tuple[str, str]] = field(default_factory=list)
    """The headers."""
    body: bytes | ByteStream = b""
    """The body: bytes, which are sent with Content-Length, or a stream, which is sent chunk by chunk."""
    close: bool = False
    """Whether the transport ends the connection after this response."""

    async def aclose(self) -> None:
        """Releases what the body holds; the transport calls this exactly once, whatever happened."""
        if not isinstance(self.body, bytes):
            await self.body.aclose()


class Switch(Response):
    """The response that switches the connection to another protocol.

    Its status is 101, or that of the error which a transport sends instead because it cannot switch.
    """

    __slots__ = ("on_close", "on_open", "on_send", "protocol")

    def __init__(self, protocol: str) -> None:
        """Makes the response for a protocol, by its name in `Request.upgrade`."""
        super().__init__(SWITCHING_PROTOCOLS)
        self.protocol = protocol
        self.on_open: list[Callable[[], object]] = []
        """Are called in the task that serves the connection, once it is switched."""
        self.on_send: list[Callable[[int], None]] = []
        """Are called with the bytes of each message that is sent."""
        self.on_close: list[Callable[[], None]] = []
        """Are called when the transport closes the response."""

    def head_lines(self, headers: Mapping[str, str]) -> str:
        """Returns the protocol's own lines of the response's head, whole ones, for the headers of the request."""
        return ""

    async def aclose(self) -> None:
        while self.on_close:
            self.on_close.pop()()


Handle = Callable[[Request], Awaitable[Response]]
"""The app as a transport sees it. Raises no RequestError; cancelling the task that awaits it stops the work."""

# --- generation request: from api to models ------------------------------------------------------------------------

Json = dict[str, Any]
"""A JSON object as it came from a client or goes to one."""
SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords of JSON Schema whose value has a schema for each name: https://json-schema.org/draft/2020-12."""
SCHEMA_LITERALS = ("enum", "const", "default", "examples")
"""Keywords of JSON Schema whose value is no schema, whatever it looks like."""


@dataclass(frozen=True, slots=True)
class Image:
    """A decoded image, or frames of a video."""

    height: int
    """The height in pixels."""
    width: int
    """The width in pixels."""
    pixels: bytes = field(repr=False)
    """RGB, height * width * 3 bytes of each frame."""
    param: str = "messages"
    """The field of the request that has it, for errors."""
    digest: str = ""
    """What `content` returns, if it has been computed; else empty."""
    times: tuple[float, ...] = ()
    """When each frame of a video is shown, in seconds; empty for an image."""
    seconds: float = 0.0
    """The length of a video; 0 for an image."""

    def content(self) -> str:
        """Returns a digest of size, times and pixels, which takes 4 ms for a megapixel, or 0 where it is known."""
        key = hashlib.blake2b(repr((self.height, self.width, self.seconds, self.times)).encode()).digest()
        return self.digest or hashlib.blake2b(self.pixels, digest_size=32, key=key).hexdigest()


IMAGE_TAG_START = "<ov_genai_"
"""How every placeholder begins that openvino_genai knows; no other text of a prompt may hold it."""
IMAGE_TAG = IMAGE_TAG_START + "image_{}>"
"""The placeholder of an image in a prompt's text, by its number from 0 (openvino_genai's notation)."""
AUDIO_TAG = IMAGE_TAG_START + "audio_{}>"
"""The same of audio (a notation of this package)."""


@dataclass(slots=True)
class ChatPrompt:
    """A conversation for the model's chat template; not changed once it is built.

    Its texts are counted in a worker thread if there are many.
    """

    messages: list[Json]
    """OpenAI's message objects, validated."""
    tools: list[Json] = field(default_factory=list)
    """OpenAI's tool objects, validated."""
    template_kwargs: Json = field(default_factory=dict)
    """The client's chat_template_kwargs, without names that the server sets itself."""
    add_generation_prompt: bool = True
    """Whether the prompt ends with the beginning of an answer."""
    continue_final_message: bool = False
    """Whether the prompt ends inside the last message, which the model continues."""
    add_special_tokens: bool = False
    """Whether the tokenizer adds special tokens such as BOS to what the template writes."""
    template: str = ""
    """The client's chat template; empty: the model's."""
    images: tuple[Image, ...] = ()
    """The images, one for each tag of an image in the messages."""
    audio: tuple[bytes, ...] = ()
    """The samples, one for each tag of audio in the messages."""
    frames: Json = field(default_factory=dict)
    """Which frames of its videos are read, if the client says it: num_frames (-1: all) and fps."""
    num_chars: int = field(init=False)
    """The characters of the texts of all messages, without the data of images."""
    other_chars: int = field(init=False)
    """The characters of tools, tool calls and template_kwargs, of which a template may leave out some."""
    shared_chars: int = field(init=False, default=0)
    """Those of tools and template_kwargs alone, which several conversations of one request share."""
    has_parts: bool = field(init=False)
    """Whether the content of some message is a list of parts."""
    own_roles: frozenset[str] = frozenset()
    """Roles of the server's own messages, which a template need not name."""

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
        """Returns another conversation of the same request: what they share is not counted again."""
        prompt = copy.copy(self)
        prompt.messages = messages
        prompt._count_messages()
        return prompt

    def with_media(self, messages: list[Json], images: tuple[Image, ...], audio: tuple[bytes, ...] = ()) -> ChatPrompt:
        """Returns this prompt with a tag for each image and audio in messages; num_chars stays the client's."""
        prompt = copy.copy(self)
        prompt.messages, prompt.images, prompt.audio = messages, images, audio
        return prompt

    @property
    def render_cost(self) -> int:
        """Rough cost of rendering, in characters: a message or a tool costs as much as 2000, a variable as 20."""
        objects = len(self.messages) + len(self.tools)
        return self.num_chars + self.other_chars + 2000 * objects + 20 * len(self.template_kwargs)


def num_chars(value: Any) -> int:
    """Returns how many characters all texts in a JSON value have, names included; any other value counts as one."""
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
    """Text that the model continues."""

    text: str
    """The text."""
    add_special_tokens: bool = True
    """Whether the tokenizer adds special tokens such as BOS."""


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids that the model continues."""

    tokens: list[int]
    """The ids."""


Prompt = ChatPrompt | TextPrompt | TokenPrompt


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """The parameters with which the engine samples tokens. Complete and in range: defaults are filled in, values are
    validated.

    Not changed once it is built; frozen it would take four times as long to build.
    """

    max_tokens: int | None = None
    """The most tokens to generate; None: as many as fit the context."""
    min_tokens: int = 0
    """The number of first tokens among which no token that ends the text is generated."""
    temperature: float = 1.0
    """What logits are divided by; 0: the likeliest token is taken (greedy)."""
    top_p: float = 1.0
    """Only the likeliest tokens with this probability together may be drawn; 1: all."""
    top_k: int = 0
    """Only so many of the likeliest tokens may be drawn; 0: all."""
    min_p: float = 0.0
    """Only tokens with at least this share of the probability of the likeliest one may be drawn."""
    repetition_penalty: float = 1.0
    """The divisor of the positive logits, and factor of the negative ones, of tokens in the prompt or the answer."""
    presence_penalty: float = 0.0
    """What is subtracted from the logit of each token that was generated already."""
    frequency_penalty: float = 0.0
    """What is subtracted from that logit for each time that the token was generated."""
    n: int = 1
    """The number of sequences that are returned."""
    beams: int = 1
    """The width of a beam search, at least `n`; 1: there is none."""
    length_penalty: float = 1.0
    """The power of the length that divides the score of a beam."""
    seeds: tuple[int, ...] = (0,)
    """One for each of the `n` sequences; without effect in a beam search and at temperature 0."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the text, besides the model's own."""
    ignore_eos: bool = False
    """Whether the model's own ids do not end the text."""
    logprobs: bool = False
    """Whether the log probability of each generated token is wanted."""
    top_logprobs: int = 0
    """The number of likeliest tokens that are wanted in the place of each generated token."""
    logprob_token_ids: tuple[int, ...] = ()
    """The tokens that are wanted instead of the likeliest."""
    prompt_logprobs: bool = False
    """Whether the log probabilities of the prompt's tokens are wanted, too."""
    prompt_top_logprobs: int = 0
    """The number of likeliest tokens that are wanted in the place of each of these."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Ids, each with what is added to its logit."""
    allowed_token_ids: tuple[int, ...] | None = None
    """The only ids that may be generated; None: all."""
    bad_words: tuple[str, ...] = ()
    """Texts that are never completed."""
    early_stopping: bool | str = False
    """When a beam search ends: True, False (by an estimate) or "never" (by a bound)."""
    repetition: tuple[int, int, int] | None = None
    """Ends a text that repeats itself: shortest pattern, longest pattern and times, in tokens; None: nothing does."""
    thinking_token_budget: int | None = None
    """The most tokens of reasoning before its end is forced; None: no limit."""
    thinking_tags: tuple[str, str] = ("", "")
    """The texts that begin and end the reasoning, for that budget."""
    thinking_open: bool = False
    """Whether the prompt ends inside the reasoning."""
    cache_salt: str = ""
    """The prefix cache is shared only among requests of the same salt."""
    id_slot: int = 0
    """The slot that keeps the computed prompt, where the server has slots (llama.cpp's)."""
    report_progress: bool = False
    """Whether it is reported after each step how much of the prompt is computed."""
    speaker: str | None = None
    """The voice in which the model speaks the answer; empty: its own voice; None: it does not speak."""
    num_assistant_tokens: int = 0
    """The number of draft tokens at a time; 0: the engine's default. Without effect where nothing drafts."""
    assistant_confidence_threshold: float = 0.0
    """How sure a draft model must be of a token; 0: the engine's default."""
    max_ngram_size: int = 0
    """The most tokens that are looked for in the text to draft what follows; 0: the engine's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConstraint:
    """Structured output: what the generated text must match."""

    format: Json | None = None
    """An XGrammar format ({"type": "json_schema", "json_schema": {...}}, regex, sequence, ...); None: any text."""
    param: str = "response_format"
    """The field of the request that asks for the format, for errors."""
    strict: bool = False
    """Whether a part that cannot be enforced is an error; else it is dropped, with a Warning header."""
    tool_calls: str = ""
    """"": tool calls are free; "schema": their arguments match the schemas of the tools; "required": so do they, and
    there is at least one call."""
    checked: bool = False
    """Whether a schema that is not valid is an error even where other parts would be dropped: that of the format, and
    those of strict tools."""


@dataclass(slots=True, kw_only=True)
class OutputParams:
    """The parameters by which generated tokens become text and events. Not changed once it is built."""

    stop: tuple[str, ...] = ()
    """Texts that end the answer, found across the borders of tokens."""
    include_stop: bool = False
    """Whether the stop string stays in the text."""
    min_tokens: int = 0
    """Stop strings are not searched for in so many tokens at the beginning."""
    skip_special_tokens: bool = True
    """Whether special tokens are left out of the text."""
    parse: bool = False
    """Whether the model's reasoning parser reads the text, and its tool parser if there are tools."""
    parse_reasoning: bool = True
    """Whether, with `parse`, reasoning is parsed; else it is text."""
    parse_calls: bool = True
    """Whether, with `parse`, tool calls are parsed; else they are text."""
    tools: tuple[Json, ...] = ()
    """The tools that the model may call."""
    parallel: bool | None = None
    """Whether an answer may have several calls; None: the client does not say."""
    constraint: OutputConstraint | None = None
    """Structured output; None: free text."""


# --- generation: from models to api --------------------------------------------------------------------------------


@dataclass(slots=True)
class Text:
    """Text of the content."""

    text: str
    """The new text."""


@dataclass(slots=True)
class Reasoning:
    """Text of the reasoning."""

    text: str
    """The new text."""


@dataclass(slots=True)
class ToolCallStart:
    """A tool call starts."""

    index: int
    """The number of the call within its choice, from 0."""
    id: str
    """The id of the call: made by the server, or the model's own."""
    name: str
    """The name of the function."""


@dataclass(slots=True)
class ToolCallDelta:
    """Arguments of a tool call; all texts of one index, joined, are the JSON text of the arguments."""

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
    """The text."""
    bytes: bytes
    """The bytes, which may be a part of a character."""
    logprob: float | None
    """The natural logarithm of its probability; None: not known."""
    top: Sequence[TokenLogprob] = ()
    """The likeliest tokens in its place, likeliest first, or those that the request names; empty if not known."""
    rank: int = 0
    """The rank of the token in its place, 1 for the likeliest; 0: not known."""


@dataclass(slots=True)
class Delta:
    """The new part of one choice since its previous delta."""

    index: int
    """The number of the choice."""
    events: list[Event] = field(default_factory=list)
    """The new text, reasoning and tool calls."""
    tokens: list[int] = field(default_factory=list)
    """The ids that were generated."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """One for each of these tokens, if the request wants them."""
    finish: str | None = None
    """"stop" or "length"; None while the choice continues."""
    stop: str | int | None = None
    """The stop string or the id that ended the choice, if one did."""
    broken_call: bool = False
    """Whether the arguments of a tool call of the choice are no JSON object, as where the choice ends inside of one;
    known with `finish`."""
    progress: PromptProgress | None = None
    """How much of the prompt is computed, if the request wants that; then nothing else is set."""
    audio: bytes = b""
    """Samples of the text, in the form of types.audio, if it is spoken."""


@dataclass(slots=True)
class Usage:
    """Token counts of a request: the prompt once, the completion summed over all choices."""

    prompt_tokens: int = 0
    """The tokens of the prompt."""
    completion_tokens: int = 0
    """The generated tokens."""
    reasoning_tokens: int = 0
    """Those of the generated tokens that are reasoning."""
    cached_tokens: int | None = None
    """Those of the prompt's tokens that were found in the prefix cache; None: not known."""


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """The computed part of a prompt."""

    total: int
    """The tokens of the prompt."""
    cached: int
    """Those of them that were found in the prefix cache."""
    processed: int
    """Those that are computed, the cached ones included."""
    time_ms: float
    """The milliseconds since the engine started with the prompt."""


@dataclass(frozen=True, slots=True)
class Timings:
    """The times that a request took in the engine."""

    cached: int
    """The tokens of the prompt from the prefix cache; 0 if that is not known."""
    prompt: int
    """The tokens of the prompt that were computed."""
    prompt_ms: float
    """The milliseconds that took; 0.0 as long as that is not known."""
    predicted: int
    """The generated tokens of all choices."""
    predicted_ms: float
    """The milliseconds since the first of them."""
    queue_ms: float = 0.0
    """The milliseconds before the engine started with the prompt; 0.0 as long as `prompt_ms` is not known."""
    drafted: Sequence[int] | None = None
    """The tokens of each draft of choices that have ended; None: not known."""
    accepted: Sequence[int] = ()
    """How many tokens of each of these drafts were kept."""
