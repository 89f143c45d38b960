"""The dataclasses that packages pass to each other, in the order in which a request meets them. Read this file first.

    transport --Request--> api --Prompt, SamplingParams, OutputParams--> models --> engine
    transport <-Response-- api <------------- Delta, Usage ------------- models <-- engine

engine.py beside it has what an engine reports, audio.py how samples are stored, push.py how pieces of a stream are
passed down, websocket.py a WebSocket. This module imports nothing else of the package; its classes count
and copy themselves, and do nothing else. Token ids are plain ints ("tokens"), text is str, bytes are what clients get.
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
    """A body in a file (util.spool). size: in bytes."""

    size: int

    def read(self, start: int, size: int) -> bytes:
        """Returns at most `size` bytes from a place on. Raises OSError."""

    def fileno(self) -> int: ...

    def close(self) -> None:
        """Free it. Idempotent."""


@dataclass(slots=True)
class Request:
    """One whole HTTP request; the transport has already enforced size and time limits.

    method: upper case. path: percent-decoded, without the query. query: raw, without "?".
    headers: lower-case names; repeated fields joined with ", ". body: empty once it is parsed, to free its memory.
    spool: has a large form instead of `body`; whoever answers the request drops it (drop_body).
    peer: host:port of the client, for the access line. websocket: it asks for one, and the transport can open it.
    on_behalf_of: the name of the client for which the server itself sends it; ids: what the path has for each "{id}" of
    its route. No transport sets these.
    """

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    peer: str = ""
    websocket: bool = False
    spool: StoredBody | None = None
    on_behalf_of: str = ""
    ids: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return len(self.body) if self.spool is None else self.spool.size

    def drop_body(self) -> None:
        """Free its memory. Idempotent."""
        self.body = b""
        if self.spool is not None:
            self.spool.close()


class ByteStream(Protocol):
    """A response body that is produced while it is sent, a PushStream. Its owner closes it, sent or not."""

    async def push_to(self, sink: Sink[bytes]) -> None: ...

    async def aclose(self) -> None: ...


@dataclass(slots=True)
class Response:
    """Status, headers and a body: bytes (sent with Content-Length) or a ByteStream (sent chunk by chunk).

    close: the transport ends the connection after this response.
    """

    status: int
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes | ByteStream = b""
    close: bool = False

    async def aclose(self) -> None:
        """Release what the body holds; the transport calls this exactly once, whatever happened."""
        if not isinstance(self.body, bytes):
            await self.body.aclose()


Handle = Callable[[Request], Awaitable[Response]]
"""The app as a transport sees it. Raises no RequestError; cancelling the task that awaits it stops the work."""

# --- generation request: from api to models ------------------------------------------------------------------------

Json = dict[str, Any]
"""A JSON object as it came from a client or goes to one."""


@dataclass(frozen=True, slots=True)
class Image:
    """A decoded image, or frames of a video. param: the request's field with it. digest: of `content`, if computed.

    pixels: RGB, height * width * 3 bytes of each frame. times: when a video's are shown, in s; seconds: its length.
    """

    height: int
    width: int
    pixels: bytes = field(repr=False)
    param: str = "messages"
    digest: str = ""
    times: tuple[float, ...] = ()
    seconds: float = 0.0

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

    messages, tools: OpenAI's objects, validated. template_kwargs: the client's chat_template_kwargs, without reserved
    names. continue_final_message: the prompt ends inside the last message, which the model continues.
    template: the client's chat template; "": the model's. images, audio: one for each of their tags in the messages.
    frames: num_frames (-1: all) and fps of its videos, if given. num_chars: of all messages' texts, but image data.
    other_chars: of tools, tool calls and template_kwargs, of which a template may leave out some; shared_chars: of
    tools and template_kwargs. has_parts: some content is a list of parts. Counted in a worker thread if there are many.
    """

    messages: list[Json]
    tools: list[Json] = field(default_factory=list)
    template_kwargs: Json = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    template: str = ""
    images: tuple[Image, ...] = ()
    audio: tuple[bytes, ...] = ()
    frames: Json = field(default_factory=dict)
    num_chars: int = field(init=False)
    other_chars: int = field(init=False)
    shared_chars: int = field(init=False, default=0)
    has_parts: bool = field(init=False)
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
    """Characters of all texts in a JSON value, names included; any other value counts as one."""
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
    """Text that the model continues. add_special_tokens: the tokenizer adds BOS and the like."""

    text: str
    add_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids that the model continues."""

    tokens: list[int]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """How the engine samples tokens. Complete and in range: defaults are filled in, values are validated.

    Not changed once it is built; frozen it would take four times as long to build.

    max_tokens: None: as many as fit the context. temperature: 0 is greedy. top_k: 0 is off.
    n: sequences returned. beams: 1 is off, else beam search of that width, with n <= beams.
    seeds: one per sequence (len(seeds) == n), ignored by beam search and greedy decoding.
    stop_token_ids: besides the model's own. logprobs: log probability of each generated token; top_logprobs: number of
    likeliest tokens with it; logprob_token_ids: these tokens instead of the likeliest. prompt_logprobs: log
    probabilities of the prompt's tokens, too; prompt_top_logprobs: likeliest tokens with those.
    logit_bias: (id, what is added to its logit). allowed_token_ids: None allows all. bad_words: never completed.
    early_stopping: of beam search: True, False (by an estimate) or "never" (by a bound). repetition: (shortest pattern,
    longest pattern, times) in tokens that end the text, or None. thinking_token_budget: reasoning tokens before the end
    of the reasoning is forced; None: no limit. thinking_tags: texts around the reasoning; thinking_open: the prompt
    ends inside it. cache_salt: the prefix cache is shared among requests of the same salt only. id_slot:
    llama.cpp's. report_progress: after each step, how much of the prompt is computed. speaker: the voice in which the
    model speaks the answer, "": its own; None: it does not. num_assistant_tokens, assistant_confidence_threshold,
    max_ngram_size: for drafts, ignored without; 0: the engine's default.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    n: int = 1
    beams: int = 1
    length_penalty: float = 1.0
    seeds: tuple[int, ...] = (0,)
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    logprob_token_ids: tuple[int, ...] = ()
    prompt_logprobs: bool = False
    prompt_top_logprobs: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    early_stopping: bool | str = False
    repetition: tuple[int, int, int] | None = None
    thinking_token_budget: int | None = None
    thinking_tags: tuple[str, str] = ("", "")
    thinking_open: bool = False
    cache_salt: str = ""
    id_slot: int = 0
    report_progress: bool = False
    speaker: str | None = None
    num_assistant_tokens: int = 0
    assistant_confidence_threshold: float = 0.0
    max_ngram_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConstraint:
    """Structured output: what the generated text must match. grammar.constraint makes a grammar of it.

    format: an XGrammar format ({"type": "json_schema", "json_schema": {...}}, regex, sequence, ...), None: any text.
    param: the request field that asks for it. strict: a part that cannot be enforced is an error; else it is dropped,
    with a Warning header. tool_calls: "": tool calls are free; "schema": their arguments match the tools' schemas;
    "required": so do they, and there is at least one. checked: a schema that is none is an error
    also where other parts would be dropped: that of the format, and those of tools that are strict.
    """

    format: Json | None = None
    param: str = "response_format"
    strict: bool = False
    tool_calls: str = ""
    checked: bool = False


@dataclass(slots=True, kw_only=True)
class OutputParams:
    """How generated tokens become text and events. Not changed once it is built.

    stop: stop strings, found across token borders, not searched for in the first min_tokens tokens.
    include_stop: keep the stop string in the text. skip_special_tokens: leave special tokens out of the text.
    parse: run the model's reasoning parser, and its tool parser if there are tools; parse_reasoning, parse_calls: not
    if these are false, and what they would parse is text. parallel: an answer may have several calls; None: the client
    does not say.
    constraint: structured output, None for free text.
    """

    stop: tuple[str, ...] = ()
    include_stop: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    parse: bool = False
    parse_reasoning: bool = True
    parse_calls: bool = True
    tools: tuple[Json, ...] = ()
    parallel: bool | None = None
    constraint: OutputConstraint | None = None


# --- generation: from models to api --------------------------------------------------------------------------------


@dataclass(slots=True)
class Text:
    """Text of the content."""

    text: str


@dataclass(slots=True)
class Reasoning:
    """Text of the reasoning."""

    text: str


@dataclass(slots=True)
class ToolCallStart:
    """A tool call starts. index: of the call within its choice, from 0. id: made by the server, or the model's own."""

    index: int
    id: str
    name: str


@dataclass(slots=True)
class ToolCallDelta:
    """Arguments of a tool call; all texts of one index, joined, are the JSON text of the arguments."""

    index: int
    text: str


Event = Text | Reasoning | ToolCallStart | ToolCallDelta


@dataclass(slots=True)
class TokenLogprob:
    """One token: its id, text, bytes and log probability (natural logarithm; None: not known).

    top: the likeliest tokens in its place, likeliest first, or those that the request names; empty if not known. rank:
    1 for the likeliest; 0: not known.
    """

    id: int
    token: str
    bytes: bytes
    logprob: float | None
    top: Sequence[TokenLogprob] = ()
    rank: int = 0


@dataclass(slots=True)
class Delta:
    """What is new of one choice since its previous delta.

    index: of the choice. tokens: generated ids (0 or more). logprobs: one per token if the request wants them. finish:
    "stop", "length", or None while it continues. stop: the stop string or token id that ended it, if any. progress: of
    its prompt, if the request wants it; then nothing else is set. audio: samples of its text, if it is spoken, as in
    types.audio.
    """

    index: int
    events: list[Event] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: str | None = None
    stop: str | int | None = None
    progress: PromptProgress | None = None
    audio: bytes = b""


@dataclass(slots=True)
class Usage:
    """Token counts of a request: the prompt once, the completion summed over all choices.

    reasoning_tokens: part of completion_tokens. cached_tokens: part of prompt_tokens, found in the prefix cache; None
    if that is not known.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How much of a prompt is computed."""

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
    """How long a request took in the engine."""

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
