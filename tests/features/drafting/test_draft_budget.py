"""A batch gets draft tokens as long as they save measured time, and otherwise only for a small share of the time."""

import pytest

from lean_ovms.features.drafting.child.draft_budget import LONGEST, REFRESH, SHARE, DraftBudget
from tests.engine.paged.harness import Params
from tests.engine.paged.network import FakeNetwork
from tests.engine.paged.test_engine import alone, engine, prompt, run
from tests.features.drafting.test_draft_model import LOOK, draft
from tests.features.drafting.test_ngrams import copying

STEP_S = 0.05


def spent(budget, steps, sequences, accepted, cost):
    """Simulates steps.

    Args:
        accepted: The accepted draft tokens of a step.
        cost: The time of a step's draft tokens, relative to a step without any.

    Returns:
        The time relative to the same number of steps without draft tokens, and the number of steps that had one for
        each sequence.
    """
    time = worth = drafting = 0
    for _ in range(steps):
        drafted = sequences if budget.most(sequences) else 0
        tokens = sequences + (accepted if drafted else 0)
        seconds = STEP_S * (1 + (cost if drafted else 0))
        budget.learn(sequences, drafted, tokens - sequences, seconds)
        time, worth, drafting = time + seconds, worth + STEP_S * tokens / sequences, drafting + (drafted > 0)
    return time / worth, drafting


@pytest.mark.parametrize("cost", [0.1, 0.4, 1.0, 2.5])
def test_drafts_that_are_never_accepted_cost_a_small_share_of_the_time(cost):
    budget = DraftBudget()
    spent(budget, 200, 8, 0, cost)  # with the time that is spent before anything is measured
    assert spent(budget, 2000, 8, 0, cost)[0] <= 1 + 1.5 * SHARE


@pytest.mark.parametrize(("accepted", "cost"), [(8, 0.9), (4, 0.4), (1, 0.1)])
def test_drafts_that_pay_are_in_nearly_all_steps(accepted, cost):
    assert spent(DraftBudget(), 1000, 8, accepted, cost)[1] > 1000 * (1 - 3 / REFRESH)


def test_a_batch_that_shrinks_has_drafts_again_and_one_that_grows_has_none_again():
    budget = DraftBudget()
    for _ in range(3):
        few, many = spent(budget, 400, 2, 1, 0.2)[1], spent(budget, 400, 8, 4, 0.8)[1]
    assert few > 350
    assert many < 50


def test_drafts_begin_to_pay_when_more_is_accepted():
    budget = DraftBudget()
    assert spent(budget, 500, 8, 1, 0.5)[1] < 100
    spent(budget, 100, 8, 7, 0.5)
    assert spent(budget, 500, 8, 7, 0.5)[1] > 450


def test_steps_that_get_slower_are_measured_again():
    """Steps get slower as contexts grow; then a token is worth more."""
    budget = DraftBudget()
    spent(budget, 500, 4, 4, 0.5)
    for _ in range(20 * REFRESH):
        drafted = budget.most(4) > 0
        budget.learn(4, 4 * drafted, 4 * drafted, STEP_S * (4 + 2 * drafted))
    assert budget.most(4)
    assert budget._balances[2].step_s == pytest.approx(4 * STEP_S, rel=0.1)


def test_lengths_follow_what_a_token_costs():
    """Up to four draft tokens of a sequence are accepted; more only take time."""
    budget, lengths = DraftBudget(), []
    for _ in range(200):
        length = budget.most(8)
        lengths.append(length)
        budget.learn(8, 8 * length, 8 * min(4, length), STEP_S * (1 + length * 0.6))
    assert lengths[:7] == [32, 0, 0, 1, 2, 4, 8]
    assert set(lengths[10:]) <= {0, 4, 8}


def test_short_steps_always_have_drafts():
    budget = DraftBudget()
    for seconds in (0.02, 0.001, 0.001, 0.004):  # the first one was disturbed
        budget.learn(8, 8, 0, seconds)
    assert budget.most(8) == budget.most(1) == LONGEST


class Timed(FakeNetwork):
    """A network whose steps take as long as computing a few tokens, and longer with more tokens."""

    free = 4
    now = 0.0

    def start(self, prompts):
        self.now += 0.01 * max(self.free, len(self._input("input_ids")))
        super().start(prompts)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [0, 10])
def test_the_engine_drafts_where_it_pays(wrong):
    """First one sequence decodes, so a few more rows are free; then six do, and each row takes time."""
    network = Timed(4)
    proposer = draft(wrong, blocks=600, max_running=8, step_tokens=64)
    made = engine(600, 64, kind=lambda _: network, proposer=proposer, clock=lambda: network.now)
    asked = Params(max_tokens=100, **LOOK)
    shares = []
    for count in (1, 6):
        prompts = [prompt(4, i) for i in range(count)]
        requests = [made.add(ids, asked) for ids in prompts]
        began = network.now
        assert run(made, *requests) == [alone(ids, asked) for ids in prompts]
        shares.append((network.now - began) / (0.01 * max(count, network.free) * 100))
    if wrong:
        assert max(shares) < 1.1
    else:
        assert shares[0] < 0.5
        assert shares[1] < 1.1


@pytest.mark.parametrize("count", [1, 2])
def test_only_ngrams_of_a_sequence_alone_do_not_depend_on_times(count, monkeypatch):
    """A request that runs alone takes the same steps each time."""
    monkeypatch.setattr(DraftBudget, "most", lambda budget, sequences: 0)
    made = engine(400, 200)
    made.network.after = copying
    for _ in range(count):
        made.add(prompt(16) * 3, Params(max_tokens=40, num_assistant_tokens=32, max_ngram_size=32))
    while made.busy():
        made.step()
    assert bool(made.runner.drafts.drafts) is (count == 1)
