"""Beam search against all texts there are, of a model that is a table."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lean_ovms.features.speech.child.beams import Beams
from lean_ovms.features.speech.child.logits import Rules
from lean_ovms.features.speech.params import TranscribeParams
from tests.features.speech.child.test_rules import FILES

EOT, WORDS, LENGTH = FILES.eot, 3, 4


class Table:
    """Log probabilities of the next token by the last two, of WORDS words and the end."""

    def __init__(self, seed: int) -> None:
        made = np.random.default_rng(seed).normal(size=(WORDS + 1, WORDS + 1, WORDS + 1)) * 2
        self.values = made - np.log(np.exp(made).sum(axis=-1, keepdims=True))

    def line(self, tokens: list[int]) -> np.ndarray:
        one, two = (
            min(token, WORDS) for token in [WORDS, WORDS, *tokens][-2:]
        )  # copies that go on from none have the end
        found = np.full(FILES.first_time + 10, -np.inf, np.float32)
        found[:WORDS], found[EOT] = self.values[one, two, :WORDS], self.values[one, two, WORDS]
        return found

    def total(self, tokens: tuple[int, ...]) -> float:
        """Of a text with its end."""
        return self.cut((*tokens, EOT))

    def cut(self, tokens: tuple[int, ...]) -> float:
        """Of a text without one."""
        return float(sum(self.line(list(tokens[:at]))[token] for at, token in enumerate(tokens)))


def searched(table: Table, width: int, penalty: float, limit: int = LENGTH) -> tuple[list[int], float]:
    params = TranscribeParams(beams=width, length_penalty=penalty)
    search = Beams(width, limit, EOT, Rules(FILES), params, times=False)
    texts: list[list[int]] = [[]] * width
    for _ in range(limit + 1):
        if search.advance(np.stack([table.line(text) for text in texts])):
            break
        texts = [[*texts[parent], int(token)] for parent, [token] in zip(search.parents, search.tokens, strict=True)]
    return search.best.tokens, search.best.total


@pytest.mark.parametrize("penalty", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(6))
def test_a_wide_search_finds_the_best_text_of_all(seed: int, penalty: float) -> None:
    """Cut ones included, which have no end."""
    table = Table(seed)
    texts = [text for size in range(LENGTH + 1) for text in itertools.product(range(WORDS), repeat=size)]
    scores = {
        text: table.total(text) / (len(text) + 1) ** penalty
        if len(text) < LENGTH
        else table.cut(text) / LENGTH**penalty
        for text in texts
    }
    found, _ = searched(table, 100, penalty)
    assert tuple(found) == max(scores, key=scores.__getitem__)


@pytest.mark.parametrize("seed", range(6))
def test_a_search_of_one_is_greedy_and_a_wider_one_no_worse(seed: int) -> None:
    table = Table(seed)
    greedy: list[int] = []
    while len(greedy) < LENGTH and (token := int(table.line(greedy).argmax())) != EOT:
        greedy.append(token)
    assert searched(table, 1, 1.0)[0] == greedy
    assert len(searched(table, 3, 1.0)[0]) <= LENGTH
