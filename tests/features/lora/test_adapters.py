"""Requests with different LoRA adapters in one engine: adapters by token, limited room, a prefix cache for each."""

import random

import numpy as np
import pytest

from lean_ovms.engine.paged.network import ADAPTER_CHOICE as CHOICE
from lean_ovms.features.lora.child.adapters import Adapter, AdapterTable, fits
from tests.engine.paged.harness import Driver, Params
from tests.engine.paged.network import VOCAB, FakeNetwork, logits_after
from tests.engine.paged.test_engine import SIZE, alone, prompt, run
from tests.features.drafting.test_draft_model import draft

SHIFT = 1000
"""An adapter of scale s adds s times this to each token id in the cache, so that a text shows whose keys and values
it uses."""


class AdaptedNetwork(FakeNetwork):
    """A network that adds x * number for adapter `number`, as the sum of its two layers, which multiply the same x."""

    inputs = FakeNetwork.inputs | {CHOICE}
    groups = ({"first": (1, 1), "second": (1, 2)},)

    def __init__(self, block_size):
        super().__init__(block_size)
        self.steps = {False: 0, True: 0}

    def tensor(self, name, shape):
        made = super().tensor(name, shape)
        if name.startswith("lora"):
            made.data = made.data.astype(np.float32)
        return made

    def write(self, name, shape, parts):
        data = self.tensor(name, shape).data
        data[...] = 0
        for row, column, values in parts:
            rows, columns = values.shape
            data[row : row + rows, column : column + columns] = values

    def start(self, prompts):
        ids, choice = self._input("input_ids"), self._input(CHOICE)
        downs = self.tensors["lora_A.first"].data.reshape(2, -1, 1)
        ups = [self.tensors[f"lora_B.{layer}"].data for layer in self.groups[0]]
        assert choice.shape == (len(ids), downs.shape[1])
        assert self.adapting == choice.any()
        self.steps[self.adapting] += 1
        plain = ids.copy()
        ids += SHIFT * sum(((choice * down.T) @ up.T)[:, -1] for down, up in zip(downs, ups, strict=True)).astype(
            np.int64
        )
        super().start(prompts)
        ids[:] = plain

    @staticmethod
    def after(text):
        adapters = {token // SHIFT for token in text}
        assert len(adapters) == 1, "keys and values of another adapter"
        line = logits_after([token % SHIFT for token in text])
        return np.roll(line, adapters.pop())


def adapter(number, rank=2):
    """Returns an adapter that adds `number`: 1 in its first layer, which has one rank, and the rest in its second."""
    down, up = np.ones((rank, 1), np.float32), np.full((2, rank), (number - 1) / rank / 2, np.float32)
    one = np.ones((1, 1), np.float32)
    return Adapter(str(number), 2.0, {"first": (one, one / 2), "second": (down, up)})


def engine(most, blocks=80, **options):
    network = AdaptedNetwork(SIZE)
    table = AdapterTable(network, network.groups, most)
    sizes = {"block_size": SIZE, "context": 400, "step_tokens": 32, "max_sequences": 8}
    return Driver(network, blocks=blocks, adapters=table, **sizes, **options)


def wanted(ids, asked, number):
    """Returns the answer by the definition: the adapter's logits are the model's, moved by its number."""
    text = list(ids)
    for _ in range(asked.max_tokens):
        text.append(int(np.roll(logits_after(text), number).argmax()))
    return text[len(ids) :]


ADAPTERS = [None, adapter(1, 1), adapter(2, 3), adapter(3, 4), adapter(4, 2)]


@pytest.mark.parametrize(("most", "blocks"), [(4, 200), (1, 200), (4, 24)])
def test_each_text_has_the_weights_of_its_adapter_and_its_own_prefix_cache(most, blocks):
    made, dice, asked = engine(most, blocks, pad_to=SIZE), random.Random(most), {}
    base = prompt(21)
    for turn in range(2):  # the second turn uses the prefix cache
        for number in dice.sample(range(15), 15):
            ids, params = base[: 6 + number], Params(max_tokens=10, adapter=ADAPTERS[number % 5])
            asked[made.add(ids, params)] = wanted(ids, params, number % 5)
        assert run(made, *asked) == list(asked.values())
        assert turn == 0 or blocks < 100 or all(request.cached for request in asked)
        asked = {}
    assert made.scheduler.preemptions or blocks > 30


@pytest.mark.parametrize("drafting", [False, True])
def test_guesses_without_adapters_are_checked_with_them(drafting):
    """The guesses come from prompt lookup, or from a draft model that is right for texts without an adapter."""
    computed, asked = [], {}
    for lookahead in (0, 4):
        made = engine(4, 200, proposer=draft() if drafting else None)
        for number in range(10):
            params = Params(
                max_tokens=20, adapter=ADAPTERS[number % 5], num_assistant_tokens=lookahead, max_ngram_size=1
            )
            ids = prompt(9 + number)
            asked[made.add(ids, params)] = wanted(ids, params, number % 5)
        assert run(made, *asked) == list(asked.values())
        asked = {}
        computed.append(made.network.computed)
    assert computed[1] > computed[0]


def test_one_adapter_more_than_there_is_room_for_waits():
    made = engine(1)
    first = made.add(prompt(8), Params(max_tokens=6, adapter=ADAPTERS[1]))
    second = made.add(prompt(8), Params(max_tokens=6, adapter=ADAPTERS[2]))
    while first.status == "running":
        assert not second.can_read()
        made.step()
    run(made, second)
    assert second.status == "finished"


def test_choices_and_beams_have_the_adapter_too():
    made = engine(2)
    several = made.add(prompt(8), Params(max_tokens=6, n=3, temperature=1.0, adapter=ADAPTERS[1]))
    search = made.add(prompt(8), Params(max_tokens=6, beams=3, adapter=ADAPTERS[2]))
    while made.busy():
        made.step()
    assert several.status == search.status == "finished"
    assert not any(made.scheduler.batch.adapters._users.values())


def test_without_adapters_nothing_changes():
    made, asked = engine(2), Params(max_tokens=10)
    assert run(made, made.add(prompt(9), asked)) == [alone(prompt(9), asked)]
    assert made.network.steps == {False: 10, True: 0}
    assert max(alone(prompt(9), asked)) < VOCAB


@pytest.mark.parametrize(
    ("layers", "wrong"),
    [
        ({"a": (4, 6)}, ""),
        ({"b": (4, 6)}, "it belongs to another model: it adapts b, which this model does not have"),
        ({"a": (4, 6), "b": (4, 6)}, "it fits only in part: it adapts b, which this model does not have"),
        ({"a": (5, 6)}, "its a does not map 4 to 6 elements"),
        ({"a": (4, 5)}, "its a does not map 4 to 6 elements"),
        ({"a": (4, 6), "head": (4, 9)}, "it adapts head, which only --pipeline_type LM_CB supports"),
        ({"experts.3.up": (4, 9)}, "it adapts experts.3.up, which only --pipeline_type LM_CB supports"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused_before_it_is_written(layers, wrong):
    weights = {name: ones(*widths) for name, widths in layers.items()}
    found = fits(Adapter("x", 1.0, weights), {"a": (4, 6)}, frozenset({"head", "experts"}))
    assert found.endswith(wrong) if wrong else not found


def ones(width, height):
    return np.ones((2, width), np.float32), np.ones((height, 2), np.float32)
