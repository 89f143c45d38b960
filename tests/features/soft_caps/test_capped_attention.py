"""Attention with a soft cap, compared with the formula in 64 bits for each token."""

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from lean_ovms.features.soft_caps.child import capped_attention
from lean_ovms.features.soft_caps.child.capped_attention import BLOCK, INPUTS, CappedAttention

CAP, SCALE = 3.0, 0.25
GROUPS, SHARED, KEY, VALUE = 2, 3, 8, 4
pytestmark = pytest.mark.model


def compiled():
    """Returns a network that consists of one attention."""
    sizes = [GROUPS * SHARED * KEY, GROUPS * KEY, GROUPS * VALUE]
    given = [ops.parameter([-1, size], np.float32) for size in sizes]
    given += [ops.parameter([-1, BLOCK, GROUPS, size], np.float32) for size in (KEY, VALUE)]
    given += [ops.parameter([-1], np.int32) for _ in range(4)]
    given += [ops.parameter([], np.float32), ops.parameter([], np.int32)]
    assert len(given) == len(INPUTS)
    node = CappedAttention([each.output(0) for each in given], CAP)
    assert node.get_output_partial_shape(0)[1] == GROUPS * SHARED * VALUE
    return ov.Core().compile_model(ov.Model([node.output(0)], given, "attention"), "CPU")


class Texts:
    """Sequences with random queries, keys and values, each with its own blocks."""

    def __init__(self, lengths, spread):
        dice = np.random.default_rng(1)
        self.rows = [
            [dice.standard_normal((length, heads, size)).astype(np.float32) for heads, size in self.shapes]
            for length in lengths
        ]
        most = -(-max(lengths) // BLOCK)
        blocks = np.arange(most * len(lengths), dtype=np.int32).reshape(len(lengths), most)
        self.blocks = blocks
        if spread:  # some of a text's blocks are adjacent, but not all
            blocks[:, -1] = blocks[::-1, -1].copy()
        self.caches = [np.full((blocks.size, BLOCK, GROUPS, size), np.nan, np.float32) for size in (KEY, VALUE)]

    shapes = ((GROUPS * SHARED, KEY), (GROUPS, KEY), (GROUPS, VALUE))

    def step(self, attention, ends, starts, window):
        """Computes the tokens of each text between its start and its end. Returns the results of each."""
        parts = [*zip(self.rows, starts, ends, strict=True)]
        values = [
            np.concatenate([rows[place][start:end].reshape(end - start, -1) for rows, start, end in parts])
            for place in range(3)
        ]
        used = [-(-end // BLOCK) for end in ends]
        tables = [row[:count] for row, count in zip(self.blocks, used, strict=True)]
        begins, first_blocks = (np.cumsum([0, *sizes]) for sizes in (np.subtract(ends, starts), used))
        numbers = [np.array(starts), begins, np.concatenate(tables), first_blocks]
        request = attention.create_infer_request()
        given = [*values, *self.caches, *(each.astype(np.int32) for each in numbers)]
        given += [np.array(SCALE, np.float32), np.array(window, np.int32)]
        for place, value in enumerate(given):
            request.set_tensor(attention.inputs[place], ov.Tensor(value, shared_memory=True))
        request.infer()
        return np.split(request.get_output_tensor().data.copy(), begins[1:-1])

    def expected(self, text, start, end, window):
        """Returns the results for some tokens of a text by the formula."""
        queries, keys, values = (rows.astype(np.float64) for rows in self.rows[text])
        found = []
        for token in range(start, end):
            seen = slice(max(token + 1 - window, 0) if window else 0, token + 1)
            for head in range(GROUPS * SHARED):
                products = CAP * np.tanh(keys[seen, head // SHARED] @ queries[token, head] * SCALE / CAP)
                shares = np.exp(products)
                found.append(shares / shares.sum() @ values[seen, head // SHARED])
        return np.array(found).reshape(end - start, -1)


@pytest.mark.parametrize("window", [0, 24])
@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("small", [False, True])
def test_parts_of_texts_have_the_results_of_the_formula(window, spread, small, monkeypatch):
    """One thread or several compute prompts in parts, then tokens one by one."""
    if small:
        monkeypatch.setattr(capped_attention, "PRODUCTS", 1000)
        monkeypatch.setattr(capped_attention, "SHARED", 1)
        monkeypatch.setattr(capped_attention, "most_threads", lambda: 3)
    attention, texts, at = compiled(), Texts([70, 33, 5], spread), [0, 0, 0]
    for ends in ([40, 31, 2], [68, 32, 3], [69, 33, 4]):
        found = texts.step(attention, ends, at, window)
        for text, (start, end) in enumerate(zip(at, ends, strict=True)):
            assert np.abs(found[text] - texts.expected(text, start, end, window)).max(initial=0) < 1e-5
        at = ends


def test_what_fails_in_a_thread_fails_the_step(monkeypatch):
    monkeypatch.setattr(capped_attention, "SHARED", 1)
    monkeypatch.setattr(capped_attention, "most_threads", lambda: 2)

    def fail(*given):
        raise ValueError("no numbers")

    monkeypatch.setattr(capped_attention.LayerAttention, "compute", fail)
    with pytest.raises(RuntimeError, match="no numbers"):
        Texts([5], False).step(compiled(), [5], [0], 0)
