"""The nouns that travel between rooms, in the order of a request's journey. Read this file first.

This module imports nothing of ours and holds no behaviour beyond trivial properties: whoever needs a verb finds it
in the room that owns it. Token ids are plain ints ("tokens"), text is str, bytes are what goes to a client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

# --- exchange: what a door hands to the api, and gets back ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """One whole HTTP request; the door has already enforced size and time limits.

    method: upper case. path: percent-decoded, without the query. query: raw, without "?".
    headers: lower-case names; repeated fields joined with ", ". peer: for the access line only.
    """

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    peer: str = ""


class ByteStream(Protocol):
    """A response body that is produced while it is sent. Whoever holds one closes it, read or not."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None: ...


@dataclass(slots=True)
class Response:
    """Status, headers and a body: bytes (sent with Content-Length) or a ByteStream (sent chunk by chunk).

    close asks the door to end the connection after this exchange.
    """

    status: int
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes | ByteStream = b""
    close: bool = False

    async def aclose(self) -> None:
        """Release what the body holds; the door calls this exactly once, whatever happened (design: door contract)."""
        if not isinstance(self.body, bytes):
            await self.body.aclose()


Handle = Callable[[Request], Awaitable[Response]]
"""All that a door knows of the api: it never raises RequestError, and cancelling its task stops the work."""

# --- ask: what a client wants generated ----------------------------------------------------------------------------

Json = dict[str, Any]
"""A JSON object as it came from a client or goes to one; the only place where Any is at home."""


@dataclass(frozen=True, slots=True)
class Image:
    """A decoded image: RGB, 3 bytes a pixel, row after row from the top."""

    height: int
    width: int
    pixels: bytes = field(repr=False)


IMAGE_TAG = "<ov_genai_image_{}>"
"""What stands in a prompt's text for its image of that number, counted from 0 (openvino_genai's notation)."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation for the model's chat template.

    continue_final_message: the prompt ends inside the last message, which the model carries on.
    template_kwargs: the client's chat_template_kwargs, already checked for reserved names.
    images: what the image tags in the messages stand for.
    characters: of the content of all messages; counted where the prompt is made, as that takes long for many.
    parted: some content is a list of parts, so there may be images.
    """

    messages: list[Json]
    tools: list[Json] = field(default_factory=list)
    template_kwargs: Json = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    images: tuple[Image, ...] = ()
    characters: int = -1
    has_parts: bool = False

    def __post_init__(self) -> None:
        if self.characters < 0:
            contents = [message.get("content") for message in self.messages]
            object.__setattr__(self, "characters", sum(map(_characters, contents)))
            object.__setattr__(self, "has_parts", any(isinstance(content, list) for content in contents))

    @property
    def work(self) -> int:
        """About how much there is to render, in characters; a message or a tool takes as long as a few thousand."""
        return self.characters + 2000 * (len(self.messages) + len(self.tools))


def _characters(content: Any) -> int:
    if isinstance(content, str):
        return len(content)
    if isinstance(content, list):
        return sum(len(part["text"]) for part in content if isinstance(part.get("text"), str))
    return 0


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Text to go on from. add_special_tokens: let the tokenizer add BOS and the like."""

    text: str
    add_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids to go on from, taken as they are."""

    tokens: list[int]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the engine picks tokens; complete and in range, nobody downstream asks "was it set?".

    max_tokens: None means as many as fit the context. temperature: 0 is greedy. top_k: 0 is off.
    n: sequences returned; beams: 1 is off, otherwise beam search of that width with n <= beams.
    seeds: one per sequence of a sampled request (len(seeds) == n), ignored by beam search and greedy decoding.
    stop_token_ids: beyond the model's own. prompt_logprobs: the engine reports the prompt's log probabilities too.
    num_assistant_tokens, assistant_confidence_threshold, max_ngram_size: 0 is "not given"; they matter to pipelines
    with a draft model or prompt lookup and are ignored by others.
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
    prompt_logprobs: bool = False
    num_assistant_tokens: int = 0
    assistant_confidence_threshold: float = 0.0
    max_ngram_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputConstraint:
    """The form that an answer must have; the text room makes a grammar of it.

    format: an XGrammar format ({"type": "json_schema", "json_schema": {...}}, regex, sequence, ...), None: any text.
    param: the request field that asks for it. must: what cannot be imposed is an error; else it is dropped and told.
    calls: "" tools are called as the model likes; "shaped": calls that it begins keep to the schemas; "required": it
    makes at least one. parallel: it may make several.
    """

    format: Json | None = None
    param: str = "response_format"
    strict: bool = False
    calls: str = ""
    parallel: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What the text room does with the tokens of a request.

    stop: stop strings, found across token borders, not looked for in the first min_tokens tokens.
    include_stop: they stay in the text.
    parse: run the model's reasoning parser, and its tool parser if the client offered tools.
    guide: what the answer has to look like, None if as the model likes.
    """

    stop: tuple[str, ...] = ()
    include_stop: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    parse: bool = False
    tools: tuple[Json, ...] = ()
    guide: OutputConstraint | None = None


# --- compute: what the engine says about itself --------------------------------------------------------------------


CLEAN_UP = r" (?:[.?!,\\]|'[ms]|' |'[rv]e|n't)"
"""clean_up_tokenization_spaces as a regular expression: each match loses the spaces at its ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Bytes of every token id, as the model's own detokenizer would print it in the middle of a text.

    pieces[i]: the bytes of id i (byte-fallback ids are single bytes). special: ids hidden by skip_special_tokens.
    strip_leading_space: the detokenizer drops one space at the very start of the text (SentencePiece).
    clean_up: it takes out spaces before punctuation at the end (openvino_tokenizers' clean_up_tokenization_spaces).
    exact: False when the table could not be proven equal to the detokenizer; then text is decoded by the engine.
    """

    pieces: list[bytes]
    special: frozenset[int] = frozenset()
    strip_leading_space: bool = False
    clean_up: bool = False
    exact: bool = True

    @property
    def longest(self) -> int:
        """Bytes of the longest token, and so its characters at most; 64 for a vocabulary that is not known."""
        return max(map(len, self.pieces), default=0) or 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What a loaded engine knows about its model; sent once, when it is ready.

    context_length: most prompt + generated tokens of one request. kv_blocks, block_size: KV cache in tokens.
    eos_token_ids: every id that ends a text by itself. chat_template: the one stored in the tokenizer, or "".
    sentencepiece: tokens have "▁" for a space and "<0x0A>" for a byte in the text that grammars are matched against.
    reports_cached_tokens: what a prompt finds in the prefix cache can be accounted for.
    assisted: "", "draft" or "prompt_lookup". vision: it reads images. image_tokens: texts that stand for images in the
    model's own notation, and must not come from a client.
    """

    vocab_size: int
    context_length: int
    kv_blocks: int
    block_size: int
    eos_token_ids: list[int]
    pad_token_id: int = 0
    bos_token: str
    eos_token: str
    chat_template: str
    speculative: str
    prefix_caching: bool
    versions: dict[str, str]
    sentencepiece: bool = False
    reports_cached_tokens: bool = False
    vision: bool = False
    image_tokens: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot of the engine's own accounts, taken between two steps. kv_blocks_used: by live requests.

    drafts, accepted: in an assisted pipeline, outputs of one step, and tokens in them beyond the first.
    """

    running: int
    queued: int
    kv_blocks_used: int
    kv_blocks_total: int
    steps: int
    preemptions: int
    recoveries: int
    drafts: int = 0
    accepted: int = 0


# --- meaning: what a generation says -------------------------------------------------------------------------------


@dataclass(slots=True)
class Text:
    """A piece of the answer."""

    text: str


@dataclass(slots=True)
class Reasoning:
    """A piece of the model's thinking."""

    text: str


@dataclass(slots=True)
class ToolCallStart:
    """The model begins to call a tool. index counts the calls of one choice from 0."""

    index: int
    id: str
    name: str


@dataclass(slots=True)
class ToolCallDelta:
    """A piece of a call's arguments; all pieces of one index joined are the JSON text of the arguments."""

    index: int
    text: str


Event = Text | Reasoning | ToolCallStart | ToolCallDelta


@dataclass(slots=True)
class TokenLogprob:
    """The log probability of one generated token (natural log), its id, its own text and bytes. None: not known."""

    id: int
    token: str
    bytes: bytes
    logprob: float | None


@dataclass(slots=True)
class Delta:
    """Everything new about one choice since one last looked.

    index: the choice. tokens: ids generated (0 or more). logprobs: one per token if they were asked for.
    finish: "stop", "length" or None while it goes on. stop: the stop string or token id that ended it, if any.
    """

    index: int
    events: list[Event] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: str | None = None
    stop: str | int | None = None


@dataclass(slots=True)
class Usage:
    """Token counts of a request: the prompt once, the completion over all choices. reasoning: part of completion.

    cached: part of the prompt, not computed because the cache had it; None if that is not known.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int | None = None
