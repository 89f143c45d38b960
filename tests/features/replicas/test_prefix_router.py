"""The choice of a replica by the prefix of a prompt and by load."""

from __future__ import annotations

import random

import pytest

from lean_ovms.features.replicas import prefix_router
from lean_ovms.features.replicas.prefix_router import BLOCK, BLOCK_IDS, LEAST_SHARE, MAX_BLOCKS, PrefixRouter, prefixes

IDLE = {"a": 0, "b": 0, "c": 0}


def text(*blocks: str) -> str:
    return "".join(block * BLOCK for block in blocks)


def test_what_a_replica_says_to_know_counts_as_what_it_was_sent() -> None:
    router: PrefixRouter[str] = PrefixRouter(most_ahead=4)
    prompt = prefixes("m", text("s", "1", "2", "3"))
    router.record(prompt[:2], "a")
    assert router.choose(prompt, IDLE, {"a": 1, "b": 3, "c": 0}.__getitem__) == "b"
    assert router.choose(prompt, IDLE, {"a": 1, "b": 1, "c": 0}.__getitem__) == "a"


def test_new_prompts_go_to_the_least_loaded_and_then_to_the_emptiest() -> None:
    router: PrefixRouter[str] = PrefixRouter(most_ahead=4)
    chosen = []
    for letter in "uvwxyz":
        prompt = prefixes("m", text(letter))
        chosen.append(router.choose(prompt, IDLE))
        router.record(prompt, chosen[-1])
    assert chosen == ["a", "b", "c"] * 2
    assert router.choose(prefixes("m", "short"), {"a": 1, "b": 0.5, "c": 1}) == "b"


def test_namespaces_do_not_meet() -> None:
    for prompt in (text("s"), text("s").encode(), [7] * BLOCK_IDS):
        assert len(prefixes("m", prompt)) == 1
        assert prefixes(("m", "salt"), prompt) != prefixes("m", prompt)


def test_prompts_are_read_in_whole_blocks_and_not_to_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    for prompt in ("x" * (3 * BLOCK - 1), b"x" * (3 * BLOCK - 1), [1] * (3 * BLOCK_IDS - 1)):
        assert len(prefixes("m", prompt)) == 2
        assert prefixes("m", prompt)[0] == prefixes("m", prompt[: len(prompt) // 2])[0]
    assert MAX_BLOCKS > 3
    monkeypatch.setattr(prefix_router, "MAX_BLOCKS", 3)
    assert len(prefixes("m", "x" * (9 * BLOCK))) == 3


class Naive:
    """A simple router to compare with. It keeps each prefix as a text in a list."""

    def __init__(self, most_ahead: int, known: int) -> None:
        self.most_ahead, self.most = most_ahead, known
        self.seen: dict[str, list[str]] = {}

    def length(self, replica: str, prompt: str) -> int:
        known = (n for n in range(len(prompt) // BLOCK, 0, -1) if prompt[: n * BLOCK] in self.seen.get(replica, []))
        return next(known, 0)

    def choose(self, prompt: str, loads: dict[str, int]) -> set[str]:
        least = min(loads.values())
        near = [one for one in loads if loads[one] - least <= max(self.most_ahead, least / 4)]
        lengths = {one: self.length(one, prompt) for one in near}
        if (best := max(lengths.values())) >= len(prompt) // BLOCK * LEAST_SHARE:
            near = [one for one in near if lengths[one] == best]
        return {one for one in near if loads[one] == min(loads[other] for other in near)}

    def record(self, prompt: str, replica: str) -> None:
        seen = self.seen.setdefault(replica, [])
        for n in range(len(prompt) // BLOCK, 0, -1):
            prefix = prompt[: n * BLOCK]
            if prefix in seen:
                seen.remove(prefix)
            seen.append(prefix)
        del seen[: max(0, len(seen) - self.most)]


@pytest.mark.parametrize("seed", range(8))
def test_it_chooses_as_a_naive_one_does(seed: int) -> None:
    random_ = random.Random(seed)
    router: PrefixRouter[str] = PrefixRouter(most_ahead=2, known_blocks=12)
    naive = Naive(2, 12)
    for _ in range(150):
        prompt = text(*random_.choices("xy", k=random_.randint(0, 6))) + "z" * random_.randint(0, BLOCK - 1)
        hashes = prefixes("m", prompt)
        loads = {one: random_.randint(0, 16) for one in random_.sample("abcd", random_.randint(1, 4))}
        chosen = router.choose(hashes, loads)
        assert chosen in naive.choose(prompt, loads)
        router.record(hashes, chosen)
        naive.record(prompt, chosen)
        if random_.random() < 0.05:
            gone = random_.choice("abcd")
            router.remove(gone)
            naive.seen.pop(gone, None)
        for one in "abcd":
            assert router.known(one, hashes) == naive.length(one, prompt)
