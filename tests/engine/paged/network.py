"""A network without weights for tests of the paged engine, which reads back what a token sees from the cache.

A block of its cache holds token ids. Logits depend on the whole text that the block tables give, so a wrong block, a
wrong length or a missing copy leads to other tokens.
"""

import itertools
import random
from functools import cache
from types import SimpleNamespace

import numpy as np

from lean_ovms.engine.paged.network import (
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
    LOGITS_INPUT,
    MOST_PROMPTS,
    MOST_STEPS,
    STEP_SLOTS,
    TREE_MASK,
)

VOCAB = 64
NAMES = (
    "input_ids",
    "position_ids",
    "past_lens",
    "subsequence_begins",
    "block_indices",
    "block_indices_begins",
    "max_context_len",
    LOGITS_INPUT,
)
EMPTY = -1


def logits_after(text):
    """Returns the logits [vocab] after these tokens. They are peaked, often at the token that followed the last token
    before."""
    return _logits(str(list(text[-6:])) + str(len(text)), (text[-1] + 1) % 8).copy()


@cache
def _logits(seed, likely):
    dice = random.Random(seed)
    line = np.array([dice.gauss(0, 2) for _ in range(VOCAB)], np.float32)
    line[likely] += 6 * dice.random()
    return line


class FakeNetwork:
    """A network.Network that is strict about its inputs. The next `fail` calls of `wait` raise an error.

    A hidden state consists of a token's position and the token. The cache of a head has the same blocks.
    """

    vocab_size = VOCAB
    hybrid = False
    image_shape = (0, 0)
    position_rows = 1
    inputs = frozenset([*NAMES, TREE_MASK])
    after = staticmethod(logits_after)

    def __init__(self, block_size, head=None):
        self.block_size = block_size
        self.head = head
        self.tensors = {}
        self.fail = 0
        self.copies = 0
        self.computed = 0

    def allocate(self, blocks, states):
        self.cache = np.full((blocks, self.block_size), EMPTY, np.int64)
        if self.head is not None:
            self.head.allocate(blocks, states)

    def tensor(self, name, shape):
        kind = np.int64 if name in ("input_ids", "position_ids", LOGITS_INPUT) else np.int32
        kind = {HIDDEN_INPUT: np.float32, TREE_MASK: np.uint8}.get(name, kind)
        data = np.full(shape, 9 if kind is np.uint8 else -9, kind)
        made = self.tensors[name] = SimpleNamespace(data=data, shape=shape)
        return made

    def _input(self, name):
        tensor = self.tensors[name]
        return tensor.data[: tensor.shape[0]] if len(tensor.shape) else tensor.data

    def start(self, prompts):
        """Computes the step, even if `wait` will raise an error."""
        ids, positions, past, begins, blocks, firsts, longest, wanted = (self._input(name) for name in NAMES)
        assert len(begins) == len(firsts) == len(past) + 1
        assert begins[0] == firsts[0] == 0
        assert begins[-1] == len(ids) == len(positions)
        assert firsts[-1] == len(blocks)
        assert (np.diff(wanted) > 0).all()
        self.hidden = np.stack([positions, ids], 1).astype(np.float32)
        masks, parts = (self._input(name) for name in (TREE_MASK, f"{TREE_MASK}_begins"))
        assert len(parts) == (len(begins) if len(masks) else 0)
        lines, written, starts = {}, [], begins.tolist()
        self.computed += len(ids)
        for i, known in enumerate(past.tolist()):
            mine = blocks[firsts[i] : firsts[i + 1]]
            new = ids[starts[i] : starts[i + 1]]
            end = known + len(new)
            mask = masks[parts[i] : parts[i + 1]] if len(masks) else masks
            seen = (mask.reshape(len(new), -1) if len(mask) else np.tri(len(new))).astype(bool)
            assert (positions[starts[i] : starts[i + 1]] == known + seen.sum(1) - 1).all()
            assert len(mine) == -(-end // self.block_size)
            assert end <= longest
            block, offset = np.divmod(np.arange(known, end), self.block_size)
            self.cache[mine[block], offset] = new
            written += (mine[block] * self.block_size + offset).tolist()
            text = self.cache[mine].reshape(-1)[:end]
            assert EMPTY not in text
            for place in wanted[(wanted >= starts[i]) & (wanted < starts[i + 1])].tolist():
                lines[place] = self.line(i, [*text[:known].tolist(), *new[seen[place - starts[i]]].tolist()])
        assert len(set(written)) == len(written), "two texts write to one place"
        self.lines = np.array([lines[place] for place in wanted.tolist()], np.float32).reshape(-1, self.vocab_size)

    def line(self, place, text):
        """Returns the logits after a text with this place in the batch."""
        return self.after(text)

    def infer(self, prompts):
        self.start(prompts)
        return self.wait()

    def wait(self):
        if self.fail:
            self.fail -= 1
            raise RuntimeError("the network failed")
        return self.lines

    def copy_block(self, source, target):
        self.copies += 1
        if self.head is not None:
            self.head.copy_block(source, target)
        self.cache[target] = self.cache[source]

    def block_buffers(self, block):
        return [self.cache[block].view(np.uint8)]

    def state_buffers(self, slot):
        return []

    def clear_state(self, slot):
        pass


class HeadNetwork(FakeNetwork):
    """A head for multi-token prediction, whose cache contains the token after each position.

    It checks that each hidden state belongs to the token at the position: the main network's, or its own for draft
    tokens.
    """

    def allocate(self, blocks, states):
        super().allocate(blocks, states)
        self.cache[:] = 0  # clears places that a sequence which has ended had written

    def start(self, prompts):
        super().start(prompts)
        hidden = self._input(HIDDEN_INPUT)[:, 0].astype(np.int64)
        places, tokens = self._input("position_ids"), self._input("input_ids")
        assert (hidden[:, 0] == places).all()
        following = np.diff(places) == 1
        assert (hidden[1:, 1] == tokens[:-1])[following].all()
        self.hidden = np.stack([places + 1, tokens], 1)[self._input(LOGITS_INPUT)].astype(np.float32)

    def line(self, place, text):
        return self.after([0, *text])


class States:
    """Texts in an array, so that they have a size in bytes. A row contains the length, then the text."""

    def __init__(self, slots):
        self.rows = np.zeros((slots, 2048), np.int64)
        self.rows[:, 0] = EMPTY

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, slot):
        length = self.rows[slot, 0]
        return ["of nobody"] if length == EMPTY else self.rows[slot, 1 : 1 + length].tolist()

    def __setitem__(self, slot, text):
        self.rows[slot, : 1 + len(text)] = [len(text), *text]


class HybridNetwork(FakeNetwork):
    """A network that keeps states in slots: the text so far, with which each step continues. A repeated token is an
    error."""

    hybrid = True
    inputs = (
        FakeNetwork.inputs
        | {"la.block_indices", "la.block_indices_begins", "la.past_lens", "la.cache_interval"}
        | {CHUNK_TOKENS, CHUNK_LENGTHS, CHUNK_STARTS, CHUNK_SLOTS, CHUNK_PLACES, CHUNK_WRITES}
        | {CHUNK_OTHERS, CHUNK_BEGINS, STEP_SLOTS}
    )

    def allocate(self, blocks, states):
        super().allocate(blocks, states)
        self.states = States(states)

    def start(self, prompts):
        ids, begins, past = (self._input(name) for name in ("input_ids", "subsequence_begins", "past_lens"))
        slots, counted, intervals = (
            self._input(name).tolist() for name in ("la.block_indices", "la.past_lens", "la.cache_interval")
        )
        firsts = self._input("la.block_indices_begins").tolist()
        assert len(counted) == len(intervals) == len(past)
        assert len(firsts) == len(past) + 1
        assert (firsts[0], firsts[-1]) == (0, len(slots))
        assert min(intervals) > 0  # with 0, Mamba's operation writes no states
        read = [slots[first] for first in firsts[:-1]]
        writes = [slots[first + 1 : end] for first, end in itertools.pairwise(firsts)]
        written = list(itertools.chain(*writes))
        assert len(set(written)) == len(written)
        for i, slot in enumerate(read):
            assert slot not in [other for j in range(len(read)) for other in (writes[j] if j != i else writes[i][1:])]
        super().start(prompts)
        tables, blocks = self._input("block_indices"), self._input("block_indices_begins")
        states = [list(self.states[slot]) for slot in read]
        ends = [[] for _ in read]
        for i, state in enumerate(states):
            assert len(state) == past[i]
            new, left = ids[begins[i] : begins[i + 1]].tolist(), writes[i]
            for place, token in enumerate(new, 1):
                state.append(token)
                if place == len(new) or (counted[i] + place) % intervals[i] == 0:
                    self.states[left[0]], left = list(state), left[1:]
                    ends[i].append(begins[i] + place)
            assert not left
            cached = self.cache[tables[blocks[i] : blocks[i + 1]]].reshape(-1)
            assert state == cached[: len(state)].tolist()
        self._check_chunks(begins.tolist(), read, writes, ends)
        steps = len(self._input(STEP_SLOTS))
        assert steps == MOST_STEPS or begins[steps] == steps
        assert self._input(STEP_SLOTS).tolist() == read[:steps]
        assert [[slot] for slot in self.step_states] == writes[:steps]

    def _check_chunks(self, begins, read, writes, ends):
        """Checks the chunks of the last sequences, at whose ends states are written."""
        rows, lengths = self._input(CHUNK_TOKENS).reshape(-1, CHUNK), self._input(CHUNK_LENGTHS).tolist()
        starts, wanted = (self._input(name).tolist() for name in (CHUNK_STARTS, CHUNK_WRITES))
        first = len(read) - len(self._input(CHUNK_SLOTS))
        assert len(read) - first <= MOST_PROMPTS
        assert self._input(CHUNK_SLOTS).tolist() == read[first:]
        assert self.new_states == list(itertools.chain(*writes[first:]))
        assert self._input(CHUNK_OTHERS).tolist() == list(range(begins[first]))
        assert self._input(CHUNK_BEGINS).tolist() == [min(begin, begins[first]) for begin in begins]
        tokens = [row[:length].tolist() for row, length in zip(rows, lengths, strict=True)]
        assert list(itertools.chain(*tokens)) == list(range(begins[first], begins[-1]))
        assert [row[0] for row, start in zip(tokens, starts, strict=True) if start >= 0] == begins[first:-1]
        assert [start for start in starts if start >= 0] == list(range(len(read) - first))
        found = [row[-1] + 1 for row, write in zip(tokens, wanted, strict=True) if write]
        assert found == list(itertools.chain(*ends[first:]))
        assert rows.reshape(-1)[self._input(CHUNK_PLACES)].tolist() == list(range(begins[first], begins[-1]))

    def state_buffers(self, slot):
        return [self.states.rows[slot].view(np.uint8)]

    def clear_state(self, slot):
        self.states[slot] = []
