"""The input tensors of the network, written in place, since little changes from one decode step to the next.

A step computes `rows` of decoding sequences, one token each, and after them chunks: parts of prompts, or a token with
draft tokens after it and alternatives to the first of these. Tokens are concatenated over the batch, [T]. `past_lens`
[n] is the number of cached tokens of each sequence, `subsequence_begins` [n + 1] the index of its first token, and
`block_indices` with `block_indices_begins` [n + 1] its blocks.

Padding is an additional sequence without logits that makes the number of tokens a multiple of `pad_to`. openvino
prepares itself for each new number of tokens: with the demo model, a prompt takes 2.5 times as long.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .block_manager import BlockTables
from .network import (
    ADAPTER_CHOICE,
    CHUNK,
    CHUNK_BEGINS,
    CHUNK_LENGTHS,
    CHUNK_OTHERS,
    CHUNK_PLACES,
    CHUNK_SLOTS,
    CHUNK_STARTS,
    CHUNK_TOKENS,
    CHUNK_WRITES,
    HIDDEN_INPUT,
    IMAGE_DEEPER,
    IMAGE_PLACES,
    IMAGE_ROWS,
    LOGITS_INPUT,
    MOST_STEPS,
    STEP_SLOTS,
    TREE_MASK,
    AdapterProvider,
    Network,
    Places,
    Rows,
)
from .sequence import Sequence

Ints = NDArray[np.int32]
NO_MASK = np.zeros(0, np.uint8)
ONE_STATE = 1 << 30
"""A number of tokens greater than any sequence has, as the interval of states: only the state after the last token is
written. With 0, Mamba's operation (PagedSelectiveSSM) writes no state at all, so that each step begins with an empty
one (openvino 2026.4.1)."""


class Chunk(NamedTuple):
    """A part of a sequence that a step computes: `length` tokens from the index `start`."""

    sequence: Sequence
    """The sequence."""
    start: int
    """The index of the part's first token in the sequence."""
    length: int
    """The number of tokens."""
    wanted: int
    """The number of last tokens for which logits are computed."""
    states: tuple[int, ...] = ()
    """The state slots of a hybrid network: first the one that is read, then those that are written. The one that is
    read may also be the first that this sequence writes, but no other sequence may write it."""
    first: int = 0
    """The tokens, at most `every`, after which the first state is written; 0 for only the state after all tokens."""
    every: int = ONE_STATE
    """The number of tokens between two written states. The last slot gets the state after all tokens."""

    @property
    def ends(self) -> tuple[int, ...]:
        """The numbers of tokens after which states are written, or would be."""
        end = self.start + self.length
        return (*(range(self.start + self.first, end, self.every) if self.first else ()), end)


class ModelInputs:
    """Writes the inputs of a step to the tensors of one network."""

    def __init__(
        self,
        network: Network,
        tables: BlockTables,
        *,
        pad_to: int = 1,
        padding_block: int = 0,
        ahead: int = 0,
        adapters: AdapterProvider | None = None,
    ) -> None:
        """Creates the inputs without tensors, which are created and enlarged as steps need them.

        Args:
            network: The network.
            tables: The block tables, with the tokens of the sequences.
            pad_to: The number of tokens in a step with chunks is padded to a multiple of this.
            padding_block: The KV block to which padding is written.
            ahead: The offset of the ids in a chunk: the network reads the token this many places after each; 1 for a
                multi-token prediction head.
            adapters: The adapters of the sequences, if the network takes adapters.
        """
        self._network = network
        self._pad_to = pad_to
        self._ahead = ahead
        self._padding_block = np.array([padding_block], np.int32)
        self._tables = tables
        self._names = network.inputs
        self._adapters = adapters if ADAPTER_CHOICE in network.inputs else None
        self._choice: tuple[Any, NDArray[Any]] | None = None  # with its memory
        self._tensors: dict[str, Any] = {}
        self._arrays: dict[str, NDArray[Any]] = {}
        self._sizes: dict[str, int] = {}
        self._longest = network.tensor("max_context_len", []).data
        self._count = np.arange(4096, dtype=np.int32)
        self._images: list[tuple[Places, Rows]] = []  # of the step, with the places of their tokens
        self._settled = False  # everything except the tokens is as the last step wrote it

    def write(self, rows: NDArray[np.int64], chunks: list[Chunk], changed: bool) -> None:
        """Writes the inputs of a step.

        Args:
            rows: The block table rows of the decoding sequences.
            chunks: The parts of other sequences to compute.
            changed: Whether the rows, or the blocks of their sequences, differ from those of the last step.
        """
        decoding, batch = len(rows), len(rows) + len(chunks)
        tokens = decoding + sum(chunk.length for chunk in chunks)
        if tokens >= len(self._count):
            self._count = np.arange(2 * tokens, dtype=np.int32)
        padding = -tokens % self._pad_to if chunks and tokens > 1 else 0
        ids, positions = self._sized("input_ids", tokens + padding), self._positions(tokens + padding)
        past = self._sized("past_lens", batch + (padding > 0))
        longest = padding
        if decoding:
            np.take(self._tables.newest, rows, out=ids[:decoding])
            np.take(self._tables.computed, rows, out=past[:decoding])
            positions[:, :decoding] = past[:decoding]
            if len(positions) > 1:
                positions[-3:, :decoding] += self._tables.shift[rows]
            longest = max(longest, int(past[:decoding].max()) + 1)
        if changed or chunks or not self._settled:
            self._describe(rows, chunks, ids, positions, past, padding)
            longest = max([longest, *(chunk.start + chunk.length for chunk in chunks)])
            if self._adapters is not None:
                self._choose(self._adapters, rows, chunks, tokens + padding)
        self._settled = not chunks
        if "la.past_lens" in self._names:
            counted = self._sized("la.past_lens", batch)
            counted[:decoding] = past[:decoding]
            counted[decoding:batch] = [(chunk.every - chunk.first) % chunk.every for chunk in chunks]
        self._longest[...] = longest

    def write_hidden(self, parts: list[NDArray[np.float32]]) -> None:
        """Writes the hidden states of a step's tokens, which are inputs of a multi-token prediction head."""
        shape = [sum(map(len, parts)), 1, parts[0].shape[1]]
        np.concatenate(parts, out=self._shaped(HIDDEN_INPUT, shape, 0)[:, 0])

    def invalidate(self) -> None:
        """Makes the next `write` write everything, since a failed one may have left the tensors incomplete."""
        self._settled = False

    def _describe(
        self,
        rows: NDArray[np.int64],
        chunks: list[Chunk],
        ids: NDArray[Any],
        positions: NDArray[Any],
        past: Ints,
        padding: int,
    ) -> None:
        """Writes the inputs that do not change while decode steps add tokens within their blocks."""
        decoding, batch = len(rows), len(rows) + len(chunks) + (padding > 0)
        begins, first_blocks = (
            self._sized("subsequence_begins", batch + 1),
            self._sized("block_indices_begins", batch + 1),
        )
        begins[: decoding + 1] = self._count[: decoding + 1]
        tables, wanted = [self._tables.tables(rows)], [self._count[:decoding]]
        self._images = []
        num_blocks = self._tables.num_blocks[rows].tolist()
        at = decoding
        for place, chunk in enumerate(chunks, decoding):
            self._write_tokens(chunk, at, ids, positions)
            past[place] = chunk.start
            at += chunk.length
            begins[place + 1] = at
            wanted.append(self._count[at - chunk.wanted : at])
            used = self._tables.blocks(chunk.start + chunk.length)
            num_blocks.append(used)
            tables.append(self._tables.table[chunk.sequence.row, :used])
        if padding:
            ids[at : at + padding] = 0
            positions[:, at : at + padding] = self._count[:padding]
            past[batch - 1] = 0
            begins[batch] = at + padding
            num_blocks.append(1)
            tables.append(self._padding_block)
        first_blocks[0] = 0
        np.cumsum(num_blocks, out=first_blocks[1 : batch + 1])
        self._fill("block_indices", np.concatenate(tables))
        self._fill(LOGITS_INPUT, np.concatenate(wanted))
        if TREE_MASK in self._names:
            self._write_trees(decoding, chunks, padding)
        if IMAGE_ROWS in self._names:
            self._write_images()
        if "la.block_indices" in self._names:
            self._describe_states(rows, chunks)
        if CHUNK_TOKENS in self._names:
            self._divide_prompts(decoding, chunks, begins)

    def _write_tokens(self, chunk: Chunk, at: int, ids: NDArray[Any], positions: NDArray[Any]) -> None:
        """Writes the ids and the positions of a chunk's tokens, from the index `at` on, and notes its images."""
        sequence, start, count = chunk.sequence, chunk.start, chunk.length
        ids, positions = ids[at : at + count], positions[:, at : at + count]
        first = start + self._ahead
        known = np.array(sequence.ids[first : first + count], np.int64)
        ids[: len(known)] = known
        positions[:] = np.arange(start, start + count)
        if (images := sequence.images) is not None:
            ids[: len(known)][known < 0] = images.token_id
            self._images += [(at + places, matrix) for places, matrix in images.rows(first, count)]
            if len(positions) > 1:
                positions[-3:] = images.positions(start, count)
        if len(known) < count:
            drafted, others = len(known), len(sequence.alternatives)
            ids[drafted:] = sequence.draft_tokens + sequence.alternatives
            positions[:, count - others :] = positions[:, drafted : drafted + others]

    def _choose(self, adapters: AdapterProvider, rows: NDArray[np.int64], chunks: list[Chunk], tokens: int) -> None:
        """Writes the adapter of each token."""
        if self._choice is None or self._choice[1].shape[0] < tokens or self._choice[1].shape[1] != adapters.ranks:
            tensor = self._network.tensor(ADAPTER_CHOICE, [max(64, 2 * tokens), adapters.ranks])
            self._choice = tensor, tensor.data
        tensor, data = self._choice
        tensor.shape = [tokens, adapters.ranks]
        data[:tokens] = 0
        at = 0
        self._network.adapting = False
        for row, count in [*((row, 1) for row in rows.tolist()), *((c.sequence.row, c.length) for c in chunks)]:
            adapter = self._tables.adapters[row]
            if adapter is not None:
                self._network.adapting = True
                data[at : at + count, adapters.columns(adapter)] = adapter.scale
            at += count

    def _describe_states(self, rows: NDArray[np.int64], chunks: list[Chunk]) -> None:
        """Writes the state slots that linear attention reads and writes for each sequence.

        The network writes a state whenever la.past_lens plus the number of computed tokens is a multiple of
        la.cache_interval. Since la.past_lens serves nothing else, `Chunk.first` can have any value.
        """
        decoding, batch = len(rows), len(rows) + len(chunks)
        begins, every = self._sized("la.block_indices_begins", batch + 1), self._sized("la.cache_interval", batch)
        begins[: decoding + 1] = 2 * self._count[: decoding + 1]
        begins[decoding + 1 : batch + 1] = 2 * decoding + np.cumsum([len(chunk.states) for chunk in chunks])
        every[:decoding] = ONE_STATE
        every[decoding:batch] = [chunk.every for chunk in chunks]
        slots = [self._tables.states[rows].reshape(-1), *(np.array(chunk.states, np.int32) for chunk in chunks)]
        self._fill("la.block_indices", np.concatenate(slots))
        if STEP_SLOTS in self._names:
            read, written = self._tables.states[rows[:MOST_STEPS]].T
            self._fill(STEP_SLOTS, read)
            self._network.step_states = written.tolist()

    def _divide_prompts(self, decoding: int, chunks: list[Chunk], begins: Ints) -> None:
        """Writes how layers with states divide the prompts at the end of a step into chunks.

        Args:
            decoding: The number of decoding sequences.
            chunks: The parts of other sequences to compute.
            begins: The index of each sequence's first token in the step.
        """
        others = len(chunks)
        while others and chunks[others - 1].every > 1:  # not draft tokens, behind each of which a state is written
            others -= 1
        prompts, at = chunks[others:], int(begins[decoding + others])
        starts, pieces, writes, new_states = list[int](), list[tuple[int, int]](), list[int](), list[int]()
        self._fill(CHUNK_OTHERS, self._count[:at])
        # the operations get all sequences: with fewer openvino 2026.4 computes nothing in this step, without an error
        self._fill(CHUNK_BEGINS, np.minimum(begins[: decoding + len(chunks) + 1], at))
        for number, chunk in enumerate(prompts):
            first, ends = len(pieces), [at + end - chunk.start for end in chunk.ends]
            for end in ends:
                pieces += [(place, min(place + CHUNK, end)) for place in range(at, end, CHUNK)]
                writes += [*[0] * (len(pieces) - len(writes) - 1), 1]
                at = end
            starts += [number, *[-1] * (len(pieces) - first - 1)]
            new_states += chunk.states[1:]
        tokens = np.zeros((len(pieces), CHUNK), np.int32)
        for row, (place, end) in zip(tokens, pieces, strict=True):
            row[: end - place] = self._count[place:end]
        lengths = np.array([end - place for place, end in pieces], np.int32)
        self._fill(CHUNK_TOKENS, tokens.reshape(-1))
        self._fill(CHUNK_LENGTHS, lengths)
        self._fill(CHUNK_STARTS, np.array(starts, np.int32))
        self._fill(CHUNK_SLOTS, np.array([chunk.states[0] for chunk in prompts], np.int32))
        self._fill(CHUNK_PLACES, np.flatnonzero(self._count[:CHUNK] < lengths[:, None]))
        self._fill(CHUNK_WRITES, np.array(writes, np.int32))
        self._network.new_states = new_states

    def _write_trees(self, decoding: int, chunks: list[Chunk], padding: int) -> None:
        """Writes the attention mask between a sequence's tokens with alternatives; other attention is causal."""
        masks = [_tree_mask(chunk) if chunk.sequence.alternatives else NO_MASK for chunk in chunks]
        any_mask = any(map(len, masks))
        sizes = [*[0] * (decoding + 1), *map(len, masks), *[0] * (padding > 0)] if any_mask else []
        self._fill(TREE_MASK, np.concatenate([NO_MASK, *masks]))
        self._fill(f"{TREE_MASK}_begins", np.cumsum(sizes))

    def _write_images(self) -> None:
        """Writes the embeddings of the step's image tokens, and the indices of these tokens."""
        places = [each for each, _ in self._images]
        self._fill(IMAGE_PLACES, np.concatenate([self._count[:0], *places]))
        count, (layers, hidden) = sum(map(len, places)), self._network.image_shape
        memory = self._shaped(IMAGE_ROWS, [count, hidden], 0)
        parts = [matrix.reshape(-1, 1 + layers, hidden) for _, matrix in self._images]
        if parts:
            np.concatenate([part[:, 0] for part in parts], out=memory)
        if layers:
            deeper = self._shaped(IMAGE_DEEPER, [layers, count + 1, hidden], 1)
            deeper[:, count] = 0
            if parts:
                np.concatenate([part[:, 1:].transpose(1, 0, 2) for part in parts], axis=1, out=deeper[:, :count])

    def _fill(self, name: str, values: NDArray[Any]) -> None:
        self._sized(name, len(values))[: len(values)] = values

    def _positions(self, size: int) -> NDArray[Any]:
        """Returns the array for the positions of `size` tokens, [numbers per position, tokens]."""
        rows = self._network.position_rows
        return self._sized("position_ids", size)[None] if rows == 1 else self._shaped("position_ids", [rows, size], 1)

    def _shaped(self, name: str, shape: list[int], grows: int) -> NDArray[Any]:
        """Returns the array of an input with several axes.

        Args:
            name: The name of the input.
            shape: The shape for this step.
            grows: The axis whose size changes between steps, for which memory is reserved in advance.
        """
        size = math.prod(shape)
        if name not in self._arrays or len(self._arrays[name]) < size:
            room = list(shape)
            room[grows] = max(64, 2 * shape[grows])
            self._tensors[name] = self._network.tensor(name, room)
            self._arrays[name] = self._tensors[name].data.reshape(-1)
        self._tensors[name].shape = shape
        return self._arrays[name][:size].reshape(shape)

    def _sized(self, name: str, size: int) -> NDArray[Any]:
        """Returns the array of an input for this number of elements: a new shape takes 0.4 us, a new tensor 20 us."""
        if self._sizes.get(name) != size:
            array = self._arrays.get(name)
            if array is None or len(array) < size:
                self._tensors[name] = self._network.tensor(name, [max(64, 2 * size)])
                self._arrays[name] = self._tensors[name].data
            self._tensors[name].shape = [size]
            self._sizes[name] = size
        return self._arrays[name]


def _tree_mask(chunk: Chunk) -> NDArray[np.uint8]:
    """Returns a mask [length * length] of what each token sees: an alternative not the token that it replaces."""
    mask, others = np.tri(chunk.length, dtype=np.uint8), len(chunk.sequence.alternatives)
    drafted = len(chunk.sequence.ids) - chunk.start
    for place, row in enumerate(range(chunk.length - others, chunk.length)):
        mask[row, drafted + place : row] = 0
    return mask.reshape(-1)
