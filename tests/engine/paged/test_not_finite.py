"""Logits that are not finite end their request, however it is sampled, and leave nothing of it in any cache."""

import numpy as np
import pytest

from lean_ovms.features.kv_events.child.events import KvEvents
from tests.engine.paged.harness import Params
from tests.engine.paged.network import VOCAB, FakeNetwork, HybridNetwork, logits_after
from tests.engine.paged.test_engine import SIZE, Verse, alone, engine, prompt, run
from tests.features.disk_cache.test_tier import disk, restarted, settled, threads_end, tiered  # noqa: F401
from tests.features.drafting.test_draft_model import draft
from tests.features.kv_events.test_events import Router, Texts, publish

SICK = VOCAB - 1
"""The keys and values of a text that begins with this token are not finite."""
FAULTS = {
    "one NaN": lambda line: line.__setitem__(11, np.nan),
    "all NaN": lambda line: line.fill(np.nan),
    "one inf": lambda line: line.__setitem__(60, np.inf),
    "nothing": lambda line: line.fill(-np.inf),
}
KINDS = {
    "greedy": {},
    "random": {"temperature": 1.0, "top_p": 0.9},
    "top_k": {"temperature": 1.0, "top_k": 9},
    "min_p": {"temperature": 0.7, "min_p": 0.1},
    "choices": {"temperature": 1.0, "n": 3},
    "beams": {"beams": 3},
    "penalties": {"repetition_penalty": 1.3, "logit_bias": ((5, 1.0),)},
    "one token allowed": {"allowed_token_ids": (7,)},
    "log probabilities": {"logprobs": True, "top_logprobs": 3},
    "named tokens": {"logprobs": True, "top_logprobs": 0, "logprob_token_ids": (1, 2)},
    "of the prompt": {"prompt_logprobs": 2},
    "n-grams": {"num_assistant_tokens": 4, "max_ngram_size": 1},
    "draft model": {"num_assistant_tokens": 4},
}


def sickly(fault, since=0):
    """Makes networks return invalid logits for texts that begin with SICK, from a number of tokens on."""

    def after(text):
        line = logits_after(text)
        if text[0] == SICK and len(text) > since:
            FAULTS[fault](line)
        return line

    class Network(FakeNetwork):
        pass

    class Hybrid(HybridNetwork):
        pass

    Network.after = Hybrid.after = staticmethod(after)
    return Network, Hybrid


def sound(length, seed=0):
    return [1, *(token % SICK for token in prompt(length - 1, seed))]


@pytest.mark.parametrize(
    ("fault", "kind", "since"),
    [
        *((fault, "greedy", 0) for fault in FAULTS),
        *(pytest.param(fault, "random", 0, marks=pytest.mark.slow) for fault in FAULTS),
        *(pytest.param("one NaN", kind, since, marks=pytest.mark.slow) for kind in KINDS for since in (0, 25)),
    ],
)
def test_a_request_ends_with_an_error_and_others_go_on(fault, kind, since):
    network, _ = sickly(fault, since)
    proposer = draft() if kind == "draft model" else None
    made = engine(200, kind=network, proposer=proposer, overlapping=since > 0)
    texts, router = Texts(made), Router()
    publish(made, KvEvents(SIZE, router, str))
    asked = Params(max_tokens=40, seed=3, **KINDS[kind])
    sick = made.add([SICK, *sound(20)], asked)
    others = [(sound(9 + 7 * number), Params(max_tokens=30, seed=number)) for number in range(3)]
    found = run(made, sick, *(made.add(*other) for other in others))
    assert (sick.status, sick.error[:42]) == ("failed", "The model computed values that are not fin")
    assert found[1:] == [alone(*other) for other in others]
    assert not [text for text in {*texts.cached, *router.texts.values()} if SICK in text]
    assert texts.cached
    assert run(made, made.add(*others[0])) == [alone(*others[0])]


@pytest.mark.parametrize("kind", ["grammar", "beams"])
def test_a_grammar_hides_no_fault(kind):
    made = engine(kind=sickly("one NaN")[0])
    sick = made.add([SICK, 1, 2], Params(max_tokens=9, beams=3 if kind == "beams" else 1), matcher=Verse(30))
    run(made, sick)
    assert sick.status == "failed"


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_fault_behind_a_draft_token_alone_costs_the_draft(after):
    """A wrong draft token may be one that no text of the request contains."""
    ids, asked = sound(12), Params(max_tokens=20)
    wanted = alone(ids, asked)
    wrong = [*ids, *wanted[: 8 + after], (wanted[8 + after] + 1) % SICK]

    class Network(FakeNetwork):
        @staticmethod
        def after(text):
            line = logits_after(text)
            if text[: len(wrong)] == wrong:
                line[3] = np.nan
            return line

    class Guesses:
        """Proposes the right tokens, except one."""

        def propose(self, wanted_now):
            for sequence, most in wanted_now:
                made = len(sequence.ids)
                sequence.draft_tokens = (wrong[made:] or [5])[:most]

        def computed(self, decoding, chunks):
            pass

        def leave(self, sequence):
            pass

    made = engine(kind=Network, proposer=Guesses())
    assert run(made, made.add(ids, Params(max_tokens=20, num_assistant_tokens=4))) == [wanted]


def test_parts_of_a_prompt_that_were_shared_before_the_fault_was_known_are_dropped_again():
    network, _ = sickly("one NaN")
    made = engine(200, step_tokens=16, kind=network)
    texts = Texts(made)
    first = made.add([SICK, *sound(80)], Params(max_tokens=9))
    for _ in range(3):
        made.step()
    assert [text for text in texts.cached if SICK in text]
    second = made.add([SICK, *sound(60), *sound(20, 1)], Params(max_tokens=9))
    run(made, first, second)
    assert first.status == second.status == "failed"
    assert not [text for text in texts.cached if SICK in text]
    assert made.blocks.free == made.blocks.total


@pytest.mark.parametrize("number", [0, 1])
def test_nothing_stays_on_disk(tmp_path, number):
    """Blocks that were already on disk, and those after them, are removed. A healthy text is cached as usual."""
    healthy, kind = (FakeNetwork, HybridNetwork)[number], sickly("all NaN", 60)[number]
    made = tiered(tmp_path, kind=healthy)
    run(made, made.add([SICK, *sound(40)], Params(max_tokens=2)))
    made = restarted(made, tmp_path, kind=kind)
    assert len(disk(made).store)
    sick = made.add([SICK, *sound(70)], Params(max_tokens=2))
    run(made, sick)
    assert sick.status == "failed"
    settled(made)
    assert not len(disk(made).store)
    assert run(made, made.add(sound(50), Params(max_tokens=2)))
    made = restarted(made, tmp_path, kind=healthy)
    again, other = made.add([SICK, *sound(70)], Params(max_tokens=2)), made.add(sound(50), Params(max_tokens=2))
    run(made, again, other)
    assert (again.cached, other.cached) == (0, 48)
