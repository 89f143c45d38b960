"""The interfaces of networks with paged attention, of single-file models, and of adapters.

`model.PagedModel` implements Network, and tests have their own implementation; features implement the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...composition import compose
from ...config import EngineConfig
from ...errors import StartError
from ...manifest import named
from ...types import Json
from ...types.engine import Vocabulary
from ..loading.text_encoder import JsonTokenizer

ATTENTION = "PagedAttentionExtension"
"""The type name of the operations that read the KV cache."""
EMBEDDINGS_INPUT = "inputs_embeds"
"""The input of a language model whose token embeddings are computed by another network."""
LOGITS_INPUT = "sampled_tokens_indices"
"""The input with the indices, in the batch, of the tokens for which logits are computed."""
IMAGE_ROWS, IMAGE_PLACES, IMAGE_DEEPER = "image_rows", "image_places", "image_deeper"
"""Inputs of models with vision: embeddings [image tokens, hidden], the indices of these tokens in the step, and what is
added after the first layers [layers, image tokens + 1, hidden], whose last row is for tokens of text."""
ADAPTER_CHOICE = "lora_choice"
"""The input [tokens, ranks] with the scale of each token's adapter in the columns of its ranks, and 0 elsewhere."""
HIDDEN_INPUT = "hidden_states"
"""The input of a draft head: the hidden states of its model, or its own, for each token, [tokens, 1, width]."""

TREE_MASK = "qq_bias"
"""The input with the mask of attention among a sequence's tokens in a step, for draft trees; if empty, causal."""
STATES = "_state_table."
"""A part of the names of inputs with the states of linear attention and short convolutions, one row for each slot."""

NEW_STATES = "_state_new."
"""A part of the names of outputs with states to be written to the slots of a table; the rest is the table's name."""
STEP_STATES = "_state_step."
"""A part of the names of outputs with the states of decoding sequences; the rest is the table's name."""
CHUNK_OUTPUTS = "_state_chunks."
"""A part of the names of outputs of layers behind chunks, which nobody reads; the rest is the table's name."""
MOST_STEPS = 16
"""The most decoding sequences whose step layers with states may compute as matrix products; openvino keeps their states
in each layer. The steps of further sequences are computed by openvino's operation."""
CHUNK = 64
"""The number of prompt tokens that a layer with states computes at once. A larger number costs more operations per
token; a smaller one makes the matrix products small."""
MOST_PROMPTS = 2
"""The most prompts that a step computes in chunks, since the states of each take some MB per layer."""
CHUNK_TOKENS = "chunk.tokens"
"""The input [chunks * CHUNK] with the indices in the step of the chunks' tokens, any index for padding."""
CHUNK_LENGTHS = "chunk.lengths"
"""The input [chunks] with the number of tokens in each chunk, without padding."""
CHUNK_STARTS = "chunk.starts"
"""The input [chunks] with the index in CHUNK_SLOTS of the sequence that begins with the chunk, or -1."""
CHUNK_OTHERS = "chunk.others"
"""The input [other tokens] with the indices of the tokens that come before those of prompts in the step."""
CHUNK_SLOTS = "chunk.slots"
"""The input [sequences with chunks] with the slots from which their states are read."""
CHUNK_PLACES = "chunk.places"
"""The input [tokens of prompts] with their indices in CHUNK_TOKENS."""
CHUNK_WRITES = "chunk.writes"
"""The input [chunks] that is 1 if the state after the chunk must be returned, else 0."""
CHUNK_BEGINS = "chunk.begins"
"""The input [sequences + 1] with the index of each sequence's first token, not counting tokens of prompts."""
STEP_SLOTS = "step.slots"
"""The input [sequences] with the slots from which the states of the first decoding sequences are read. Each of these
sequences has one token, and they come first in the step."""

Part = tuple[int, int, NDArray[np.float32]]
"""A matrix, with the row and column at which it begins in a larger one."""
Rows = NDArray[np.float32]
"""Embeddings, [tokens, embedding size]."""
Places = NDArray[np.int64]
"""Indices of tokens in a prompt or in a step."""


class NotPageable(StartError):
    """Raised for a model that this engine cannot serve. The message gives the reason."""

    miscounts = False
    """Whether openvino_genai's continuous batching would compute wrong tokens with the model."""


class Miscounting(NotPageable):
    """Raised if all tokens of a step would have the same position."""

    miscounts = True


class PromptEmbeddings(Protocol):
    """The images and the like in a prompt: the indices and embeddings of their tokens, and all positions."""

    token_id: int
    """The token id that the network gets at the indices of tokens with embeddings."""
    shift: int
    """The offset from the index of a token after the prompt to its position."""

    def missing(self) -> Sequence[object]:
        """Returns the items that are not encoded yet. The embeddings of the others are kept from now on."""

    def chunk(self, start: int, count: int) -> int:
        """Returns how many tokens from `start`, about `count`, a step should compute so that no image is divided."""

    def cached(self, blocks: int, size: int) -> int:
        """Returns how many of the first `blocks` blocks, of `size` tokens each, may come from the prefix cache."""

    def rows(self, start: int, count: int) -> Iterable[tuple[Places, Rows]]:
        """Yields the embeddings of `count` tokens from `start`, each with their indices relative to `start`."""

    def positions(self, start: int, count: int) -> NDArray[np.int64]:
        """Returns the positions [3, count] (time, row, column) of the tokens from `start`."""


class InferTensor(Protocol):
    """The memory of an input. The user writes to `data`, of which the network reads the part given by `shape`."""

    data: NDArray[Any]
    shape: Any


class Network(Protocol):
    """A compiled network with one infer request and a KV cache. It is not thread-safe."""

    vocab_size: int
    """The width of the logits, including padding."""
    image_shape: tuple[int, int]
    """The number of layers after the first that get embeddings of images, and the size of these embeddings."""
    hybrid: bool
    """Whether some layers keep a state for each sequence, besides the KV blocks, in the slots of a StateCache."""
    position_rows: int
    """The values in a position: 1; 3 (time, row, column) with images; 4 if the token's index precedes these."""
    adapting: bool
    """Whether any row in the input tensors has an adapter; set by the user of the network."""
    new_states: list[int]
    """The slots for the states that CHUNK_WRITES requests; set by the user of the network."""
    step_states: list[int]
    """The slots for the states after the tokens of the sequences in STEP_SLOTS; set by the user of the network."""

    @property
    def hidden(self) -> NDArray[np.float32]:
        """The hidden states of the latest step, [tokens, width], valid as long as its logits.

        A network with a draft head returns those of all tokens, which are inputs of the head; a head returns those of
        the tokens for which it computes logits.
        """

    @property
    def inputs(self) -> frozenset[str]:
        """The names of the network's inputs, without the caches."""

    def allocate(self, blocks: int, states: int) -> None:
        """Allocates the KV cache, and the slots for states."""

    def tensor(self, name: str, shape: list[int]) -> InferTensor:
        """Creates a new tensor for an input."""

    def write(self, name: str, shape: tuple[int, int], parts: Iterable[Part]) -> None:
        """Creates a new tensor for an input with these values, converted to the input's type, and zeros elsewhere."""

    def infer(self, prompts: bool) -> NDArray[np.float32]:
        """Computes a step with the contents of the input tensors in the calling thread."""

    def start(self, prompts: bool) -> None:
        """Starts a step with the contents of the input tensors; those with chunks of prompts differ in size."""

    def wait(self) -> NDArray[np.float32]:
        """Waits for the step; returns its logits [selected tokens, vocab], valid and writable until the next one."""

    def copy_block(self, source: int, target: int) -> None:
        """Copies the keys and values of a block in all layers."""

    def block_buffers(self, block: int) -> list[NDArray[np.uint8]]:
        """Returns the memory of a block's keys and values in all layers. It may be called in any thread."""

    def state_buffers(self, slot: int) -> list[NDArray[np.uint8]]:
        """Returns the memory of the state in a slot. It may be called in any thread."""

    def clear_state(self, slot: int) -> None:
        """Resets the state in a slot to that of an empty sequence."""


class NetworkEdit(Protocol):
    """Changes a network before it is compiled."""

    def __call__(self, core: Any, model: Any) -> None:
        """Changes an openvino.Model whose attention is paged. Raises NotPageable."""


class HybridEdit(Protocol):
    """Changes how a network computes the layers with states, before it is compiled."""

    def __call__(self, model: Any, precision: Callable[[], Any]) -> None:
        """Changes an openvino.Model whose attention is paged.

        Args:
            model: The network. The inputs CHUNK_* and STEP_SLOTS, and outputs with new states, may be added to it.
            precision: Returns the element type in which the network computes.
        """


SoftCaps = Callable[[Any, float], None]
"""A function that adds a soft cap to each paged attention of an openvino.Model: before the softmax, each product p of a
query and a key becomes cap * tanh(p / cap)."""


class WeightsSource(Protocol):
    """The source from which a network is read."""

    @property
    def attention_cap(self) -> float:
        """The soft cap that must be added to the attention of the network; 0 for none."""

    def read(self, core: Any) -> Any:
        """Returns a new openvino.Model with paged attention and logits of selected tokens only. Raises NotPageable."""


def network_input(name: str, shape: list[int], kind: Any) -> Any:
    """Creates an input, which `add_parameters` adds to a network."""
    from openvino import PartialShape
    from openvino import opset13 as ops

    node = ops.parameter(PartialShape(shape), kind, name=name)
    node.output(0).get_tensor().set_names({name})
    return node


def find_input(model: Any, name: str) -> Any:
    """Returns the input of a network with this name; None if there is none."""
    return next((each for each in model.get_parameters() if name in each.output(0).get_names()), None)


class NetworkCompiler(Protocol):
    """Compiles the only network of a model, and may cache it on disk for later starts."""

    def __call__(self, core: Any, read: Callable[[], Any], device: str, properties: dict[str, Any]) -> Any:
        """Returns the openvino.CompiledModel of a network.

        Args:
            core: The openvino.Core.
            read: Reads the network from the files of the model.
            device: The name of OpenVINO's device.
            properties: OpenVINO's properties of the network.

        Raises:
            NotPageable: This engine cannot compute the network.
            RuntimeError: OpenVINO cannot compile the network.
        """


def compile_new(core: Any, read: Callable[[], Any], device: str, properties: dict[str, Any]) -> Any:
    """Compiles a network without caching it. It has the parameters of NetworkCompiler."""
    return core.compile_model(read(), device, properties)


class FileTokenizer(Protocol):
    """The tokenizer of a single-file model, with those methods of openvino_genai.Tokenizer that the engine uses."""

    library: JsonTokenizer
    """The tokenizer itself."""
    vocabulary: Vocabulary
    """The texts of all tokens as bytes."""
    single: tuple[tuple[int, ...], tuple[int, ...]]
    """The ids before and after a single text."""
    between: tuple[int, ...]
    """The ids between two texts that are computed together."""
    ends: set[int]
    """The ids of the tokens that end an answer."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Returns the token ids of a text. Raises BadRequest for a text with unpaired surrogates."""

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        """Returns the text of token ids."""


class VisionFile(Protocol):
    """The file with a single-file model's vision networks, which an export with vision has in other files."""

    config: Json
    """The members of config.json that say how images are read."""
    processor: Json
    """The members of preprocessor_config.json."""

    def network(self, part: str) -> Any:
        """Returns a new openvino.Model, the same as openvino_PART_model.xml in an export. Raises StartError."""


class EngineFile(Protocol):
    """A model that consists of one file."""

    def tokenizer(self) -> FileTokenizer:
        """Returns the tokenizer. Raises StartError."""

    def vision_file(self, config: EngineConfig) -> VisionFile | None:
        """Returns the file with the model's vision networks; None if neither the options nor the folder has one.

        Raises StartError if a file named by the options cannot be used.
        """

    def without_images(self, config: EngineConfig, reason: str) -> None:
        """Logs why the file with the model's vision networks, if there is one, is not used.

        Raises StartError if an option names such a file.
        """

    def weights(
        self, edits: Sequence[NetworkEdit], *, trees: bool, adapted: bool, exact: bool, images: bool
    ) -> WeightsSource:
        """Returns the source of its network, without reading the file yet.

        Args:
            edits: The changes to the network, in this order, made before its logits are limited to selected tokens.
            trees: Whether it gets the input TREE_MASK, if its attention allows that.
            adapted: Whether it gets inputs for adapters.
            exact: Whether weights may not be rounded for speed.
            images: Whether it gets the inputs of images: IMAGE_ROWS and others.

        Raises:
            NotPageable: This file format does not support the changes.
        """

    def pooling_network(self, output: str, *, exact: bool) -> Any:
        """Returns an openvino.Model as optimum-cli exports pooling models, with "logits" or "last_hidden_state".

        Weights are not rounded for speed if it is `exact`. Raises StartError or RuntimeError if it cannot be made.
        """


def file_of(path: Path) -> EngineFile | None:
    """Returns the model in a file; None for a directory, or a file of an unknown format."""
    row = compose().format_of(path)
    found: EngineFile | None = None if row is None else named(row.package, row.network)(path)
    return found


def has_states(names: Iterable[str]) -> bool:
    """Returns whether an output with these names belongs to a layer with states, unlike the logits."""
    return any(kind in name for name in names for kind in (NEW_STATES, STEP_STATES, CHUNK_OUTPUTS))


# --- adapters: weights that requests add to those of a network


class AdapterWeights(Protocol):
    """Weights of an adapter, which are added to those of the model."""

    @property
    def key(self) -> str:
        """A text that identifies the adapter: one with other weights or another scale never has it."""

    @property
    def scale(self) -> float:
        """The factor by which the weights are multiplied."""

    @property
    def layers(self) -> Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """The two low-rank matrices of each layer, by the layer's name."""

    @property
    def digest(self) -> bytes:
        """A hash of the weights and the scale, equal in all processes and for all names."""


class AdapterProvider:
    """Holds adapters, and puts those that running sequences use into the network. The base class has no adapters."""

    ranks = 1
    """The number of columns of the ADAPTER_CHOICE input: the sum of the ranks of all adapters in the network."""
    report: Mapping[str, Any] = {}
    """What the front end has to know of the network to check adapters; it becomes ModelInfo.of_task."""

    def get(self, text: str) -> AdapterWeights | None:
        """Returns the adapter that a request names, read from its file if new; None for "". Raises EngineFailure."""
        return None

    def acquire(self, adapter: AdapterWeights | None) -> bool:
        """Counts one more running sequence with this adapter; returns False if there is no room for it now."""
        return True

    def release(self, adapter: AdapterWeights | None) -> None:
        """Counts one running sequence less with this adapter."""

    def name(self, key: str) -> str:
        """Returns the name of the adapter with a key (`AdapterWeights.key`)."""
        return key

    def columns(self, adapter: AdapterWeights) -> slice:
        """Returns the columns of ADAPTER_CHOICE that belong to an adapter while a sequence uses it."""
        return slice(0, 0)


class AdapterInputs(Protocol):
    """Adds inputs for adapters to a network."""

    def insert(self, model: Any, kind: Any) -> None:
        """Adds inputs for adapters to a paged openvino.Model that computes in this type. Raises NotPageable."""

    def provider(self, network: Any) -> AdapterProvider:
        """Returns the provider that puts adapters into a model.PagedModel built with these inputs."""
