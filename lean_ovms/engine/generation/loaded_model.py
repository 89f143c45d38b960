"""What generation needs of a loaded model besides its tokens: grammars, images and tokenizing in a thread.

No openvino here.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ...types import Image
from ...types.engine import ModelInfo, Vocabulary
from .grammar_limits import GrammarBounds

if TYPE_CHECKING:
    from ..protocol import Submit

ASSISTANT_TOKENS = 5
NGRAM_SIZE = 3
"""OVMS's defaults for speculative decoding."""
HEAD_TOKENS = 3
"""The same for a head of the model, which was trained to know one token or a few."""


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """A prompt for a model with vision: text in which <ov_genai_image_0>, ... stand for the images."""

    text: str
    """The text."""
    add_special_tokens: bool
    """Whether the tokenizer adds special tokens such as BOS."""
    images: tuple[Image, ...] = ()
    """The images, by their numbers."""
    salt: str = ""
    """What is cached of its images is shared with prompts of the same salt only."""
    audio: tuple[bytes, ...] = ()
    """The samples (types.audio) of <ov_genai_audio_0>, ..."""


class Thinking(NamedTuple):
    """A limit of reasoning."""

    budget: int
    """The number of tokens inside the reasoning after which its end is forced."""
    start: tuple[int, ...]
    """The ids that begin reasoning."""
    end: tuple[int, ...]
    """The ids that end it."""
    opened: bool
    """Whether the prompt ends inside it."""


class Compiler(Protocol):
    """Compiles grammars for a pipeline in advance, outside its steps."""

    def compile(self, tag: str) -> None:
        """Takes its time in C++, with the GIL released. Raises errors.BadRequest."""

    def clear(self) -> None:
        """Drops everything compiled. Between two steps only."""


class GrammarCost(NamedTuple):
    """What a grammar costs to compile and to match."""

    seconds: float
    """The CPU seconds of compiling it."""
    bytes: int
    """The bytes that it takes when it is compiled."""
    mask_s: float = 0.0
    """The CPU seconds of the mask of a token, the slowest that was found."""
    notices: tuple[str, ...] = ()
    """What the library does not impose, for the client."""


class GrammarChecker(Protocol):
    """Finds out whether a grammar can be compiled and how fast it is, with no risk for this process. Blocks its caller
    and takes no time of other threads."""

    def check(self, tag: str, bounds: GrammarBounds) -> GrammarCost:
        """Returns what it costs. Raises errors.RequestError for one that is invalid, beyond the bounds, or too slow."""

    def stop(self) -> object:
        """Frees its resources; the next `check` starts it again."""


class ImagePlaceholders(Protocol):
    """The part that only models with vision have."""

    takes_ids: bool
    """Whether prompts without images may be token ids."""

    def parse(self, submit: Submit, context: int, max_characters: int) -> ImagePrompt:
        """Returns the text and the images of a prompt, checked.

        Args:
            submit: the command with the prompt.
            context: the tokens of the model's context, for the error.
            max_characters: the most characters of the text.

        Raises:
            errors.BadRequest: the prompt is not valid.
        """

    def placeholder_ids(self, image_prompt: ImagePrompt) -> list[int]:
        """Returns the prompt as ids, with one negative id per token of each image, the same id for the same image.

        Their number is exact for image sizes that were learned, and an upper estimate for others.
        """


class LongTextEncoder(Protocol):
    """Tokenizes long texts in a thread, without the interpreter's lock."""

    def is_long(self, text: str) -> bool:
        """Returns whether `LoadedModel.encode` would take too long between two steps."""

    def encode(self, text: str, add_special_tokens: bool) -> array[int]:
        """Encodes as `LoadedModel.encode` does, in one other thread, to an array: millions of ids take some MB."""

    def learn(self, text: str, ids: list[int], add_special_tokens: bool) -> None:
        """Remembers what `encode` returned, so that the next turn of a conversation is short."""


class Grammars(NamedTuple):
    """What grammar_queue needs to let a request with a grammar run."""

    compiler: Compiler
    checker: GrammarChecker


class LoadedModel(Protocol):
    """What requests are checked and tokenized with."""

    info: ModelInfo
    vocabulary: Vocabulary
    grammars: Grammars | None
    """None: no structured output."""
    long_text_encoder: LongTextEncoder | None
    """None: every text is tokenized between two steps."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Returns the ids of a text. Raises errors.BadRequest for text that is not Unicode (lone surrogates)."""

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """Returns the text of ids, by the model's own detokenizer."""
