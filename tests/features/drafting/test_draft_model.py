"""A draft model or a head for multi-token prediction: the same answers in fewer steps, and a cache that stays right."""

import random
from dataclasses import replace

import numpy as np
import pytest

from lean_ovms.engine.paged.parts import EngineSizes, one_by_one
from lean_ovms.errors import StartError
from lean_ovms.features.drafting.child.draft_length import DraftLength
from lean_ovms.features.drafting.child.draft_model import DraftModel
from lean_ovms.features.drafting.child.network_drafts import check_vocabularies
from tests.cases import few_fast
from tests.engine.paged.harness import Params, leave_out_at_random
from tests.engine.paged.network import VOCAB, FakeNetwork, HeadNetwork, logits_after
from tests.engine.paged.test_engine import SIZE, Verse, alone, disturbed_step, engine, prompt, run

LOOK = {"num_assistant_tokens": 4}


class Opinion:
    """A draft network that often agrees with the main model.

    `wrong` is how often of 10 times it does not; with -10 the two likeliest tokens are exchanged.
    """

    def __init__(self, wrong=0, vocab=VOCAB):
        super().__init__(SIZE)
        self.wrong, self.vocab_size = wrong, vocab

    def after(self, text):
        line = logits_after(text)
        second, first = line.argsort()[-2:]
        if random.Random(str(text[-3:])).randrange(10) < self.wrong:
            line = line[::-1]
        elif self.wrong < 0:
            line[[first, second]] = line[[second, first]]
        return np.resize(line, self.vocab_size)


class DraftNetwork(Opinion, FakeNetwork):
    pass


class Head(Opinion, HeadNetwork):
    pass


def draft(wrong=0, vocab=VOCAB, prepare=one_by_one, main=None, **options):
    sizes = {"blocks": 64, "block_size": SIZE, "context": 400, "step_tokens": 32, "max_running": 32}
    made = EngineSizes(**{**sizes, **options}, max_sequences=32)
    return DraftModel(DraftNetwork(wrong, vocab), main or FakeNetwork(SIZE), made, prepare)


def drafting(kind, blocks=64, wrong=0, **options):
    """Returns an engine with a draft model or a head, and its proposer."""
    if kind == "head":
        head = Head(wrong)
        made = engine(blocks, kind=lambda size: FakeNetwork(size, head))
    else:
        made = engine(blocks, proposer=draft(wrong, **options))
    return made, made.scheduler.speculation.source.drafter


def assert_empty(proposer):
    assert not proposer._drafts
    assert not getattr(proposer, "_pending", ())
    assert proposer.blocks.available == proposer.blocks.total
    assert proposer._tables.available == proposer._tables.total


with_each = pytest.mark.parametrize("kind", ["model", "head"])


KINDS = [
    {},
    {"stops": frozenset({3, 4, 5})},
    {"temperature": 1.0, "top_p": 0.9, "seed": 5},
    {"temperature": 1.5, "top_k": 9, "seed": 6, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"stops": frozenset({1, 2, 3}), "min_tokens": 10, "logprobs": True, "top_logprobs": 2, "bad_words": ((7, 7),)},
    {"logit_bias": ((5, 3.0),), "assistant_confidence_threshold": 0.2},
]


@with_each
@pytest.mark.parametrize("asked", KINDS, ids=range(len(KINDS)))
@pytest.mark.slow
def test_answers_are_those_without_a_draft(asked, kind):
    made, proposer = drafting(kind, wrong=3)
    asked = Params(max_tokens=20, **asked, **LOOK)
    prompts = [prompt(length) for length in (1, 5, 33)]
    assert run(made, *(made.add(ids, asked) for ids in prompts)) == [alone(ids, asked) for ids in prompts]
    assert_empty(proposer)


@with_each
def test_a_draft_that_is_always_right_saves_all_steps_that_it_can(kind):
    asked, steps = Params(max_tokens=41, temperature=1.0, seed=3), []
    for wrong in (0, 3, 10):
        made, _ = drafting(kind, wrong=wrong)
        run(made, made.add(prompt(10), replace(asked, **LOOK)))
        steps.append(made.steps)
        counts = made.runner.drafts
        assert made.steps + counts.accepted == 41
        assert counts.drafts <= counts.drafted
        assert sum(counts.by_position) == counts.accepted
        if not wrong:
            lengths = [1, 2, 3, *[4] * 6] if kind == "head" else [2, *[4] * 7, 1]
            # The last draft has no room for an alternative.
            alternatives = sum(length < 4 for length in lengths) - (kind == "model")
            assert (counts.drafts, counts.drafted) == (len(lengths), sum(lengths) + alternatives)
            assert counts.by_position == [sum(length > place for length in lengths) for place in range(4)]
    assert steps[0] == 41 - sum(lengths)
    assert steps[0] < steps[1] < steps[2] <= 41


@pytest.mark.parametrize(
    ("happened", "then"),
    [
        *(([(5, accepted)], [length]) for accepted, length in ((5, 7), (4, 4), (3, 4), (1, 3), (0, 2))),
        ([(5, 0), (2, 0)], [1]),
        ([(5, 0), (2, 0), (1, 0)], [0, 1]),
        ([(5, 0), (2, 0), (1, 0), (1, 0)], [0, 0, 1]),
        ([(5, 0), (2, 0), *[(1, 0)] * 9], [0] * 16 + [1]),
        ([(5, 0), (2, 0), *[(1, 0)] * 9, (1, 1)], [3]),
    ],
)
def test_drafts_grow_where_they_are_accepted_and_pause_where_they_are_not(happened, then):
    length = DraftLength(5)
    for drafted, accepted in happened:
        length.remaining = 0
        length.learn(drafted, accepted)
    assert [length.next(20) for _ in then] == then
    assert length.next(0) == 0


@pytest.mark.parametrize(
    ("proposed", "sampled", "following"),
    [
        ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 9], 7),
        ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5], 7),
        ([1, 2, 3], [1, 2, 9], 3),
        ([1, 2, 3], [9], 2),
        ([1, 2, 3], [1, 2], 5),  # the third token was not verified
        ([1, 2, 3], [], 5),
        ([], [1], 5),
    ],
)
def test_a_draft_counts_as_far_as_it_was_verified(proposed, sampled, following):
    length = DraftLength(5)
    length.compare(proposed, sampled)
    assert length.next(20) == following


@with_each
def test_a_draft_that_is_never_right_costs_little(kind):
    passes = []
    for wrong in (0, 10):
        made, proposer = drafting(kind, wrong=wrong)
        asked = Params(max_tokens=61, **LOOK)
        assert run(made, made.add(prompt(10), asked)) == [alone(prompt(10), asked)]
        passes.append(proposer.steps)
    # Alternatives are at steps 1, 2, 4, 7, 12, 21, 38, 55, or 1, 3, 6, 11, 20, 37, and after the one that is right.
    assert passes == ([46, 6] if kind == "head" else [47, 2 + 7 + 2])


def test_the_draft_computes_what_is_new_and_no_more():
    """After a step of five tokens it computes five. A text that continues another one is found in its prefix cache."""
    proposer = draft()
    made, network = engine(proposer=proposer), proposer._network
    first = made.add(prompt(20), Params(max_tokens=21, **LOOK))
    ids = run(made, first)[0]
    assert network.computed == 20 + 4 + 3 * 5
    before = network.computed
    run(made, made.add(prompt(20) + ids + [9], Params(max_tokens=6, **LOOK)))
    assert network.computed - before < 15


def test_a_long_prompt_is_computed_in_parts_and_delays_nobody_else():
    proposer = draft()
    made = engine(blocks=128, step_tokens=32, proposer=proposer)
    other = made.add(prompt(5, 1), Params(max_tokens=100, **LOOK))
    made.step()
    long = made.add(prompt(100), Params(max_tokens=30, **LOOK))
    computed = proposer._network.computed
    while made.busy():
        made.step()
        assert proposer._network.computed - computed <= 32 + 2 * LOOK["num_assistant_tokens"]
        computed = proposer._network.computed
    assert other.status == long.status == "finished"
    assert_empty(proposer)


@pytest.mark.parametrize("options", [{"blocks": 6}, {"max_running": 1}, {"context": 20}, {"caching": False}])
def test_whom_the_draft_has_no_place_for_goes_on_without_guesses(options):
    proposer = draft(**options)
    made = engine(proposer=proposer)
    prompts = [prompt(8, i) for i in range(3)]
    asked = Params(max_tokens=25, **LOOK)
    assert run(made, *(made.add(ids, asked) for ids in prompts)) == [alone(ids, asked) for ids in prompts]
    assert proposer.steps
    assert_empty(proposer)


@with_each
def test_a_draft_that_fails_is_given_up_and_harms_nobody(kind, caplog):
    made, proposer = drafting(kind)
    proposer._network.fail = 1
    asked = Params(max_tokens=25, **LOOK)
    assert run(made, *(made.add(prompt(8, i), asked) for i in range(2))) == [alone(prompt(8, i), asked) for i in (0, 1)]
    assert proposer.steps == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"the {proposer.name} failed and is no longer used: the network failed"
    ]
    assert_empty(proposer)


@pytest.mark.parametrize("vocab", [VOCAB - 8, VOCAB + 8])
def test_logits_of_another_width_are_cut_or_filled_up(vocab):
    made, asked = engine(proposer=draft(vocab=vocab)), Params(max_tokens=30, temperature=1.0, seed=2, **LOOK)
    assert run(made, made.add(prompt(9), asked)) == [alone(prompt(9), asked)]
    assert made.steps < 25


@with_each
def test_guesses_end_where_the_draft_is_not_sure(kind):
    steps = []
    for confidence in (0.0, 0.5, 1.0):
        made, proposer = drafting(kind)
        run(made, made.add(prompt(9), Params(max_tokens=31, assistant_confidence_threshold=confidence, **LOOK)))
        steps.append((made.steps, proposer.steps))
    assert [made for made, _ in steps] == sorted(made for made, _ in steps)
    assert steps[0][0] < steps[1][0] < steps[2][0] == 31
    assert steps[1][1] < 31 + 4


@with_each
def test_the_draft_keeps_to_the_grammar(kind):
    texts, steps = [], []
    for made, proposer in ((engine(), None), drafting(kind)):
        asked = Params(max_tokens=40, temperature=1.0, seed=4, **(LOOK if proposer else {}))
        texts.append(run(made, *(made.add(prompt(10, i), asked, matcher=Verse(38, guesses=False)) for i in range(2))))
        steps.append(made.steps)
    assert texts[0] == texts[1]
    assert steps[1] <= 3 + -(-38 // 5)  # the first drafts of a head are short
    assert_empty(proposer)


def test_the_distribution_is_the_models_own():
    """A chi-square test of tokens that do not depend on earlier ones, with a draft that disagrees with the model."""
    made = engine(blocks=300, step_tokens=64, proposer=draft(blocks=300))
    line = logits_after([1, 2, 3])
    made.network.after = lambda text: line
    made.scheduler.speculation.source.drafter._network.after = lambda text: line + np.roll(line, 7) / 2
    asked = Params(max_tokens=50, temperature=1.3, **LOOK)
    texts = run(made, *(made.add(prompt(4, i), replace(asked, seed=i)) for i in range(12)))
    found = np.bincount(np.concatenate(texts), minlength=VOCAB)
    wanted = found.sum() * np.exp(line.astype(float) / 1.3) / np.exp(line.astype(float) / 1.3).sum()
    often = wanted > 5
    chi = ((found - wanted)[often] ** 2 / wanted[often]).sum()
    assert chi < often.sum() + 4 * np.sqrt(2 * often.sum())
    assert made.steps < 48  # some guesses are right


@with_each
@pytest.mark.parametrize("fields", few_fast(KINDS, 2))
def test_the_likeliest_other_token_is_verified_in_the_same_step(kind, fields):
    """This includes steps that compute a prompt, steps after a preemption, and a next turn in the prefix cache."""
    made, _ = drafting(kind, 200, wrong=-10)
    asked = Params(**{"max_tokens": 60, **fields})
    request = made.add(prompt(10), replace(asked, **LOOK))
    for number in range(8):
        made.step()
        if number == 2:
            made.add(prompt(90, 1), Params(max_tokens=1))
        if number == 5 and made.scheduler.batch.decoding:
            made.scheduler.preempt(made.scheduler.batch.decoding[0])
    [ids] = run(made, request)
    assert [ids] == [alone(prompt(10), asked)]
    again = prompt(10) + ids
    assert run(made, made.add(again, replace(asked, **LOOK))) == [alone(again, asked)]
    assert made.runner.drafts.accepted > 40 or fields
    assert made.blocks.available == made.blocks.total


@with_each
def test_an_alternative_keeps_to_the_grammar(kind):
    texts, asked = [], Params(max_tokens=40, **LOOK)
    for made in (engine(), drafting(kind, wrong=-10)[0]):
        texts.append(run(made, made.add(prompt(10), asked, matcher=Verse(38, guesses=False))))
    assert texts[0] == texts[1]
    assert made.steps < 25


@with_each
@pytest.mark.slow
def test_many_texts_with_preemptions_cancellations_failed_steps_and_steps_without_some_clients(kind):
    dice, base, blocks, waiting = random.Random(40), prompt(60, 9), 40, []
    options = {"max_running": 6} if kind == "model" else {}
    made, proposer = drafting(kind, blocks, wrong=3, **options)
    leave_out_at_random(made, 1)
    for number in range(20):
        ids = base[: dice.randrange(60)] + prompt(dice.randrange(1, 20), number)
        asked = {"max_tokens": 20, **dice.choice(KINDS), "num_assistant_tokens": dice.choice([0, 3, 6]), "seed": number}
        asked["client"] = "abc"[number % 3]
        waiting.append((number, ids, Params(**asked)))
    live, texts, wanted = [], {}, {}
    while waiting or made.busy():
        if waiting and dice.random() < 0.7:
            number, ids, asked = waiting.pop()
            live.append((number, made.add(ids, asked)))
            texts[number], wanted[number] = [], alone(ids, asked)
        disturbed_step(made, dice, live, texts, wanted)
    assert {number: texts[number] for number in wanted} == wanted
    assert made.scheduler.preemptions
    assert made.blocks.available == blocks
    assert_empty(proposer)


@pytest.mark.parametrize(("draft_size", "main_size"), [(262_144, 49_152), (32_000, 128_256), (151_936, 129_280)])
def test_a_draft_model_of_another_vocabulary_is_refused(draft_size, main_size):
    with pytest.raises(StartError, match="same tokenizer"):
        check_vocabularies(draft_size, main_size)


def test_padded_vocabularies_of_a_family_are_the_same():
    check_vocabularies(151_936, 152_064)
