"""Draft tokens from n-grams: which and how many there are, and that finding them costs the same at any length."""

from array import array
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from lean_ovms.engine.paged import assemble
from lean_ovms.engine.paged.batch_state import Speculation
from lean_ovms.features.drafting.child.draft_budget import DraftBudget
from lean_ovms.features.drafting.child.draft_length import DraftLength
from lean_ovms.features.drafting.child.ngrams import (
    FIRST_LENGTH,
    LENGTHS,
    MAX_CANDIDATES,
    PAUSES,
    NgramProposer,
    nearest,
)
from tests.engine.paged.harness import Params
from tests.engine.paged.network import VOCAB, FakeNetwork, HybridNetwork, logits_after
from tests.engine.paged.test_engine import Verse, engine, prompt
from tests.engine.real import QUESTIONS, load
from tests.engine.rig import Rig

LONG = 10_000


def propose(ids, most, longest=3, few=True):
    proposer = NgramProposer(longest)
    proposer._length.length = LONG
    return proposer.propose(array("q", ids), most, few)


@pytest.mark.parametrize(
    ("ids", "options", "draft"),
    [
        ([1, 2, 3, 4, 5, 1, 2, 3], {"most": 2}, [4, 5]),
        ([5, 1, 2, 9, 5, 1, 2, 8, 5, 1, 2], {"most": 1}, [8]),  # the last of two equally long matches
        ([7, 5, 1, 2, 9, 6, 5, 1, 2, 8, 7, 5, 1, 2], {"most": 1, "longest": 4}, [9]),  # the longer of two matches
        ([7, 5, 1, 2, 9, 6, 5, 1, 2, 8, 7, 5, 1, 2], {"most": 1, "longest": 3}, [8]),
        ([1, 2, 8, 9, 6, 2], {"most": 1, "longest": 1}, [8]),
        ([1, 2, 8, 9, 6, 1, 2], {"most": 1, "longest": 2}, [8]),
        ([1, 2, 8, 9, 6, 1, 2], {"most": 1}, []),  # two tokens are too short a match by default
        ([1, 2, 3, 4, 5, 1, 2, 3], {"most": 2, "longest": 9, "few": False}, []),
        ([1, 2, 3, 4, 5, 1, 2, 3], {"most": 2, "longest": 3, "few": False}, [4, 5]),
        ([*range(16), 20, 21, *range(16)], {"most": 2, "longest": 32, "few": False}, [20, 21]),
        ([1, 2, 1, 2, 1, 2], {"most": 5}, [1, 2, 1, 2, 1]),  # the repetition continues
        ([1, 2, 3, 4, -7, -7, 1, 2, 3], {"most": 5}, [4]),  # tokens of an image are not proposed
        ([1, 2, 3, 4, 1, 2, 3], {"most": 0}, []),
        ([1, 2, 3, 4], {"most": 3}, []),
        ([1], {"most": 3}, []),
        ([], {"most": 3}, []),
    ],
)
def test_the_draft_is_what_followed_the_longest_match(ids, options, draft):
    assert propose(ids, **options) == draft


def copied(proposer, ids, source, most=LONG):
    """Appends `source` to `ids` like a model that samples these tokens. Returns the lengths of the drafts by step."""
    lengths, end = [], len(ids) + len(source)
    text = array("q", ids) + array("q", source)
    at = len(ids)
    while at < end:
        draft = proposer.propose(text[:at], min(most, end - at - 1), True)
        accepted = next((n for n, token in enumerate(draft) if token != text[at + n]), len(draft))
        lengths.append(len(draft))
        at += accepted + 1
    return lengths


def test_drafts_of_a_copy_grow_from_step_to_step():
    source = list(range(100, 400))
    lengths = copied(NgramProposer(32), source, source, most=32)
    assert lengths[:3] == [0, 0, 0]
    assert lengths[3:8] == [1, 7, 15, 31, 31]
    assert len(lengths) < 20


def test_drafts_have_few_lengths():
    """A network keeps memory for each number of rows that it has computed."""
    assert {nearest(count) for count in range(1, 100)} == {*LENGTHS}
    assert [nearest(count) for count in (1, 2, 5, 6, 11, 22, 23)] == [1, 3, 7, 7, 15, 15, 31]


def test_the_first_draft_where_many_decode_is_worth_another_number_of_rows():
    ids = array("q", [*range(16), *range(20, 40), *range(16)])
    assert NgramProposer(32).propose(ids, 32, True) == [20]
    proposer = NgramProposer(32)
    assert proposer.propose(ids, 32, False) == list(range(20, 27))
    ids.extend([20, 99, *range(16)])  # one token was right, so drafts are short from now on
    assert proposer.propose(ids, 32, False) == [20]


def test_a_copy_with_changes_is_followed_behind_each_of_them():
    source = [n % 97 for n in range(0, 6000, 3)]
    changed = [1000 + n if n % 50 == 49 else token for n, token in enumerate(source)]
    assert len(copied(NgramProposer(32), source, changed, most=32)) < len(source) / 4


def test_what_is_never_accepted_is_proposed_rarely():
    """Every match continues in another way than before."""
    text: list[int] = []
    for n in range(300):
        text += [1, 2, 3, 1000 + n]
    lengths = copied(NgramProposer(32), text[:40], text[40:])
    rejected = sum(lengths)
    assert 0 < rejected <= FIRST_LENGTH + 8 + len(text) / PAUSES[1]


def test_a_long_text_is_indexed_once_and_few_places_are_compared(monkeypatch):
    proposer, ids, compared = NgramProposer(32), array("q", [1, 2, 3] * 2000), []
    matched = NgramProposer._matched
    monkeypatch.setattr(NgramProposer, "_matched", lambda *given: compared.append(1) or matched(*given))
    for n in range(200):
        proposer._length, proposer._proposed = DraftLength(8), []
        proposer.propose(ids, 8, True)
        ids.append(2000 + n)
        ids.extend([1, 2, 3])
    assert len(compared) <= 200 * MAX_CANDIDATES
    assert len(proposer._previous) == len(ids) - 4 - 3


# --- in the engine


def copying(text):
    """Returns the logits of a network that mostly repeats the token eight positions before, like a model that
    copies."""
    line = logits_after(text)
    if len(text) > 8 and len(text) % 7:
        line[text[-8]] += 9
    return line


def answers(requests, **options):
    """Returns the answers to requests that run together, with log probabilities, and the engine."""
    made, found = engine(**options), {}
    made.network.after = copying
    live = []
    for number, (ids, asked, matcher) in enumerate(requests):
        live.append((number, made.add(ids, asked, **({"matcher": matcher()} if matcher else {}))))
        made.step()
    while made.busy():
        made.step()
        for number, request in live:
            if request.can_read():
                for index, output in request.read().items():
                    tokens, tops = found.setdefault((number, index), ([], []))
                    tokens += output.generated_ids
                    tops += [[i for i, _ in detail.top] for detail in output.details]
    assert made.blocks.available == made.blocks.total
    return found, made


@pytest.mark.parametrize(("copies", "longest"), [(1, 7), (2, 4), (8, 1)])
def test_sequences_that_copy_share_the_draft_tokens_of_a_step(copies, longest, monkeypatch):
    """There is one draft token for each of the eight decoding sequences, shared by those that have a match."""
    choose, drafted = Speculation.choose, []

    def chosen(speculation):
        choose(speculation)
        drafted.append([len(sequence.draft_tokens) for sequence in speculation._batch.speculating])

    monkeypatch.setattr(DraftBudget, "most", lambda budget, sequences: 1)
    monkeypatch.setattr(Speculation, "choose", chosen)
    made = engine(400, 200)
    made.network.after = copying
    for number in range(8):
        made.add(
            prompt(8, number) * 4,
            Params(max_tokens=40, num_assistant_tokens=32 * (number >= 8 - copies), max_ngram_size=32),
        )
    while made.busy():
        made.step()
    together = [lengths for lengths in drafted if len(lengths) == copies]
    assert max(map(sum, together)) <= 8
    assert max(map(max, together)) == longest


ASKED = [
    {},
    {"temperature": 1.0, "top_p": 0.9, "seed": 5},
    {"temperature": 1.5, "top_k": 9, "seed": 6, "repetition_penalty": 1.1, "frequency_penalty": 0.1},
    {"stops": frozenset({3, 4}), "min_tokens": 30, "logprobs": True, "top_logprobs": 2, "bad_words": ((7, 7),)},
    {"n": 3, "temperature": 1.0, "seed": 9},
    {"beams": 3},
    {"logit_bias": ((5, 3.0),), "logprobs": True, "top_logprobs": 3},
]


@pytest.mark.parametrize(
    ("together", "blocks", "kind"),
    [(1, 400, FakeNetwork), *product([len(ASKED) + 1], (400, 60), (FakeNetwork, HybridNetwork))],
)
@pytest.mark.slow
def test_answers_are_those_without_drafts_in_any_batch(together, blocks, kind):
    """Greedy and sampled tokens, log probabilities, n, beams and a grammar, also with preemptions."""
    requests = [(prompt(12, i) * 2, Params(max_tokens=60, **asked), None) for i, asked in enumerate(ASKED)]
    requests.append((prompt(12) * 2, Params(max_tokens=60), lambda: Verse(50)))
    steps = [0, 0]
    for first in range(0, len(requests), together):
        group, found = requests[first : first + together], []
        for drafts in (False, True):
            with_drafts = {"num_assistant_tokens": 32, "max_ngram_size": 32} if drafts else {}
            asked = [
                (ids, replace(params, **({} if params.beams > 1 else with_drafts)), matcher)
                for ids, params, matcher in group
            ]
            answer, made = answers(asked, blocks=blocks, kind=kind)
            found.append(answer)
            steps[drafts] += made.steps
        assert found[0] == found[1]
    assert steps[1] < steps[0] or blocks < 100  # preempted sequences start again


@pytest.mark.slow
@pytest.mark.model
def test_networks_that_gain_by_drafts_have_them_unless_they_are_switched_off(monkeypatch):
    """The demo model is too small to gain from them. If it does not stop at the end of a text, it repeats itself."""
    found = {}
    for small, wanted in ((False, True), (False, False), (True, True)):
        monkeypatch.setattr(assemble, "is_small", lambda _, small=small: small)
        pipe = load(blocks=200, pipeline_type="PAGED", ngram_speculation=wanted)
        rig = Rig(pipeline=pipe)
        numbers = [rig.submit(pipe.encode(text, False) * 4, max_tokens=60, ignore_eos=True) for text in QUESTIONS[:2]]
        rig.run()
        found[small, wanted] = [rig.answer(number).tokens for number in numbers]
        stats = pipe.stats()
        assert stats.speculative is bool(stats.drafts) is bool(stats.accepted) is (wanted and not small)
        assert pipe.info.speculative == ""
        counts = [rig.answer(number).drafted for number in numbers]
        assert [sum(count) for count in zip(*counts, strict=True)] == [stats.drafted or 0, stats.accepted]
    assert found[False, True] == found[False, False] == found[True, True]


def test_the_index_of_a_sequence_is_freed_when_it_ends():
    made = engine()
    made.add(prompt(30), Params(max_tokens=10, num_assistant_tokens=32, max_ngram_size=32))
    [request] = made.requests.values()
    [sequence] = request.sequences
    for _ in range(3):
        made.step()
    texts = made.scheduler.speculation.source.texts
    assert sequence in texts
    while made.busy():
        made.step()
    assert not texts


def test_a_sequence_without_draft_tokens_is_one_of_the_plain_ones():
    made = engine()
    request = made.add(prompt(30), Params(max_tokens=10, num_assistant_tokens=32, max_ngram_size=32))
    made.step()
    assert not made.scheduler.schedule().chunks
    assert request.status != "finished"


def test_where_many_decode_only_long_matches_are_proposed():
    drafted = []
    for others in (0, 4):
        made = engine(blocks=400, step_tokens=200)
        made.network.after = copying
        for i in range(others):
            made.add(prompt(20, i), Params(max_tokens=30))
        made.add([1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3], Params(max_tokens=12, num_assistant_tokens=32, max_ngram_size=32))
        while made.busy():
            made.step()
        drafted.append(made.runner.drafts.drafts)
    assert drafted[0] > drafted[1]


def test_a_rejected_draft_gives_its_blocks_back():
    made = engine(blocks=64)
    made.network.after = lambda text: np.eye(VOCAB, dtype=np.float32)[len(text) % VOCAB]  # no draft token is accepted
    request = made.add([1, 2, 3, 4, 5, 1, 2, 3] * 4, Params(max_tokens=40, num_assistant_tokens=32, max_ngram_size=32))
    while made.busy():
        made.step()
        for sequence in made.scheduler.batch.decoding:
            assert len(sequence.blocks) <= made.blocks.blocks(len(sequence.ids))
    assert request.status == "finished"
