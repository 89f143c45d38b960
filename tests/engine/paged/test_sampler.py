"""From logits to tokens, compared with the definitions. Only numpy."""

from array import array
from functools import cache

import numpy as np
import pytest

from lean_ovms.engine.generation.fair_queue import Thinking
from lean_ovms.engine.paged.sampling import logits_processors as edits
from lean_ovms.engine.paged.sampling import logprobs, random_sampling, reductions, sampler
from lean_ovms.engine.paged.sequence import Sequence, engine_params
from tests.engine.paged.harness import Params

VOCAB = 100


def sequence(prompt=(1, 2, 3), generated=(), matcher=None, **asked):
    ids = array("q", [*prompt, *generated])
    asked = Params(**asked)
    request = asked.request(1, prompt)
    fields = {"prompt": len(prompt), "limit": 1 << 20, "seed": asked.seed, "stops": asked.stops, "row": 0}
    return Sequence(request=request, index=0, params=asked, ids=ids, matcher=matcher, **fields)


@cache
def seeded(count):
    """Returns sequences with a seed each. Creating them takes longer than sampling their tokens."""
    return [sequence(seed=seed) for seed in range(count)]


def lines(count=1, vocab=VOCAB, seed=0, scale=3.0):
    return np.random.default_rng(seed).normal(0, scale, (count, vocab)).astype(np.float32)


def one(line, *args, **asked):
    """Returns the token and the details of one sequence."""
    found = sampler.sample(line.copy(), sampler.SamplingBatch([sequence(*args, **asked)]))
    assert not found.failed
    return int(found.tokens[0]), found.details.get(0)


def softmax(x):
    e = np.exp(x.astype(np.float64) - x.max())
    return e / e.sum()


def expected(line, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """Returns the distribution by the definition: sorted, truncated, normalized."""
    p = softmax(line.astype(np.float64) / temperature)
    order = np.argsort(-p, kind="stable")
    keep = np.ones(len(p), bool)
    if top_k:
        keep[order[top_k:]] = False
    keep &= p >= min_p * p.max()
    p = np.where(keep, p, 0)
    p /= p.sum()
    before = np.concatenate([[0], np.cumsum(p[order])[:-1]])
    p[order[before >= top_p]] = 0
    return p / p.sum()


CASES = [
    {"temperature": 1.0},
    {"temperature": 0.5},
    {"temperature": 2.0, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 1.5, "top_p": 0.3},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 1.0, "min_p": 0.05, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 20, "top_p": 0.7, "min_p": 0.02},
    {"temperature": 1.0, "top_k": 1000},
]


@pytest.mark.slow
@pytest.mark.parametrize("asked", CASES)
def test_tokens_are_drawn_from_the_distribution_that_is_asked_for(asked):
    """A chi-square test with a fixed seed. Truncated tokens are never sampled."""
    count, line = 20_000, lines(seed=5, scale=2.0)[0]
    wanted = expected(line, **asked)
    batch, params = seeded(count), Params(**asked)
    for one in batch:
        one.params = params
    found = sampler.sample(np.repeat(line[None], count, 0), sampler.SamplingBatch(batch)).tokens
    seen = np.bincount(found, minlength=VOCAB)
    assert seen[wanted == 0].sum() == 0
    often = wanted * count >= 5
    chi = ((seen - wanted * count)[often] ** 2 / (wanted * count)[often]).sum()
    free = max(1, often.sum() - 1)
    assert chi < free + 5 * np.sqrt(2 * free)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "asked"),
    [
        *((shape, {"temperature": 1.0}) for shape in ("peaked", "long tail", "flat")),
        *((shape, {"temperature": 1.0, "top_p": 0.98}) for shape in ("peaked", "long tail", "flat")),
        ("long tail", {"temperature": 1.0, "min_p": 0.01, "top_p": 0.95}),
        ("peaked", {"temperature": 1.0, "top_k": 30}),
    ],
)
def test_in_a_wide_vocabulary_tokens_are_drawn_from_the_distribution(shape, asked):
    """Few candidates, many others that matter only together, or no candidates at all. A chi-square test with a fixed
    seed over classes of tokens that are expected at least 20 times."""
    vocab, count, dice = 33_001, 1600, np.random.default_rng(1)
    ranked = {"peaked": 20 - 3 * np.log(np.arange(1, vocab + 1)), "long tail": -1.1 * np.log(np.arange(1, vocab + 1))}
    line = (dice.permutation(ranked[shape]) if shape in ranked else dice.normal(0, 0.5, vocab)).astype(np.float32)
    seen = np.zeros(vocab)
    for start in range(0, count, 100):
        batch = sampler.SamplingBatch([sequence(seed=start + i, **asked) for i in range(100)])
        np.add.at(seen, sampler.sample(np.repeat(line[None], 100, 0), batch).tokens, 1)
    wanted = expected(line, **asked) * count
    assert seen[wanted == 0].sum() == 0
    order = np.argsort(-wanted, kind="stable")
    classes = (wanted[order].cumsum() / 20).astype(int)
    sums = np.bincount(classes, wanted[order])
    chi = ((np.bincount(classes, seen[order]) - sums)[sums > 1] ** 2 / sums[sums > 1]).sum()
    free = max(1, (sums > 1).sum() - 1)
    assert chi < free + 5 * np.sqrt(2 * free)


@pytest.mark.parametrize("vocab", [VOCAB, 200_003])
def test_a_seed_gives_the_same_token_alone_and_in_any_company(vocab):
    """One of the vocabularies is so wide that several threads share the work of a batch."""
    x = lines(6, vocab, seed=3)
    options = [{"temperature": 1.0}, {"temperature": 1.0, "top_k": 7}, {}, {"temperature": 2.0, "top_p": 0.9}] * 2
    batch = [sequence(seed=i, **asked) for i, asked in zip(range(6), options, strict=False)]
    together = sampler.sample(x.copy(), sampler.SamplingBatch(batch)).tokens
    alone = [
        int(sampler.sample(x[i : i + 1].copy(), sampler.SamplingBatch([s])).tokens[0]) for i, s in enumerate(batch)
    ]
    assert together.tolist() == alone


@pytest.mark.parametrize("vocab", [2000, 40000])
def test_a_great_top_k_keeps_as_many_tokens_and_makes_no_others_be_sorted(vocab, monkeypatch):
    [line], sorted_of = lines(1, vocab, scale=0.1), []
    likeliest = set(np.argsort(-line)[:300].tolist())
    largest = reductions.largest
    monkeypatch.setattr(reductions, "largest", lambda *given: sorted_of.append(given[1]) or largest(*given))
    batch = [sequence(seed=seed, temperature=2.0, top_k=300 if seed else 5) for seed in range(200)]
    batch.append(sequence(temperature=1.0, top_k=(1 << 32) - 1))
    found = sampler.sample(line[None].repeat(201, 0), sampler.SamplingBatch(batch))
    assert set(sorted_of) == {5}
    assert not found.failed
    assert set(found.tokens[:200].tolist()) <= likeliest
    assert len(set(found.tokens[1:200].tolist())) > 100


def test_a_seeds_draw_depends_on_the_place_in_the_completion():
    line = np.zeros((1, VOCAB), np.float32)
    asked = {"temperature": 1.0, "seed": 9}
    assert one(line, (1, 2), (3, 4, 5), **asked) == one(line, (7,), (3, 4, 5), **asked)
    drawn = {one(line, (1, 2), (3,) * place, **asked)[0] for place in range(50)}
    assert len(drawn) > 20


def test_random_numbers_are_spread_evenly():
    seeds, places = np.meshgrid(np.arange(200, dtype=np.uint64), np.arange(200, dtype=np.uint64))
    numbers = random_sampling.uniform(seeds.reshape(-1), places.reshape(-1), 0)
    assert 0 <= numbers.min() < 0.001
    assert 0.999 < numbers.max() < 1
    counts = np.histogram(numbers, 50, (0, 1))[0]
    assert ((counts - 800) ** 2 / 800).sum() < 49 + 5 * np.sqrt(98)
    grid = numbers.reshape(200, 200)
    for shifted in (grid[1:], grid[:, 1:]):
        other = grid[:-1] if shifted.shape[0] == 199 else grid[:, :-1]
        assert abs(np.corrcoef(shifted.ravel(), other.ravel())[0, 1]) < 0.02


def test_logits_that_are_no_numbers_end_nothing():
    x = np.full((2, VOCAB), np.nan, np.float32)
    with np.errstate(invalid="ignore"):
        found = sampler.sample(
            x, sampler.SamplingBatch([sequence(temperature=1.0), sequence(temperature=1.0, top_k=3)])
        )
    assert all(0 <= token < VOCAB for token in found.tokens)


# --- what requests ask of the logits


def test_repetition_penalty_is_transformers_formula():
    line = lines()[0]
    s = sequence((1, 2, 2), (5, 6, 5), repetition_penalty=1.7)
    wanted = line.copy()
    for token in {1, 2, 5, 6}:
        wanted[token] = line[token] * 1.7 if line[token] < 0 else line[token] / 1.7
    edits.edit(line, s)
    np.testing.assert_allclose(line, wanted, rtol=1e-6)


@pytest.mark.slow
def test_repetition_penalty_equals_transformers_own():
    torch = pytest.importorskip("torch")
    from transformers import RepetitionPenaltyLogitsProcessor

    line = lines(seed=4)[0]
    ids = [1, 2, 2, 5, 6, 5]
    wanted = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([ids]), torch.tensor(line[None].copy())).numpy()[0]
    edits.edit(line, sequence(ids, repetition_penalty=1.3))
    np.testing.assert_allclose(line, wanted, rtol=1e-6)


@pytest.mark.parametrize("asked", [{"temperature": 0.0}, {}, {"top_p": 0.5}, {"top_k": 5}, {"temperature": 2.0}])
@pytest.mark.parametrize("vocab", [VOCAB, 40_000])
@pytest.mark.parametrize("factor", [1e-38, 1e-300])
def test_whoever_wants_nothing_but_repetition_gets_the_likeliest_token_of_the_text(asked, vocab, factor):
    row = lines(vocab=vocab)
    row[0, [3, 7, 50]] = 4, 5, -6
    assert one(row, (3, 7, 50), **{"temperature": 1.0, **asked}, repetition_penalty=factor)[0] == 7


@pytest.mark.parametrize("sign", [1, -1])
def test_presence_and_frequency_lower_what_was_generated_whatever_its_logit(sign):
    line = sign * np.abs(lines()[0])
    s = sequence((1, 2, 2), (5, 6, 5), presence_penalty=0.5, frequency_penalty=0.25)
    wanted = line.copy()
    wanted[5] -= 0.5 + 2 * 0.25
    wanted[6] -= 0.5 + 0.25
    edits.edit(line, s)
    np.testing.assert_allclose(line, wanted, rtol=1e-5)


def test_penalties_follow_the_text_token_by_token():
    s = sequence((1, 2), (), presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=1.2)
    for token in [5, 7, 5, 9, 300, 5]:
        fresh = sequence((1, 2), s.ids[2:], presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=1.2)
        mine, other = lines(vocab=400)[0], lines(vocab=400)[0]
        edits.edit(mine, s)
        edits.edit(other, fresh)
        np.testing.assert_array_equal(mine, other)
        s.ids.append(token)
        s.follow(token)


def test_more_different_tokens_than_the_tables_began_with():
    s = sequence(range(1000), range(500, 1500), frequency_penalty=1.0)
    line = np.zeros(2000, np.float32)
    edits.edit(line, s)
    assert line[:500].tolist() == [0] * 500
    assert line[500:1500].tolist() == [-1] * 1000
    assert line[1500:].tolist() == [0] * 500


def test_a_bad_word_is_not_completed_but_its_parts_may_stand_alone():
    line = lines()
    best = int(line.argmax())
    assert one(line, bad_words=((best,),))[0] != best
    assert one(line, (1, 2), (7,), bad_words=((7, best),))[0] != best
    assert one(line, (1, 2), (8,), bad_words=((7, best),))[0] == best
    assert one(line, (1, 7), (), bad_words=((7, best),))[0] == best  # words in the prompt do not count
    assert one(line, (1, 2), (6, 7), bad_words=((6, 7, best),))[0] != best


def test_no_stop_before_the_least_length():
    line = lines()
    best = int(line.argmax())
    asked = {"stops": frozenset({best}), "min_tokens": 2}
    assert one(line, (1,), (5,), **asked)[0] != best
    assert one(line, (1,), (5, 6), **asked)[0] == best


def test_a_used_up_budget_of_reasoning_tokens_forces_its_end():
    thinking = sequence((1,), (5, 6))
    thinking.request.thinking = Thinking(2, (), (9,), True)
    assert sampler.sample(lines(), sampler.SamplingBatch([thinking])).tokens.tolist() == [9]


@pytest.mark.parametrize(
    ("asked", "temperature", "drafts"),
    [({"temperature": 1e-6}, 0, 20), ({"temperature": 0.5}, 0.5, 20), ({"temperature": 0.5, "beams": 2}, 0, 0)],
)
def test_cold_requests_and_searches_are_greedy(asked, temperature, drafts):
    params = engine_params(Params(min_tokens=99, max_tokens=7, **asked).request(1, (1,)), speculative=True)
    assert (params.temperature, params.num_assistant_tokens, params.min_tokens) == (temperature, drafts, 7)


def test_who_leaves_no_token_fails_alone():
    best = lines().argmax()
    batch = [sequence(), sequence(allowed_token_ids=(3,), bad_words=((3,),)), sequence(temperature=1.0)]
    found = sampler.sample(np.repeat(lines(), 3, 0), sampler.SamplingBatch(batch))
    assert list(found.failed) == [1]
    assert "allows" in str(found.failed[1])
    assert found.tokens[0] == best


class Broken:
    def apply(self, line):
        raise ValueError("no such state")


def test_whose_grammar_breaks_fails_alone():
    found = sampler.sample(np.repeat(lines(), 2, 0), sampler.SamplingBatch([sequence(matcher=Broken()), sequence()]))
    assert {place: str(error) for place, error in found.failed.items()} == {
        0: "the token could not be chosen: no such state"
    }
    assert found.tokens[1] == lines().argmax()


# --- log probabilities


def test_log_probabilities_are_the_models_own_before_anything_is_asked():
    line = lines()
    wanted = np.log(softmax(line[0]))
    token, detail = one(
        line, logprobs=True, top_logprobs=4, temperature=2.0, presence_penalty=1.0, logit_bias=((7, 50.0),), seed=3
    )
    order = np.argsort(-wanted, kind="stable")
    assert detail.logprob == pytest.approx(wanted[token], abs=1e-5)
    assert detail.rank == order.tolist().index(token) + 1
    assert [i for i, _ in detail.top] == order[:4].tolist()
    assert [v for _, v in detail.top] == pytest.approx(wanted[order[:4]], abs=1e-5)


WIDE_VOCAB = 40_003


@pytest.mark.parametrize(
    ("shift", "asked"),
    [
        (0.0, {"temperature": 1.5}),
        (500.0, {"temperature": 1.0, "top_p": 0.9, "repetition_penalty": 1.3, "frequency_penalty": 2.0}),
        (-500.0, {"logit_bias": ((7, 30.0), (40_002, 30.0)), "bad_words": ((7,), (3, 9)), "presence_penalty": 1.0}),
        (0.0, {"stops": frozenset({4, 5}), "min_tokens": 20, "logit_bias": ((4, 50.0),)}),
        (500.0, {"allowed_token_ids": tuple(range(0, WIDE_VOCAB, 7)), "temperature": 3.0, "top_k": 30}),
    ],
)
@pytest.mark.slow
def test_log_probabilities_of_a_wide_vocabulary_are_the_models_own(asked, shift):
    """Edited lines next to unedited ones, with and without log probabilities; logits with which exp overflows."""
    x = lines(5, WIDE_VOCAB, seed=11) + np.float32(shift)
    x[2, 40_001] = x[2].max() + 1  # outside of the table
    batch = [
        sequence(generated=(4, 8, 8), seed=i, logprobs=k >= 0, top_logprobs=max(k, 0), **(asked if i else {}))
        for i, k in enumerate((3, 0, 20, -1, 5))
    ]
    found = sampler.sample(x.copy(), sampler.SamplingBatch(batch))
    assert not found.failed
    assert sorted(found.details) == [0, 1, 2, 4]
    assert found.tokens[0] == x[0].argmax()
    for place, detail in found.details.items():
        token, order = found.tokens[place], np.argsort(-x[place], kind="stable")
        wanted = np.log(softmax(x[place]))
        assert detail.logprob == pytest.approx(wanted[token], abs=2e-5)
        assert detail.rank == np.count_nonzero(x[place] > x[place, token]) + 1
        assert [i for i, _ in detail.top] == order[: len(detail.top)].tolist()
        assert [v for _, v in detail.top] == pytest.approx(wanted[order[: len(detail.top)]], abs=2e-5)


def test_ranks_in_a_wide_vocabulary_from_the_likeliest_to_the_last():
    x = lines(1, WIDE_VOCAB, seed=3)
    order = np.argsort(-x[0], kind="stable")
    for place in (0, 1, 40, 2000, WIDE_VOCAB - 1):
        (detail,) = logprobs.details(x, order[place : place + 1], 0)
        assert detail.rank == np.count_nonzero(x[0] > x[0, order[place]]) + 1


def test_equal_logits_are_listed_by_id():
    x = np.zeros((1, VOCAB), np.float32)
    (detail,) = logprobs.details(x, np.array([50]), 3)
    assert detail.rank == 1
    assert [i for i, _ in logprobs.details(x, np.array([50]), VOCAB)[0].top] == list(range(VOCAB))
    assert detail.logprob == pytest.approx(-np.log(VOCAB))
