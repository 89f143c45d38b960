"""A network without weights, for the tests of the paged engine: what a token sees is read back from the cache.

A block of its cache holds token ids. Logits are a function of the whole text as the block tables give it, so a wrong
block, a wrong length or a forgotten copy gives other tokens than the text itself would.
"""

import random
from types import SimpleNamespace

import numpy as np

from lean_ovms.engine.paged.network import LOGITS_INPUT

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
    """[vocab]: what comes after these tokens. Rather peaked, and often what came after the last token before."""
    dice = random.Random(str(list(text[-6:])) + str(len(text)))
    line = np.array([dice.gauss(0, 2) for _ in range(VOCAB)], np.float32)
    line[(text[-1] + 1) % 8] += 6 * dice.random()
    return line


class FakeNetwork:
    """network.Network; strict about its inputs. fail: raises in so many of the next calls of wait."""

    vocab_size = VOCAB
    hybrid = False
    inputs = frozenset(NAMES)
    after = staticmethod(logits_after)

    def __init__(self, block_size):
        self.block_size = block_size
        self.tensors = {}
        self.fail = 0
        self.copies = 0
        self.computed = 0

    def allocate(self, blocks, rows):
        self.cache = np.full((blocks, self.block_size), EMPTY, np.int64)

    def tensor(self, name, shape):
        kind = np.int64 if name in ("input_ids", "position_ids", LOGITS_INPUT) else np.int32
        made = self.tensors[name] = SimpleNamespace(data=np.full(shape, -9, kind), shape=shape)
        return made

    def _input(self, name):
        tensor = self.tensors[name]
        return tensor.data[: tensor.shape[0]] if len(tensor.shape) else tensor.data

    def start(self, prompts):
        """Compute, also where `wait` raises."""
        ids, positions, past, begins, blocks, firsts, longest, wanted = (self._input(name) for name in NAMES)
        assert len(begins) == len(firsts) == len(past) + 1
        assert begins[0] == firsts[0] == 0
        assert begins[-1] == len(ids) == len(positions)
        assert firsts[-1] == len(blocks)
        assert (np.diff(wanted) > 0).all()
        lines, written = {}, set()
        self.computed += len(ids)
        for i, known in enumerate(past):
            mine = blocks[firsts[i] : firsts[i + 1]]
            new = ids[begins[i] : begins[i + 1]]
            end = known + len(new)
            assert positions[begins[i] : begins[i + 1]].tolist() == list(range(known, end))
            assert len(mine) == -(-end // self.block_size)
            assert end <= longest
            for offset, token in enumerate(new):
                place = known + offset
                block = mine[place // self.block_size]
                assert (block, place % self.block_size) not in written, "two texts write to one place"
                written.add((block, place % self.block_size))
                self.cache[block, place % self.block_size] = token
            text = self.cache[mine].reshape(-1)[:end]
            assert EMPTY not in text
            for offset in range(len(new)):
                if begins[i] + offset in wanted:
                    lines[begins[i] + offset] = self.line(i, text[: known + offset + 1].tolist())
        self.lines = np.array([lines[int(place)] for place in wanted], np.float32).reshape(-1, self.vocab_size)

    def line(self, place, text):
        """The logits behind a text. place: in the batch."""
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
        self.cache[target] = self.cache[source]

    def copy_state(self, source, target):
        pass

    def clear_state(self, row):
        pass


class HybridNetwork(FakeNetwork):
    """It keeps a state for each row: the text, which each step goes on from. A token twice in it is not forgiven."""

    hybrid = True
    inputs = FakeNetwork.inputs | {"la.block_indices", "la.block_indices_begins", "la.past_lens", "la.cache_interval"}

    def allocate(self, blocks, rows):
        super().allocate(blocks, rows)
        self.states = [["of nobody"] for _ in range(rows)]

    def start(self, prompts):
        ids, begins, past = (self._input(name) for name in ("input_ids", "subsequence_begins", "past_lens"))
        read, written = self._input("la.block_indices").reshape(-1, 2).T.tolist()
        assert self._input("la.past_lens").tolist() == past.tolist()
        assert self._input("la.block_indices_begins").tolist() == list(range(0, 2 * len(past) + 1, 2))
        assert len(self._input("la.cache_interval")) == len(past)
        assert (self._input("la.cache_interval") > self._input("max_context_len")).all()  # 0: none is written
        assert read == written
        assert len(set(read)) == len(read)
        super().start(prompts)
        tables, firsts = self._input("block_indices"), self._input("block_indices_begins")
        for i, row in enumerate(read):
            assert len(self.states[row]) == past[i]
            self.states[row] += ids[begins[i] : begins[i + 1]].tolist()
            cached = self.cache[tables[firsts[i] : firsts[i + 1]]].reshape(-1)
            assert self.states[row] == cached[: len(self.states[row])].tolist()

    def copy_state(self, source, target):
        self.states[target] = list(self.states[source])

    def clear_state(self, row):
        self.states[row] = []
