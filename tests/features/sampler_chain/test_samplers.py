"""Each sampler does what its definition says, on random logits, with tokens that are forbidden before."""

import math
import random
from array import array
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lean_ovms.features.sampler_chain import fields
from lean_ovms.features.sampler_chain.child import filters
from lean_ovms.features.sampler_chain.child.chain import Chain
from lean_ovms.features.sampler_chain.child.dry import LONGEST, Breakers, Dry, breakers_of
from lean_ovms.features.sampler_chain.child.filters import Candidates
from lean_ovms.features.sampler_chain.child.selectors import AdaptiveP, Mirostat
from lean_ovms.types import SamplingParams
from tests.features.sampler_chain import reference

SLACK = 1e-4
EXAMPLES = 10
often = settings(max_examples=EXAMPLES, deadline=None, database=None, derandomize=True)
sizes, seeds = st.sampled_from([1, 2, 5, 40, 300]), st.integers(0, 10**6)


def logits(size, seed, scale=2.0, forbidden=0.2):
    dice = np.random.default_rng(seed)
    row = dice.normal(0, scale, size).astype(np.float32)
    row[dice.random(size) < forbidden] = -np.inf
    row[dice.integers(size)] = 1.0
    return row


def pairs(row):
    return [(token, float(logit)) for token, logit in enumerate(row)]


def chain_settings(**given):
    return fields.settings_of(fields.read(fields.FIELDS, given))


@dataclass
class Text:
    """A sequence as far as a chain needs it."""

    params: SamplingParams
    ids: array = field(default_factory=lambda: array("q", [1, 2, 3]))
    prompt: int = 3
    seed: int = 0
    counts: object = None

    @property
    def request(self):
        return SimpleNamespace(sampling=self.params, cost=None)

    @property
    def generated(self):
        return len(self.ids) - self.prompt


class Tokenizer:
    """A tokenizer whose tokens are these texts, and that takes the longest that fits."""

    def __init__(self, *pieces):
        self.vocabulary = SimpleNamespace(pieces=[piece.encode() for piece in pieces])

    def encode(self, text, special):
        ids, rest = [], text.encode()
        while rest:
            fitting = [(len(piece), i) for i, piece in enumerate(self.vocabulary.pieces) if rest.startswith(piece)]
            size, token = max(fitting)
            ids, rest = [*ids, token], rest[size:]
        return ids


NO_TOKENS = Tokenizer()


def chain(tokenizer=NO_TOKENS, *, text=(1, 2, 3), seed=0, core=(), **given):
    params = SamplingParams(**{"temperature": 1.0, **dict(core)}, sampler_chain=chain_settings(**given))
    return Chain(Text(params, ids=array("q", text), prompt=len(text), seed=seed), tokenizer)


def left(row):
    """Returns the probabilities of the tokens that are left."""
    found = reference.softmax(pairs(row))
    return {token: p for token, p in enumerate(found) if p > 0}


def expected(kept):
    return {token: p for (token, _), p in zip(kept, reference.softmax(kept), strict=True) if p > 0}


def test_scores_are_sorted_as_by_a_stable_argsort():
    dice = np.random.default_rng(3)
    for scores in (
        dice.normal(size=999),
        dice.integers(-3, 3, 999),
        [0.0, np.inf, 1e-45, -1e-45, -np.inf, 1e30, -2.0, -1e30],
        [],
    ):
        row = np.array(scores, np.float32)
        assert filters._ascending(row).tolist() == row.argsort(kind="stable").tolist()


def test_a_chain_that_keeps_all_tokens_sorts_none(monkeypatch):
    monkeypatch.setattr(filters, "_ascending", lambda scores: pytest.fail("they are sorted"))
    row = np.random.default_rng(3).normal(size=9000).astype(np.float32)
    kept = row.copy()
    chain(typical_p=0.5, min_keep=9000, core={"top_p": 0.5}.items()).apply(kept)
    assert (kept > -np.inf).all()


FILTERS = {
    "top_k": (filters.top_k, reference.top_k, [(1,), (3,), (50,)]),
    "top_p": (filters.top_p, reference.top_p, [(0.1, 0), (0.5, 4), (0.9, 0), (0.999, 20)]),
    "min_p": (filters.min_p, reference.min_p, [(0.01, 0), (0.2, 0), (0.9, 7)]),
    "typical_p": (filters.typical_p, reference.typical_p, [(0.0, 0), (0.2, 0), (0.7, 5), (0.95, 0)]),
    "top_n_sigma": (filters.top_n_sigma, reference.top_n_sigma, [(0.3,), (1.0,), (2.5,)]),
    "xtc": (filters.exclude_top_choices, reference.xtc, [(0.02, 0), (0.1, 0), (0.5, 0), (0.05, 4)]),
    "temperature": (filters.temperature, reference.temperature, [(0.3,), (1.7,)]),
    "dynamic": (
        lambda found, value, distance, exponent: filters.dynamic_temperature(
            found, max(0, value - distance), value + distance, exponent
        ),
        lambda kept, *how: reference.dynamic_temperature(kept, *how) if len(kept) > 1 else kept,
        [(1.0, 0.5, 1.0), (0.6, 0.6, 2.0)],
    ),
}


@pytest.mark.parametrize("name", FILTERS)
def test_a_sampler_is_its_definition(name):
    ours, theirs, cases = FILTERS[name]

    @often
    @given(sizes, seeds, st.sampled_from(cases), st.sampled_from([0.2, 0.95]))
    def compare(size, seed, how, forbidden):
        row = logits(size, seed, forbidden=forbidden)
        found = Candidates(row.copy())
        ours(found, *how)
        found.write()
        wanted = expected(theirs(pairs(row), *how))
        near = how if name == "top_k" else (how[0] * (1 + SLACK), *how[1:])
        close = expected(theirs(pairs(row), *near)).keys()
        assume(close == wanted.keys())  # otherwise rounding decides
        assert left(found.row) == pytest.approx(wanted, abs=1e-5)

    compare()


@pytest.mark.parametrize("allowed", [2, 6])
def test_top_k_of_few_allowed_tokens_has_its_size(allowed):
    """Forbidden ones remain candidates, as in llama.cpp, where they count for dynatemp_range and min_keep."""
    row = np.full(200, -np.inf, np.float32)
    row[100 : 100 + allowed] = range(allowed)
    found = Candidates(row)
    filters.top_k(found, 4)
    assert len(found) == 4
    assert np.sort(found.logits)[-2:].tolist() == [allowed - 2, allowed - 1]


@often
@given(sizes, seeds)
def test_samplers_work_on_what_others_have_left(size, seed):
    row = logits(size, seed)
    found = Candidates(row.copy())
    filters.top_k(found, 9)
    filters.typical_p(found, 0.8, 0)
    filters.temperature(found, 0.7)
    filters.top_p(found, 0.9, 2)
    found.write()
    kept = reference.typical_p(reference.top_k(pairs(row), 9), 0.8, 0)
    kept = reference.top_p(reference.temperature(kept, 0.7), 0.9, 2)
    assert left(found.row) == pytest.approx(expected(kept), abs=1e-5)


def test_the_edges_of_the_definitions():
    """A mass is reached by top_p, and exceeded by typical_p; XTC's threshold is reached; XTC leaves min_keep tokens."""
    equal = np.zeros(4, np.float32)
    for sampler, how, count in (
        (filters.top_p, (0.5, 0), 2),
        (filters.typical_p, (0.5, 0), 3),
        (filters.exclude_top_choices, (0.25, 0), 1),
        (filters.exclude_top_choices, (0.25, 2), 4),
        (filters.exclude_top_choices, (0.26, 0), 4),
    ):
        found = Candidates(equal.copy())
        sampler(found, *how)
        assert len(found) == count, (sampler, how)


def test_a_wide_vocabulary_is_sorted_no_further_than_needed():
    row = logits(5000, 1, scale=0.1)  # nearly flat, so that more than SORTED tokens are needed
    for mass in (0.01, 0.3, 0.9):
        for ours, theirs in ((filters.top_p, reference.top_p), (filters.typical_p, reference.typical_p)):
            found = Candidates(row.copy())
            ours(found, mass, 0)
            found.write()
            assert abs(len(left(found.row)) - len(expected(theirs(pairs(row), mass, 0)))) <= 1


@often
@given(
    seeds,
    st.lists(st.integers(0, 9), min_size=1, max_size=30),
    st.sampled_from([1.0, 1.3]),
    st.sampled_from([0.0, 0.7]),
    st.sampled_from([0, 1, 4, 100]),
)
def test_penalties_count_the_latest_tokens(seed, text, repetition, frequency, latest):
    row = logits(40, seed)
    core = {"repetition_penalty": repetition, "frequency_penalty": frequency, "presence_penalty": 0.4}
    made = chain(text=text, core=core, repeat_last_n=latest, samplers=["penalties"])
    found = row.copy()
    made.apply(found)
    wanted = reference.penalties(pairs(row), text[len(text) - min(latest, len(text)) :], repetition, 0.4, frequency)
    assert left(found) == pytest.approx(expected(wanted), abs=1e-5)


def test_penalties_of_all_tokens_are_those_of_requests_without_a_chain():
    """The repetition penalty counts the prompt, and the other two only what was generated."""
    row = np.array([2, 2, 2, -2], np.float32)
    made = chain(
        text=(0, 3),
        core={"repetition_penalty": 2.0, "presence_penalty": 0.5, "frequency_penalty": 0.25},
        samplers=["top_k", "penalties"],
    )
    made._sequence.ids.extend([1, 1])
    made.apply(row)
    assert row.tolist() == [1, 0, 2, -4]


EXTREMES = (
    *({"top_n_sigma": sigmas} for sigmas in (5e-324, 1e39, 1e308)),
    *({"dynatemp_range": size, "dynatemp_exponent": power} for size in (1e-300, 100) for power in (0, 1e-300, 100)),
    *({"core": {"min_p": fraction}, "min_keep": 2} for fraction in (5e-324, 0.999)),
    *({"core": {"top_p": mass}, "min_keep": 2**31 - 1} for mass in (1e-300, 0.999)),
    *({"typical_p": mass} for mass in (0, 1e-300)),
    *({"xtc_probability": 1, "xtc_threshold": threshold} for threshold in (0, 5e-324)),
    *({"mirostat": v, "mirostat_tau": tau, "mirostat_eta": 100} for v in (1, 2) for tau in (0, 1000)),
    *({"samplers": ["adaptive_p"], "adaptive_target": p, "adaptive_decay": p * 0.99} for p in (0, 1)),
    *({"dry_multiplier": 100, "dry_base": 100, "dry_allowed_length": 0, "top_n_sigma": size} for size in (1e-300, 1)),
)
ROWS = {
    "equal": np.zeros(50),
    "one allowed": np.where(np.arange(50) == 49, 1, -np.inf),
    "two allowed": np.where(np.arange(50) > 47, 1, -np.inf),
    "far apart": np.linspace(-1e4, 1e4, 50),
    "usual": np.random.default_rng(1).normal(0, 3, 50),
}


@pytest.mark.parametrize("given", EXTREMES, ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_no_setting_leaves_no_token_or_a_forbidden_one(name, given):
    row = ROWS[name].astype(np.float32)
    made = chain(Tokenizer("a"), text=[1, 2] * 9, **given)
    for _ in range(3):
        found = row.copy()
        made.apply(found)
        token = int(found.argmax())
        assert np.isfinite(found.max())
        assert not np.isnan(found).any()
        assert row[token] > -np.inf
        made.accept(token)
        made._sequence.ids.append(token)


# --- DRY


def breaking(heads):
    """Returns breakers that begin with these tokens, each with the ways to complete it."""
    return Breakers(lambda token: heads.get(token, frozenset()), 3)


def found_by(tokenizer, *texts):
    """Returns the tokens that begin a breaker, each with the ways to complete it."""
    tails = breakers_of(tokenizer, texts).tails
    return {token: found for token in range(-2, len(tokenizer.vocabulary.pieces) + 2) if (found := tails(token))}


def assert_penalties(text, breakers, allowed, window, first):
    """Compares the penalties after the first tokens of a text, and after each further one, with the definition."""
    heads = {}
    for one in breakers:
        heads[one[0]] = heads.get(one[0], frozenset()) | {tuple(one[1:])}
    given = {"dry_multiplier": 0.5, "dry_base": 2.0, "dry_allowed_length": allowed, "dry_penalty_last_n": window}
    made = Dry(chain_settings(**given), breaking(heads))
    for end in range(first, len(text) + 1):
        tokens, amounts = made.penalties(array("q", text[:end]))
        found, limit = reference.repeated(text[:end], breakers, window)
        enough = min(end, window) > allowed and limit >= allowed
        wanted = {
            token: 0.5 * 2.0 ** (size - allowed)
            for token, size in found.items()
            if enough and size >= allowed and [token] not in breakers
        }
        assert dict(zip(tokens.tolist(), amounts.tolist(), strict=True)) == wanted, (text[:end], breakers, given)


def test_dry_is_its_definition_whether_a_text_comes_at_once_or_token_by_token():
    for seed in range(150):
        dice = random.Random(seed)
        text = [dice.randrange(3) for _ in range(dice.randrange(1, 40))]
        breakers = [[dice.randrange(4) for _ in range(dice.randrange(1, 4))] for _ in range(dice.randrange(3))]
        first = dice.randrange(len(text)) + 1
        assert_penalties(text, breakers, dice.choice([0, 1, 2, 4]), dice.choice([1, 3, 9, 100]), first)


@pytest.mark.parametrize("first", [1, 5])
def test_dry_ignores_breakers_that_begin_before_what_counts_or_before_a_later_one(first):
    assert_penalties([0, 1, 1, 1, 1], [[0, 1, 1]], 1, 4, first)
    assert_penalties([2, 3, 0, 1, 2], [[1], [0, 1, 2]], 1, 100, first)


def test_a_penalty_stays_finite_and_negative_ids_get_none():
    settings = chain_settings(dry_multiplier=100, dry_base=50, dry_penalty_last_n=-1)
    tokens, amounts = Dry(settings, breaking({})).penalties(array("q", [7] * 900 + [-1] * 3))
    assert tokens.tolist() == []
    tokens, amounts = Dry(settings, breaking({})).penalties(array("q", [7] * 900))
    assert (tokens.tolist(), np.isfinite(amounts).all()) == ([7], True)
    slow = chain_settings(dry_multiplier=1, dry_base=1.0001, dry_penalty_last_n=-1)
    for made, parts in ((Dry(slow, breaking({})), [900]), (Dry(slow, breaking({})), [3, 899, 900])):
        amounts = [made.penalties(array("q", [7] * size))[1] for size in parts]
        assert amounts[-1] == pytest.approx([1.0001**LONGEST], abs=1e-7)


def test_tokens_that_begin_a_breaker():
    tokenizer = Tokenizer("a", "b", "c", "ab", "xab", "xa", "bc", "abc", "é")
    assert found_by(tokenizer, "ab", "é") == {0: {(1,)}, 3: {()}, 4: {()}, 5: {(1,)}, 7: {()}, 8: {()}}
    assert found_by(tokenizer, "bc", "b") == {1: {(), (2,)}, 3: {(), (2,)}, 4: {(), (2,)}, 6: {()}, 7: {()}}
    assert found_by(tokenizer) == {}
    assert found_by(Tokenizer("aba", "ba"), "aba") == {0: {()}, 1: {(1,)}}


class Pieces(list):
    """The texts of tokens, which counts how many are looked at."""

    looked_at = 0

    def __getitem__(self, token):
        self.looked_at += 1
        return super().__getitem__(token)


def test_breakers_that_a_client_chooses_cost_little_time_and_memory():
    """Only the tokens of a text are looked at, once, and the rest of a breaker is tokenized once for all of them."""
    tokenizer = Tokenizer("x", *(f"{number}e" for number in range(500)), *(f"e{number}" for number in range(500)))
    tokenizer.vocabulary.pieces = pieces = Pieces(tokenizer.vocabulary.pieces)
    counted, tokenizer.encode = [], lambda text, special: counted.append(text) or [0]
    made = chain(tokenizer, text=[*range(1, 9)] * 3, dry_multiplier=1, dry_sequence_breakers=["e" + "x" * 39, "exx"])
    made.apply(np.zeros(1001, np.float32))
    assert pieces.looked_at <= 8
    assert len(counted) <= 2
    assert breakers_of.cache_parameters()["maxsize"] <= 8


def test_dry_of_a_request_takes_its_settings():
    tokenizer = Tokenizer("a", "b", "c", ":")
    row = np.zeros(4, np.float32)
    chain(tokenizer, text=[0, 1, 2, 0, 1], dry_multiplier=0.5, dry_base=2, dry_allowed_length=1).apply(row)
    assert row.tolist() == [0, 0, -1, 0]  # "ab" was followed by "c"
    row = np.zeros(4, np.float32)
    chain(tokenizer, text=[0, 1, 2, 3, 0, 1], dry_multiplier=0.5, dry_base=2, dry_allowed_length=2).apply(row)
    assert row.tolist() == [0, 0, -0.5, 0]
    chain(tokenizer, text=[0, 1, 2, 0, 3, 1], dry_multiplier=0.5, dry_base=2, dry_allowed_length=2).apply(row)
    assert row.tolist() == [0, 0, -0.5, 0]  # no further penalty: the colon ends what is repeated


# --- samplers that learn


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_follows_a_plain_reference(version):
    tau, eta, vocab, dice = 3.0, 0.3, 300, np.random.default_rng(version)
    made, limit = Mirostat(chain_settings(mirostat=version, mirostat_tau=tau, mirostat_eta=eta)), 2 * tau
    for step in range(60):
        row = logits(vocab, step, scale=1.0 + step % 3)
        found = Candidates(row)
        made.apply(found)
        kept = reference.ranked([pair for pair in pairs(row) if pair[1] > -math.inf])
        if version == 1:
            kept = kept[: reference.mirostat_count(kept, limit, vocab)]
        else:
            shown = reference.softmax(kept)
            kept = [pair for pair, p in zip(kept, shown, strict=True) if -math.log2(p) <= limit] or kept[:1]
        wanted = expected(kept)
        found.write()
        assert left(found.row) == pytest.approx(wanted, abs=1e-5)
        token = int(dice.choice([*wanted], p=np.array([*wanted.values()]) / sum(wanted.values())))
        limit -= eta * (-math.log2(wanted[token]) - tau)
        made.accept(token)
        assert made.limit == pytest.approx(limit, abs=1e-3)


def test_mirostat_takes_nothing_from_a_token_that_was_no_candidate():
    made = Mirostat(chain_settings(mirostat=2))
    for ids in (None, np.array([1, 3])):
        found = Candidates(np.zeros(4, np.float32))
        if ids is not None:
            found.keep(ids)
        made.apply(found)
        before = made.limit
        made.accept(9)
        assert made.limit == before


@pytest.mark.parametrize(("value", "kept"), [(0.0, 30), (-100.0, 1), (5.0, 1)])
def test_mirostat_of_logits_that_are_all_equal(value, kept):
    """As many tokens as there are, if their surprise is below the limit."""
    for version in (1, 2):
        made = Mirostat(chain_settings(mirostat=version))
        made.limit = 10.0 if value == 0 else -1.0 if value < 0 else 0.0
        found = Candidates(np.full(30, value, np.float32))
        made.apply(found)
        found.write()
        assert len(left(found.row)) == kept


def test_adaptive_p_follows_a_plain_reference():
    target, decay, dice = 0.4, 0.8, np.random.default_rng(3)
    made = AdaptiveP(chain_settings(samplers=["adaptive_p"], adaptive_target=target, adaptive_decay=decay))
    total, weight = target / (1 - decay), 1 / (1 - decay)
    for step in range(40):
        row = logits(20, step)
        found = Candidates(row.copy())
        made.apply(found)
        before = reference.softmax(pairs(row))
        aim = min(1, max(0, 2 * target - total / weight))
        far = [abs(p - aim) / 0.3 for p in before]
        bent = [(i, 5 - 10 * d * d / (1 + d) if row[i] > -np.inf else -math.inf) for i, d in enumerate(far)]
        found.write()
        wanted = expected(bent)
        assert left(found.row) == pytest.approx(wanted, abs=1e-5)
        token = int(dice.choice([*wanted], p=np.array([*wanted.values()]) / sum(wanted.values())))
        total, weight = before[token] + decay * total, 1 + decay * weight
        made.accept(token)


def test_xtc_has_its_probability_and_repeats_with_the_seed():
    row = np.log(np.array([0.5, 0.3, 0.1, 0.1], np.float32))

    def excludes(seed, position=0):
        found, made = row.copy(), chain(seed=seed, xtc_probability=0.25, xtc_threshold=0.2)
        made._sequence.ids.extend([1] * position)
        made.apply(found)
        return found[0] == -np.inf

    first = [excludes(seed) for seed in range(400)]
    assert 70 < sum(first) < 130
    assert first == [excludes(seed) for seed in range(400)]
    assert 20 < sum(excludes(1, position) for position in range(200)) < 80


def test_mirostat_replaces_all_samplers_but_the_temperature():
    on = {"typical_p": 0.1, "xtc_probability": 1, "dry_multiplier": 1, "dynatemp_range": 0.5, "adaptive_target": 0.5}
    made = chain(mirostat=2, core={"temperature": 0.5, "top_k": 1, "repetition_penalty": 2.0}, **on)
    row = np.log(np.array([0.6, 0.4], np.float32))
    found = row.copy()
    made.apply(found)
    assert np.diff(found) == pytest.approx(2 * np.diff(row))


# --- chains


KINDS = [
    {"typical_p": 0.8, "top_n_sigma": 1.5, "xtc_probability": 1.0},
    {"dynatemp_range": 0.9, "min_keep": 3, "samplers": "dkypmxt"},
    {"mirostat": 1},
    {"mirostat": 2, "mirostat_tau": 0.1, "mirostat_eta": 1.0},
    {"samplers": ["temperature", "adaptive_p"], "adaptive_target": 0.3},
    {"dry_multiplier": 5.0, "dry_allowed_length": 0, "repeat_last_n": 2},
    {"samplers": []},
]
"""Settings that together use every sampler."""


@often
@given(sizes, seeds, st.sampled_from(KINDS), st.sampled_from([0.0, 0.7, 1.5]), st.sampled_from([0, 5]))
def test_forbidden_tokens_never_come_back_and_one_token_is_always_left(size, seed, kind, temperature, most):
    core = {"temperature": temperature, "top_k": most, "top_p": 0.9, "min_p": 0.1, "presence_penalty": 1.0}
    made = chain(text=[0, 0, 0], seed=seed, core=core, **kind)
    for step in range(3):
        row = logits(size, seed + step, forbidden=0.5)
        found = row.copy()
        made.apply(found)
        assert not np.isnan(found).any()
        assert (found[row == -np.inf] == -np.inf).all()
        assert found.max() > -np.inf
        made.accept(int(found.argmax()))
    nothing = np.full(size, -np.inf, np.float32)
    made.apply(nothing)
    assert (nothing == -np.inf).all()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.keys() & {"xtc_probability", "dry_multiplier"}])
def test_at_temperature_0_the_likeliest_token_remains_so(kind):
    for seed in range(20):
        row = logits(50, seed)
        found = row.copy()
        chain(core={"temperature": 0.0, "top_k": 3}, **{**kind, "typical_p": 1.0}).apply(found)
        assert found.argmax() == row.argmax()


def test_the_order_of_samplers_counts():
    """At a high temperature all tokens are about equally likely."""
    row, core = np.log(np.array([0.6, 0.2, 0.1, 0.1], np.float32)), {"temperature": 100.0, "top_p": 0.5}
    for order, count in (("p", 1), ("pt", 1), ("tp", 2), ("", 4), ("k", 4)):
        found = row.copy()
        chain(core=core, samplers=order).apply(found)
        assert len(left(found)) == count, order


@pytest.mark.parametrize("name", fields.SAMPLERS)
def test_a_sampler_is_used_if_it_is_named_and_switched_on(name):
    core = {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.1}
    on = {"typical_p": 0.9, "top_n_sigma": 1, "xtc_probability": 1, "dry_multiplier": 1, "adaptive_target": 0.5}
    usual = name == "temperature"  # which is never off

    def count(*names, core=core, **given):
        made = chain(core=core, samplers=list(names), **given)
        return len(made._samplers) + (made._selector is not None)

    assert (count(name, **on), count(**on), count(name, core={"temperature": 1.0})) == (1, 0, usual)
