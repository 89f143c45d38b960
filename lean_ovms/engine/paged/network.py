"""The interface of networks with paged attention, of files of which each is a whole model, and of adapters.

`model.PagedModel` implements the first, tests have their own; features have the others.
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
from ..loading.json_tokenizer import JsonTokenizer

ATTENTION = "PagedAttentionExtension"
"""The kind of the operations that read the KV cache."""
EMBEDDINGS_INPUT = "inputs_embeds"
"""The input of a language model whose embeddings of tokens are a network of their own."""
LOGITS_INPUT = "sampled_tokens_indices"
"""The input that names the tokens, by their places in the batch, for which logits are computed."""
IMAGE_ROWS, IMAGE_PLACES, IMAGE_DEEPER = "image_rows", "image_places", "image_deeper"
"""Inputs of models with vision: embeddings [image tokens, hidden], their places among the tokens of the step, and what
is added behind the first layers [layers, image tokens + 1, hidden]; its last row is for no token."""
ADAPTER_CHOICE = "lora_choice"
"""The input [tokens, ranks]: for each token the scale of its adapter in the columns of its ranks, else 0."""
HIDDEN_INPUT = "hidden_states"
"""The input of a head: what its model, or the head itself, knows of each token, [tokens, 1, width]."""

TREE_MASK = "qq_bias"
"""The input that says which of a sequence's tokens in a step see which, for trees of draft tokens. Empty: each those
before it."""
STATES = "_state_table."
"""In the names of inputs with the states of linear attention and short convolutions: a row for each slot."""

NEW_STATES = "_state_new."
"""In the names of outputs with states that are to be written into the slots of a table; the rest is the table's."""
STEP_STATES = "_state_step."
"""In the names of outputs with states of decoding sequences, behind their tokens; the rest is the table's."""
MOST_STEPS = 16
"""Sequences at most whose decoding step layers with states may compute as products of matrices: openvino
keeps the states behind it in each layer. Those of others are computed by openvino's operation."""
CHUNK = 64
"""Tokens of a prompt that a layer with states computes at once. More of them cost more products for
each token, fewer make the products small."""
MOST_PROMPTS = 2
"""Prompts at most of which a step computes chunks: each takes some MB in each layer, for its states."""
CHUNK_TOKENS = "chunk.tokens"
"""The input [chunks * CHUNK]: the places of the chunks' tokens in the step, those of a sequence one after the other;
any for padding."""
CHUNK_LENGTHS = "chunk.lengths"
"""The input [chunks]: how many tokens each has without padding."""
CHUNK_STARTS = "chunk.starts"
"""The input [chunks]: which of the sequences in CHUNK_SLOTS begins with each; -1: none does."""
CHUNK_OTHERS = "chunk.others"
"""The input [other tokens]: the places in the step of the tokens before those of prompts."""
CHUNK_SLOTS = "chunk.slots"
"""The input [sequences with chunks]: the slots that their states are read from."""
CHUNK_PLACES = "chunk.places"
"""The input [tokens of prompts]: where they are in CHUNK_TOKENS."""
CHUNK_WRITES = "chunk.writes"
"""The input [chunks]: 1 where the state behind a chunk is wanted, else 0."""
CHUNK_BEGINS = "chunk.begins"
"""The input [sequences + 1]: where each sequence's tokens begin, those of prompts left out."""
STEP_SLOTS = "step.slots"
"""The input [sequences]: the slots that the states of the first decoding sequences are read from. Each has one token,
and these are the first of the step."""

Part = tuple[int, int, NDArray[np.float32]]
"""Row and column at which a matrix begins in a larger one."""
Rows = NDArray[np.float32]
"""Embeddings, [tokens, numbers of each]."""
Places = NDArray[np.int64]
"""The places of tokens in a prompt, or in a step."""


class NotPageable(StartError):
    """Raised for a model that this engine cannot serve. The message is the reason."""

    miscounts = False
    """Whether its tokens would be wrong with openvino_genai's continuous batching."""


class Miscounting(NotPageable):
    """Raised where all tokens of a step would have one position."""

    miscounts = True


class PromptEmbeddings(Protocol):
    """The content of one prompt beside text: where its tokens are, their embeddings, and the positions of all
    tokens."""

    token_id: int
    """The id that the network gets in the places of tokens with embeddings."""
    shift: int
    """How far the position of a token behind the prompt is from its place."""

    def missing(self) -> Sequence[object]:
        """Returns what is not encoded. The embeddings of the rest are kept from now on."""

    def chunk(self, start: int, count: int) -> int:
        """Returns how many tokens from `start` on a step computes in the place of `count`."""

    def cached(self, blocks: int, size: int) -> int:
        """Returns how many of so many first blocks of `size` tokens may come from the prefix cache."""

    def rows(self, start: int, count: int) -> Iterable[tuple[Places, Rows]]:
        """Yields the embeddings among the `count` tokens from `start` on, with the places of their tokens behind it."""

    def positions(self, start: int, count: int) -> NDArray[np.int64]:
        """Returns the positions [3, count] (time, row, column) of the tokens from `start` on."""


class InferTensor(Protocol):
    """An input's memory. The user writes into `data`; `shape` is the part of it that is read."""

    data: NDArray[Any]
    shape: Any


class Network(Protocol):
    """A compiled network, its one infer request and its KV cache. Not thread-safe."""

    vocab_size: int
    """The width of the logits, padding included."""
    image_shape: tuple[int, int]
    """How many layers behind the first get embeddings of images, and the length of these."""
    hybrid: bool
    """Whether some layers keep a state for each sequence beside the KV blocks, in the slots of a StateCache."""
    position_rows: int
    """How many numbers a token's position has: 1; 3 (time, row, column) where images have a height and a width; 4 where
    the token's place comes before those."""
    adapting: bool
    """Whether a row of what is in the input tensors has an adapter; the user of the network sets it."""
    new_states: list[int]
    """The slots for the states that CHUNK_WRITES asks for; the user of the network sets it."""
    step_states: list[int]
    """The slots for the states behind the tokens of the sequences in STEP_SLOTS; the user of the network sets it."""

    @property
    def hidden(self) -> NDArray[np.float32]:
        """The hidden states of the newest step, [tokens, width], valid as long as its logits.

        A network with a head has those of all tokens, from which the head goes on; a head has those of wanted tokens.
        """

    @property
    def inputs(self) -> frozenset[str]:
        """The names of the network's inputs, without those of the caches."""

    def allocate(self, blocks: int, states: int) -> None:
        """Makes the KV cache, and so many slots for states."""

    def tensor(self, name: str, shape: list[int]) -> InferTensor:
        """Makes a new tensor for an input."""

    def write(self, name: str, shape: tuple[int, int], parts: Iterable[Part]) -> None:
        """Makes a new tensor for an input, with these values in the input's own precision, and zeros elsewhere."""

    def infer(self, prompts: bool) -> NDArray[np.float32]:
        """Computes with what is in the input tensors: `start` and `wait` in one, without a change of threads."""

    def start(self, prompts: bool) -> None:
        """Starts to compute with what is in the input tensors.

        Args:
            prompts: Whether these have chunks of prompts, whose sizes differ from those of the steps before and after.
        """

    def wait(self) -> NDArray[np.float32]:
        """Returns the logits [wanted tokens, vocab] of what was started, valid and writable until the next start.

        Raises whatever the network raises.
        """

    def copy_block(self, source: int, target: int) -> None:
        """Copies the keys and values of a block, in all layers."""

    def block_buffers(self, block: int) -> list[NDArray[np.uint8]]:
        """Returns the memory of a block's keys and values, in all layers. Any thread may call it."""

    def state_buffers(self, slot: int) -> list[NDArray[np.uint8]]:
        """Returns the memory of a slot's state. Any thread may call it."""

    def clear_state(self, slot: int) -> None:
        """Makes a slot's state that of a sequence without tokens."""


class NetworkEdit(Protocol):
    """Changes a network before it is compiled."""

    def __call__(self, core: Any, model: Any) -> None:
        """Changes an openvino.Model whose attention is paged. Raises NotPageable."""


class HybridEdit(Protocol):
    """Changes how a network computes the layers that keep states, before it is compiled."""

    def __call__(self, model: Any, precision: Callable[[], Any]) -> None:
        """Changes an openvino.Model whose attention is paged.

        Args:
            model: The network, which may get the inputs CHUNK_* and STEP_SLOTS, and outputs with new states.
            precision: Returns the element type in which the network computes.
        """


class WeightsSource(Protocol):
    """The files that a network is read from."""

    def read(self, core: Any) -> Any:
        """Returns a new openvino.Model with paged attention and logits for wanted tokens. Raises NotPageable."""


def network_input(name: str, shape: list[int], kind: Any) -> Any:
    """Returns a new input, which `add_parameters` adds to a network."""
    from openvino import PartialShape
    from openvino import opset13 as ops

    node = ops.parameter(PartialShape(shape), kind, name=name)
    node.output(0).get_tensor().set_names({name})
    return node


def find_input(model: Any, name: str) -> Any:
    """Returns an input of a network, None if there is none of this name."""
    return next((each for each in model.get_parameters() if name in each.output(0).get_names()), None)


class NetworkCompiler(Protocol):
    """Compiles the one network of a model, and may keep it for later starts."""

    def __call__(self, core: Any, read: Callable[[], Any], device: str, properties: dict[str, Any]) -> Any:
        """Returns an openvino.CompiledModel.

        Args:
            core: The openvino.Core.
            read: Reads the network from the files of the model.
            device: OpenVINO's device.
            properties: OpenVINO's properties of the network.

        Raises:
            NotPageable: This engine cannot compute the network.
            RuntimeError: OpenVINO cannot.
        """


def compile_new(core: Any, read: Callable[[], Any], device: str, properties: dict[str, Any]) -> Any:
    """Implements NetworkCompiler, and keeps nothing."""
    return core.compile_model(read(), device, properties)


class FileTokenizer(Protocol):
    """The tokenizer of a file; of openvino_genai.Tokenizer it has what loading.model_info and the pipelines use."""

    library: JsonTokenizer
    """What tokenizes."""
    vocabulary: Vocabulary
    """The bytes of the tokens."""
    single: tuple[tuple[int, ...], tuple[int, ...]]
    """The ids before and after a text."""
    between: tuple[int, ...]
    """The ids between two texts that are computed as one."""
    ends: set[int]
    """The tokens that end an answer."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Encodes as LoadedModel.encode does."""

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        """Returns the text of ids."""


class VisionFile(Protocol):
    """The file that reads images for a model which is one file: what an export with vision has besides its text."""

    config: Json
    """The members of config.json that say how images are read."""
    processor: Json
    """The members of preprocessor_config.json."""

    def network(self, part: str) -> Any:
        """Returns a new openvino.Model, which an export has in openvino_PART_model.xml. Raises StartError."""


class EngineFile(Protocol):
    """A model that is one file."""

    def tokenizer(self) -> FileTokenizer:
        """Returns the tokenizer. Raises StartError."""

    def vision_file(self, config: EngineConfig) -> VisionFile | None:
        """Returns what reads images for it; None: nothing does, as the options say or what is beside the file.

        Raises StartError for a file that the options name and that cannot be used.
        """

    def weights(
        self, edits: Sequence[NetworkEdit], *, trees: bool, adapted: bool, exact: bool, images: bool
    ) -> WeightsSource:
        """Returns the source of its network; the file is read later.

        Args:
            edits: What changes the network, in this order, before its logits are limited to wanted tokens.
            trees: Whether it gets the input TREE_MASK, where its attention allows that.
            adapted: Whether it gets inputs of adapters.
            exact: Whether weights may not be rounded for speed.
            images: Whether it gets the inputs of images: IMAGE_ROWS and others.

        Raises:
            NotPageable: Networks of this kind of file cannot be changed so.
        """

    def pooling_network(self, output: str) -> Any:
        """Returns an openvino.Model of the form that optimum-cli exports of a pooling model.

        Args:
            output: The name of its output: logits or last_hidden_state.

        Raises:
            StartError: The file cannot be served.
            RuntimeError: OpenVINO cannot make the network.
        """


def file_of(path: Path) -> EngineFile | None:
    """Returns the model that a file is; None: it is a directory, or a file of an unknown form."""
    row = compose().format_of(path)
    found: EngineFile | None = None if row is None else named(row.package, row.network)(path)
    return found


def has_states(names: Iterable[str]) -> bool:
    """Returns whether an output of a network with these names has new states, and is not the logits, say."""
    return any(kind in name for name in names for kind in (NEW_STATES, STEP_STATES))


# --- adapters: weights that requests add to those of a network


class AdapterWeights(Protocol):
    """Weights that a request adds to those of the model."""

    @property
    def key(self) -> str:
        """A text that no other adapter has, nor had."""

    @property
    def scale(self) -> float:
        """The factor of the weights."""

    @property
    def rank(self) -> int:
        """The greatest rank of its layers."""

    @property
    def layers(self) -> Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """The two matrices of each layer, by the name of the layer."""


class AdapterProvider:
    """Keeps adapters, and puts those that sequences use into the network. This one has none."""

    ranks = 1
    """The columns of the input that chooses adapters: the ranks of all adapters that are in the network."""

    def get(self, text: str) -> AdapterWeights | None:
        """Returns the adapter of a protocol.Submit, which may be read from its file first; None for "".

        Raises EngineFailure.
        """
        return None

    def acquire(self, adapter: AdapterWeights | None) -> bool:
        """Counts one more sequence with this adapter; False if the network has no room for the adapter now."""
        return True

    def release(self, adapter: AdapterWeights | None) -> None:
        """Counts one sequence less with this adapter."""

    def name(self, text: str) -> str:
        """Returns the name of the adapter of a protocol.Submit."""
        return text

    def columns(self, adapter: AdapterWeights) -> slice:
        """Returns which of the columns an adapter has as long as a sequence uses it."""
        return slice(0, 0)


class AdapterInputs(Protocol):
    """Makes adapters inputs of a network."""

    def insert(self, model: Any, kind: Any) -> None:
        """Adds the inputs of adapters to an openvino.Model.

        Args:
            model: The network, whose attention is paged.
            kind: The element type in which the network computes.

        Raises:
            NotPageable: No layer of the network can take an adapter.
        """

    def provider(self, network: Any) -> AdapterProvider:
        """Returns what puts adapters into a model.PagedModel that was made with these inputs."""
