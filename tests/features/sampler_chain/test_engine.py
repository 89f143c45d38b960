"""Chains of samplers in the paged engine: drafts, choices, preemptions, masks, and the seam without one."""

from array import array
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

from lean_ovms.engine.paged.sampling.logits_processors import edit, touched
from lean_ovms.engine.paged.sampling.sampler import SamplingBatch, sample
from lean_ovms.engine.paged.sequence import NoToken, Prepared, Sequence, engine_params
from lean_ovms.features.sampler_chain.child.chain import PASS_S, SORT_S, Chain, ChainCost
from lean_ovms.features.structured_output.limits import GrammarCost
from tests.engine.paged.harness import Params
from tests.engine.paged.network import VOCAB, FakeNetwork, logits_after
from tests.engine.paged.test_engine import engine, prompt, run, texts_of
from tests.features.sampler_chain.test_samplers import Tokenizer, chain_settings

TOKENIZER = Tokenizer(*(chr(48 + token) for token in range(VOCAB)))
new_chain = partial(Chain, tokenizer=TOKENIZER)


@dataclass(slots=True, kw_only=True)
class Chained(Params):
    """Parameters of a request with a chain, as the engine gets them."""

    def request(self, number, prompt, constraint=""):
        request = Params.request(self, number, prompt, constraint)
        drafts = bool(self.num_assistant_tokens)
        return replace(request, native=Prepared(engine_params(request, speculative=drafts)))


KINDS = [
    Chained(max_tokens=20, sampler_chain=chain_settings(dry_multiplier=2.0, dry_allowed_length=1)),
    Chained(max_tokens=20, temperature=1.0, seed=4, sampler_chain=chain_settings(mirostat=1, mirostat_tau=2.0)),
    Chained(max_tokens=20, temperature=0.8, seed=5, sampler_chain=chain_settings(mirostat=2, mirostat_eta=0.5)),
    Chained(
        max_tokens=20,
        temperature=1.2,
        seed=6,
        top_k=20,
        presence_penalty=0.5,
        logprobs=True,
        top_logprobs=2,
        sampler_chain=chain_settings(xtc_probability=0.5, typical_p=0.9, repeat_last_n=8, dynatemp_range=0.5),
    ),
    Chained(
        max_tokens=20,
        temperature=1.0,
        seed=7,
        sampler_chain=chain_settings(samplers=["min_p", "adaptive_p"], adaptive_target=0.9),
    ),
]
CYCLE = [*range(8)] * 3
"""A prompt in which n-grams are found, and that the network likes to continue."""
each_kind = pytest.mark.parametrize("asked", KINDS, ids=range(len(KINDS)))


class Counting(FakeNetwork):
    """A network that likes to continue a cycle, so that draft tokens are often right."""

    @staticmethod
    def after(text):
        line = logits_after(text)
        line[(text[-1] + 1) % 8] += 5
        return line


def alone(ids, asked, after=logits_after):
    """Returns the answer by the definition: token by token, without a cache or drafts."""
    request = asked.request(1, ids)
    fields = {"prompt": len(ids), "limit": 1 << 20, "seed": asked.seed, "row": 0}
    one = Sequence(request=request, index=0, params=request.native.params, ids=array("q", ids), **fields)
    one.sampler_chain = new_chain(one)
    for _ in range(asked.max_tokens):
        one.ids.append(int(sample(after(one.ids.tolist())[None], SamplingBatch([one])).tokens[0]))
        one.sampler_chain.accept(one.ids[-1])
        if one.counts is not None:
            one.counts.add(one.ids[-1])
    return one.ids[len(ids) :].tolist()


@each_kind
@pytest.mark.parametrize("drafted", [0, 4])
def test_a_text_is_the_same_with_and_without_drafts(asked, drafted):
    """A sampler that learns sees each token once, however many were drafted."""
    made = engine(new_sampler_chain=new_chain, kind=Counting)
    request = made.add(CYCLE, replace(asked, num_assistant_tokens=drafted, max_ngram_size=1))
    assert run(made, request) == [alone(CYCLE, asked, Counting.after)]
    assert bool(made.runner.drafts.drafted) == bool(drafted)
    assert bool(made.runner.drafts.accepted) == bool(drafted)


@pytest.mark.slow
@each_kind
def test_choices_have_chains_of_their_own_and_repeat_with_the_seed(asked):
    made = engine(new_sampler_chain=new_chain)
    texts = texts_of(made, made.add(prompt(9), replace(asked, n=3)))
    assert texts == [alone(prompt(9), replace(asked, seed=asked.seed + index)) for index in range(3)]


@pytest.mark.slow
@each_kind
def test_a_preempted_text_goes_on_as_if_nothing_had_happened(asked):
    made = engine(blocks=15, new_sampler_chain=new_chain)
    requests = [made.add(prompt(9, number), asked) for number in range(3)]
    assert run(made, *requests) == [alone(prompt(9, number), asked) for number in range(3)]
    assert made.scheduler.preemptions


def test_a_chain_changes_the_text_and_only_that_of_its_request():
    made = engine(new_sampler_chain=new_chain)
    plain = Params(max_tokens=20)
    one, other = made.add(CYCLE, plain), made.add(CYCLE, KINDS[0])
    texts = run(made, one, other)
    [wanted] = run(made, made.add(CYCLE, plain))
    assert texts[0] == wanted != texts[1]


def a_sequence(ids=(1, 2, 3), **asked):
    asked = Chained(temperature=1.0, **asked)
    request = asked.request(1, ids)
    made = Sequence(
        request=request, index=0, params=request.native.params, ids=array("q", ids), prompt=len(ids), limit=99
    )
    made.sampler_chain = new_chain(made)
    return made


def test_the_chain_comes_after_everything_that_forbids_or_forces_tokens():
    made = a_sequence(
        top_k=2, allowed_token_ids=(4, 5, 6), logit_bias=((4, -9.0),), sampler_chain=chain_settings(samplers=["top_k"])
    )
    row = np.arange(VOCAB, dtype=np.float32)[::-1].copy()
    edit(row, made)
    assert np.flatnonzero(row > -np.inf).tolist() == [5, 6]
    assert touched(a_sequence(sampler_chain=chain_settings(samplers=[]))) is None
    with pytest.raises(NoToken):
        edit(np.full(VOCAB, -np.inf, np.float32), made)


def test_the_engine_leaves_to_the_chain_what_the_chain_applies():
    made = a_sequence(top_k=2, top_p=0.5, min_p=0.1, repetition_penalty=1.5, sampler_chain=chain_settings(samplers=[]))
    params = made.params
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (1.0, 0, 1.0, 0.0)
    assert (params.repetition_penalty, made.params.penalised, made.edited) == (1.0, False, True)
    cold = engine_params(replace(KINDS[0], temperature=1e-6).request(1, [1]), speculative=False)
    assert cold.temperature == 0


def test_log_probabilities_are_those_of_the_model():
    made = engine(new_sampler_chain=new_chain)
    request = made.add(prompt(5), replace(KINDS[3], max_tokens=1))
    made.step()
    [output] = request.read().values()
    row = logits_after(prompt(5)).astype(float)
    wanted = row - np.log(np.exp(row).sum())
    assert output.generated_log_probs == pytest.approx([wanted[output.generated_ids[0]]], abs=1e-5)
    assert output.details[0].top[0] == (int(wanted.argmax()), pytest.approx(wanted.max(), abs=1e-5))


def test_an_engine_without_the_part_samples_as_usual():
    made = engine()
    [text] = run(made, made.add(prompt(5), replace(KINDS[0], max_tokens=4)))
    assert len(text) == 4


def test_costly_chains_take_turns_and_hold_no_others_up(monkeypatch):
    """A chain is as costly as it is said to be first, and then as was measured."""
    monkeypatch.setattr(Chain, "_first_s", lambda chain, names: 0.04)
    monkeypatch.setattr(ChainCost, "learn", lambda cost, seconds: None)
    made = engine(new_sampler_chain=new_chain)
    several = made.add(prompt(9), replace(KINDS[1], n=8))
    plain = made.add(prompt(9, 1), Params(max_tokens=20))
    most, began = 0, None
    while several.status == "running":
        made.step()
        most = max(most, sum(s.sampler_chain is not None for s in made.scheduler.running))
        if began is None and several.can_read():
            began = plain.can_read()
    assert most == 2  # of 40 ms each, in 100
    assert began
    assert several.status == plain.status == "finished"


def test_a_chain_costs_what_its_samplers_take_and_its_grammar():
    asked = replace(KINDS[3], sampler_chain=chain_settings(typical_p=0.9, samplers=["top_k", "typ_p", "typ_p"]))
    request = asked.request(1, [1, 2])
    request.cost = GrammarCost(1.0, 1, 0.25, ("a notice",))
    fields = {"prompt": 2, "limit": 99, "row": 0}
    sequence = Sequence(request=request, index=0, params=request.native.params, ids=array("q", [1, 2]), **fields)
    new_chain(sequence)
    first = request.cost
    assert first.notices == ("a notice",)
    assert first.token_s == pytest.approx(0.25 + VOCAB * PASS_S + 2 * 20 * SORT_S)
    new_chain(sequence).apply(logits_after([1]))
    assert request.cost is first
    for _ in range(100):
        first.learn(0.5)
    assert first.token_s == pytest.approx(0.75)
