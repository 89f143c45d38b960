"""Beam search with tokens that a request forbids, compared with a search that has no batches and caches."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lean_ovms.engine.paged.sampling.logprobs import log_sum_exp
from lean_ovms.engine.paged.sequence import NoToken
from lean_ovms.features.structured_output.child.vocabulary import forbid
from tests.api.conftest import MakeApp, post, warnings_of, whole
from tests.cases import few_fast
from tests.engine.paged.harness import Driver, Params
from tests.engine.paged.network import FakeNetwork
from tests.fakes import say

SIZE = 4
PROMPT = [1, 2, 3]
END = 0
TURNS = 400


class RandomNetwork(FakeNetwork):
    """A network with random logits for a vocabulary of any size."""

    def __init__(self, vocabulary, seed):
        super().__init__(SIZE)
        self.vocab_size, self.seed = vocabulary, seed

    def after(self, text):
        dice = random.Random(f"{self.seed} {text}")
        return np.array([dice.gauss(0, 3) for _ in range(self.vocab_size)], np.float32)


class RandomMask:
    """An engine.paged.sequence.Matcher that allows random tokens after each text, and often none."""

    def __init__(self, vocabulary, seed, text=()):
        self.vocabulary, self.seed, self.text = vocabulary, seed, text

    def allowed(self):
        dice = random.Random(f"{self.seed} {self.text}")
        share = dice.choice([0.0, 0.2, 0.5, 1.0]) if self.text else 0.6
        return [token for token in range(self.vocabulary) if dice.random() < share]

    def prepare(self):
        pass

    def apply(self, line):
        if not self.allowed():
            raise NoToken("nothing may follow")
        forbid(line, None, self.allowed())

    def consume(self, token):
        self.text = (*self.text, token)
        return False

    def forced(self):
        return []

    def fork(self):
        return RandomMask(self.vocabulary, self.seed, self.text)


def satisfies(mask, text):
    mask = mask.fork()
    for token in text:
        if token not in mask.allowed():
            return False
        mask.consume(token)
    return True


def continuations(network, mask, text):
    """Returns (log probability, token) for the tokens that may follow, normalized over what the mask allows."""
    state = mask.fork()
    for token in text:
        state.consume(token)
    allowed = state.allowed()
    line = network.after(PROMPT + text)[allowed][None]
    return list(zip((line[0] - log_sum_exp(line)[0]).tolist(), allowed, strict=True)) if allowed else []


def every_text(network, mask, most, text=(), total=0.0):
    """Returns (score, text) for all texts up to a length that the mask allows, ended or cut at that length."""
    for logprob, token in continuations(network, mask, list(text)):
        longer = (*text, token)
        if token == END or len(longer) == most:
            yield (total + logprob) / len(longer), list(longer)
        else:
            yield from every_text(network, mask, most, longer, total + logprob)


def by_definition(network, mask, width, most):
    """Searches by the definition of beam search, with the allowed continuations."""
    running, done = [(0.0, [])], []
    for made in range(most):
        alive = [one for one in running if continuations(network, mask, one[1])]
        found = [(s + v, text, t) for s, text in alive for v, t in continuations(network, mask, text)]
        found.sort(key=lambda one: -one[0])
        running = []
        for rank, (score, text, token) in enumerate(found[: 2 * width]):
            if token == END and rank < width:
                done.append((score / (made + 1), [*text, token]))
            elif token != END and len(running) < width:
                running.append((score, [*text, token]))
        done = sorted(done, reverse=True)[:width]
        if not running or (len(done) == width and made and done[-1][0] >= max(s for s, _ in alive) / made):
            running = []
            break
    return sorted(done + [(score / most, text) for score, text in running], reverse=True)[:width]


def searched(network, mask, width, most):
    """Returns the texts that the engine finds, best first; None if it rejects the request."""
    made = Driver(network, blocks=200, block_size=SIZE, context=64, step_tokens=64, max_sequences=width)
    asked = Params(max_tokens=most, beams=width, stops=frozenset({END}))
    search = made.add(PROMPT, asked, matcher=mask.fork())
    other = made.add(PROMPT, Params(max_tokens=most))
    for _ in range(TURNS):
        if not made.busy():
            break
        made.step()
    assert not made.busy(), "no end"
    assert made.blocks.available == made.blocks.total
    assert other.status == "finished"
    if search.status == "refused":
        assert search.error
        return None
    assert search.status == "finished"
    return [output.generated_ids for _, output in sorted(search.read().items())]


@pytest.mark.parametrize("seed", few_fast(range(36), 12))
def test_what_is_found_satisfies_the_mask_and_is_what_the_definition_says(seed):
    dice = random.Random(seed)
    network = RandomNetwork(dice.choice([5, 9, 40]), seed)
    mask, width, most = RandomMask(network.vocab_size, seed), dice.randint(2, 6), dice.randint(1, 7)
    found = searched(network, mask, width, most)
    assert (found or []) == [text for _, text in by_definition(network, mask, width, most)]
    assert found is None or found
    assert all(satisfies(mask, text) for text in found or [])


@pytest.mark.parametrize("seed", few_fast(range(30), 6))
def test_a_search_wide_enough_for_every_text_finds_the_best_of_all(seed):
    network, most = RandomNetwork(5, seed), 3
    mask = RandomMask(5, seed)
    texts = sorted(every_text(network, mask, most), reverse=True)
    width = 5**most
    found = searched(network, mask, width, most)
    assert (found or []) == [text for _, text in texts]


def test_each_text_says_why_it_ends():
    reasons = set()
    for seed in range(8):
        made = Driver(RandomNetwork(5, seed), blocks=200, block_size=SIZE, context=64, step_tokens=64, max_sequences=3)
        [first] = made.add(PROMPT, Params(max_tokens=4, beams=3, stops=frozenset({END}))).sequences
        while made.busy():
            made.step()
        first.request.unfinished.update(range(3))  # as if none had been sent
        for record in first.search.records():
            assert (record.reason == "stop") is (record.tokens[-1] == END)
            assert record.reason == "stop" or len(record.tokens) == 4
            reasons.add(record.reason)
    assert reasons == {"stop", "length"}


def test_allowed_tokens_are_all_that_beams_have():
    made = Driver(RandomNetwork(40, 1), blocks=200, block_size=SIZE, context=64, step_tokens=64, max_sequences=3)
    search = made.add(PROMPT, Params(max_tokens=6, beams=3, allowed_token_ids=(7,)))
    for _ in range(6):
        made.step()
    assert [output.generated_ids for output in search.read().values()] == [[7] * 6]
    assert not made.busy()


def test_a_fault_while_tokens_are_chosen_ends_its_request_alone():
    class Broken(RandomMask):
        def apply(self, line):
            raise ValueError("broken")

        def fork(self):
            return self

    made = Driver(RandomNetwork(40, 1), blocks=200, block_size=SIZE, context=64, step_tokens=64, max_sequences=3)
    search = made.add(PROMPT, Params(max_tokens=6, beams=3), matcher=Broken(40, 1))
    other = made.add(PROMPT, Params(max_tokens=6))
    while made.busy():
        made.step()
    assert (search.status, other.status) == ("failed", "finished")


@pytest.mark.parametrize(
    "asked",
    [{"best_of": 2}, {"n": 2, "use_beam_search": True}, {"best_of": 2, "length_penalty": 0.5, "early_stopping": True}],
)
async def test_fields_of_beam_search_are_not_read(make_app: MakeApp, asked: dict[str, object]) -> None:
    app, engine = await make_app(lambda _, sampling: say("x", sequences=sampling.n), without="beam_search")
    response = await post(app, "/v1/completions", {"model": "m", "prompt": "a", **asked})
    warned = warnings_of(response)
    assert len((await whole(response))["choices"]) == asked.get("n", 1)
    told = [name for name in asked if any(f"{name} is not supported and was ignored" in line for line in warned)]
    assert told == [name for name in asked if name != "n"]
    [(_, sampling)] = engine.submitted
    assert sampling.beams == 1
