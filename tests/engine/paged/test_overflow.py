"""Requests that do not fit into the KV cache together give way to each other, and each ends as it does alone."""

import random
from dataclasses import replace

import pytest

from tests.engine.paged.harness import Params
from tests.engine.paged.network import FakeNetwork, HybridNetwork
from tests.engine.paged.test_engine import alone, engine, prompt, run


def test_whoever_is_least_important_gives_way():
    made = engine(blocks=14)
    asked = Params(max_tokens=20)
    high, low = made.add(prompt(8, 1), replace(asked, priority=-1)), made.add(prompt(8, 2), asked)
    middle = made.add(prompt(8, 3), asked)
    ends = []
    while made.busy():
        made.step()
        ends += [r for r in (high, low, middle) if r.status == "finished" and r not in ends]
    assert ends == [high, low, middle]
    assert made.scheduler.preemptions


@pytest.mark.parametrize("clients", ["aa", "ab"])
@pytest.mark.parametrize(
    ("blocks", "lengths", "beams"), [(10, (9, 9), (3, 2)), (12, (9, 9), (3, 3)), (12, (17, 5), (3, 2))]
)
def test_searches_that_do_not_fit_together_end_as_each_does_alone(blocks, lengths, beams, clients):
    """A search that is preempted begins again, so two that preempt each other would never end."""
    asked = [Params(max_tokens=12, beams=width, client=name) for width, name in zip(beams, clients, strict=True)]
    pairs = [(prompt(length, place), one) for place, (length, one) in enumerate(zip(lengths, asked, strict=True), 1)]
    made = engine(blocks, clock=lambda: 0.0)
    together = [made.add(*pair) for pair in pairs]
    run(made, *together)
    for pair, request in zip(pairs, together, strict=True):
        by_itself = engine(blocks)
        single = by_itself.add(*pair)
        run(by_itself, single)
        assert request.status == single.status


@pytest.mark.slow
@pytest.mark.parametrize("kind", [FakeNetwork, HybridNetwork])
@pytest.mark.parametrize("seed", range(12))
def test_whatever_competes_for_a_small_cache_every_request_ends_as_it_does_alone(seed, kind):
    dice = random.Random(seed)
    options = {
        "blocks": dice.choice([3, 6, 9, 14]),
        "step_tokens": dice.choice([1, 3, 8, 40]),
        "caching": dice.random() < 0.7,
        "max_running": dice.choice([1, 2, 4, 50]),
        "overlapping": dice.random() < 0.5,
        "priority_across_clients": dice.random() < 0.3,
        "states": dice.choice([1, 2, 4, 12]),
    }
    made, asked = engine(kind=kind, **options), []
    for number in range(12):
        ids = prompt(dice.choice([0, 4, 12, 37])) + prompt(dice.choice([1, 2, 5, 9]), number)
        fields = {"max_tokens": dice.choice([1, 6, 25]), "priority": dice.choice([0, 0, 1, -1])}
        fields["beams"] = dice.choice([1, 1, min(3, made.max_sequences)])
        one = Params(**fields, client=dice.choice("abc"), prompt_logprobs=dice.random() < 0.2)
        asked.append((made.add(ids, one), ids, one))
        for _ in range(dice.choice([0, 1, 9])):
            made.step()
    run(made, *(request for request, *_ in asked))
    for request, *pair in asked:
        by_itself = engine(kind=kind, **options)
        single = by_itself.add(*pair)
        run(by_itself, single)
        assert request.status == single.status


@pytest.mark.parametrize("across", [False, True])
def test_priorities_across_clients_decide_who_gives_way_and_without_them_the_blocks(across):
    made = engine(blocks=12, priority_across_clients=across, clock=lambda: 0.0)
    asked = Params(max_tokens=20, priority=-1, client="urgent")
    urgent = [made.add(prompt(8, seed), asked) for seed in range(2)]
    other = made.add(prompt(8, 3), Params(max_tokens=20, client="other"))
    preempted = []
    while made.busy():
        made.step()
        preempted += [one for one in (*urgent, other) if one.sequences[0].preempted and one not in preempted]
    assert preempted[0] is (other if across else urgent[1])


def test_whoever_needs_more_than_the_cache_is_lost_alone():
    made = engine(blocks=10)
    fits, prompt_too_long, grows = (
        made.add(prompt(8), Params(max_tokens=10)),
        made.add(prompt(41, 1), Params()),
        made.add(prompt(30, 2), Params(max_tokens=50)),
    )
    texts = run(made, fits, prompt_too_long, grows)
    assert [r.status for r in (fits, prompt_too_long, grows)] == ["finished", "lost", "lost"]
    assert texts[0] == alone(prompt(8), Params(max_tokens=10))
    assert texts[2] == alone(prompt(30, 2), Params(max_tokens=11))
