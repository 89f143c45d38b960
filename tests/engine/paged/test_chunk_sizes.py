"""How prompts are divided beside other sequences, by measured times. The network's time is simulated."""

import random

import pytest

from lean_ovms.engine.paged.scheduling_rules import FIRST_REACH, ChunkSizes
from tests.engine.paged.harness import Driver, Params
from tests.engine.paged.network import FakeNetwork
from tests.engine.paged.test_engine import prompt

BLOCK, STEP = 4, 64
LINEAR = 1e-3
"""Seconds per token."""


class TimedNetwork(FakeNetwork):
    """A network with simulated time. With a context of `reach`, a token takes twice as long as without."""

    def __init__(self, reach):
        super().__init__(BLOCK)
        self.reach = reach
        self.now = 0.0

    def start(self, prompts):
        super().start(prompts)
        past, begins = self._input("past_lens").tolist(), self._input("subsequence_begins").tolist()
        for known, first, end in zip(past, begins, begins[1:], strict=False):
            self.now += LINEAR * (end - first) * (1 + known / self.reach)


def timed(reach=100):
    network = TimedNetwork(reach)
    return Driver(
        network,
        blocks=600,
        block_size=BLOCK,
        context=1100,
        step_tokens=STEP,
        max_sequences=8,
        clock=lambda: network.now,
    ), network


def steps(engine, network, request):
    """Returns the seconds of each step until the request has ended."""
    took = []
    while request.status == "running":
        before = network.now
        engine.step()
        took.append(network.now - before)
    return took


def test_a_prompt_alone_has_whole_steps():
    engine, network = timed()
    assert len(steps(engine, network, engine.add(prompt(960), Params(max_tokens=1)))) == 960 / STEP


@pytest.mark.parametrize("reach", [50, 100, 5000])
@pytest.mark.slow
def test_steps_beside_others_do_not_grow_with_the_context_of_a_prompt(reach):
    engine, network = timed(reach)
    for seed in range(12):
        steps(engine, network, engine.add(prompt(960, seed + 9), Params(max_tokens=1)))
    beside = engine.add(prompt(3), Params(max_tokens=900))
    engine.step()
    long = engine.add(prompt(960, 1), Params(max_tokens=1))
    took = steps(engine, network, long)
    block = LINEAR * BLOCK * (1 + 960 / reach)  # the smallest part that is computed
    token = LINEAR * (1 + 300 / reach)  # of the sequence beside it
    assert max(took) <= 1.8 * max(LINEAR * STEP, block) + token
    assert long.status == "finished"
    assert beside.status == "running"
    assert len(took) <= 1.5 * sum((1 + at / reach) * STEP for at in range(0, 960, STEP)) / STEP + 5


def test_a_short_prompt_has_its_part_beside_a_chunk_that_takes_more_than_a_step():
    engine, network = timed(10)
    first = engine.add(prompt(900), Params(max_tokens=1))
    for _ in range(13):
        engine.step()
    short = engine.add(prompt(20, 1), Params(max_tokens=1))
    assert len(steps(engine, network, short)) == 1
    assert first.status == "running"


def test_the_reach_is_learned_from_steps_that_are_noisy():
    sizes, dice = ChunkSizes(256, 32), random.Random(3)
    assert sizes.reach == FIRST_REACH
    for context in (0, 200, 400, 800, 1600, 3200, 6400, 12800) * 15:
        late = 4 if dice.random() < 0.05 else 1  # other work had the core
        seconds = late * dice.uniform(0.9, 1.1) * 4e-5 * (256 + 256 * context / 600)
        sizes.learn(256, 256 * context, seconds)
    assert 400 < sizes.reach < 900


def test_what_is_known_of_short_contexts_is_kept_while_a_long_prompt_is_computed():
    sizes, dice = ChunkSizes(256, 32), random.Random(4)
    for context in [*([100] * 40), *range(512, 30_000, 64)]:
        tokens = max(32, int(256 / (1 + context / 600)))
        sizes.learn(tokens, tokens * context, dice.uniform(0.7, 1.3) * 4e-5 * tokens * (1 + context / 600))
    assert 450 < sizes.reach < 800


def test_small_steps_teach_nothing():
    sizes = ChunkSizes(256, 32)
    sizes.learn(32, 0, 1.0)
    sizes.learn(256, 0, 1.0)
    sizes.learn(32, 32 * 50, 9.0)
    assert sizes.reach == FIRST_REACH


@pytest.mark.parametrize(
    ("start", "work", "tokens"), [(0, 251, 251), (251, 251, 197), (448, 256, 160), (30_016, 256, 32), (31_000, 5, 8)]
)
def test_chunks_end_where_blocks_do(start, work, tokens):
    assert ChunkSizes(256, 32).tokens(start, work) == tokens


@pytest.mark.parametrize(("token_s", "tokens"), [(1e-4, 1024), (5e-4, 500), (9e-4, 277), (2e-3, 256)])
def test_quick_steps_have_more_tokens_and_slow_ones_the_least(token_s, tokens):
    sizes = ChunkSizes(256, 32, 1024)
    assert sizes.step_tokens == 256
    for _ in range(60):
        sizes.learn(sizes.step_tokens, 0, token_s * sizes.step_tokens)
    assert sizes.step_tokens == pytest.approx(tokens, rel=0.02)
    for _ in range(60):
        sizes.learn(sizes.step_tokens, 0, 0.01 * sizes.step_tokens)
    assert sizes.step_tokens == 256


def test_prompts_that_wait_fill_a_step_that_is_quick():
    network = TimedNetwork(5000)
    engine = Driver(
        network,
        blocks=600,
        block_size=BLOCK,
        context=1100,
        step_tokens=STEP,
        most_step_tokens=4 * STEP,
        max_sequences=8,
        clock=lambda: network.now,
    )
    for seed in range(3):
        steps(engine, network, engine.add(prompt(300, seed), Params(max_tokens=1)))
    took = steps(engine, network, engine.add(prompt(900, 9), Params(max_tokens=1)))
    assert len(took) == 4  # 250 tokens take a quarter of a second
    assert max(took) <= 0.3
