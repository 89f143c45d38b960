"""Scheduling, blocks and accounting of the paged engine, with a network whose answers show what it has read."""

import random
from array import array
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from lean_ovms.engine.paged import batch_state, step_runner
from lean_ovms.engine.paged.engine import Engine, PagedPipeline
from lean_ovms.engine.paged.parts import EngineParts, EngineSizes, ReleasedRequest
from lean_ovms.engine.paged.sampling.logprobs import log_sum_exp
from lean_ovms.engine.paged.sampling.sampler import SamplingBatch, sample
from lean_ovms.engine.paged.sequence import JUMP_FORWARD_SCORE, Sequence
from lean_ovms.errors import BadRequest
from tests.engine.paged.harness import Driver, Params
from tests.engine.paged.network import VOCAB, FakeNetwork, HybridNetwork, logits_after

SIZE = 4


def engine(blocks=64, step_tokens=32, kind=FakeNetwork, **options):
    return Driver(
        kind(SIZE),
        **{
            "blocks": blocks,
            "block_size": SIZE,
            "context": 400,
            "step_tokens": step_tokens,
            "max_sequences": 8,
            **options,
        },
    )


def run(made, *requests, most=5000):
    """Runs to the end. Returns the ids of each request's only text."""
    texts = [[] for _ in requests]
    for _ in range(most):
        for request, ids in zip(requests, texts, strict=True):
            if request.can_read():
                for output in request.read().values():
                    ids += output.generated_ids
        if not made.busy():
            assert made.blocks.available == made.blocks.total
            assert made.scheduler.tables.available == made.scheduler.tables.total
            assert made.states.available == made.states.total
            assert not made.waiting.clients
            return texts
        made.step()
    raise AssertionError("no end")


def alone(prompt, asked):
    """Returns the answer by the definition: token by token, without a cache."""
    ids = array("q", prompt)
    fields = {"prompt": len(ids), "limit": 1 << 20, "seed": asked.seed, "stops": asked.stops}
    one = Sequence(request=asked.request(1, ids), index=0, params=asked, ids=ids, **fields)
    for _ in range(asked.max_tokens):
        line = logits_after(ids.tolist())[None]
        ids.append(int(sample(line, SamplingBatch([one])).tokens[0]))
        one.follow(ids[-1])
        if ids[-1] in asked.stops:
            break
    return ids[len(prompt) :].tolist()


def prompt(length, seed=0):
    dice = random.Random(seed)
    return [dice.randrange(VOCAB) for _ in range(length)]


KINDS = [
    Params(max_tokens=12),
    Params(max_tokens=25, stops=frozenset({3, 4, 5})),
    Params(max_tokens=20, temperature=1.0, top_p=0.9, seed=5),
    Params(max_tokens=20, temperature=1.5, top_k=9, seed=6, repetition_penalty=1.3, frequency_penalty=0.4),
    Params(max_tokens=20, num_assistant_tokens=3),
    Params(max_tokens=20, num_assistant_tokens=4, temperature=0.7, seed=8, presence_penalty=0.5),
    Params(
        max_tokens=20,
        stops=frozenset({1, 2, 3}),
        min_tokens=10,
        logprobs=True,
        top_logprobs=2,
        prompt_logprobs=True,
        prompt_top_logprobs=1,
    ),
]


@pytest.mark.parametrize("asked", KINDS, ids=range(len(KINDS)))
@pytest.mark.parametrize("length", [1, 4, 33])
def test_a_text_alone_is_what_the_definition_says(asked, length):
    made = engine()
    assert run(made, made.add(prompt(length), asked)) == [alone(prompt(length), asked)]


def disturbed_step(made, dice, live, texts, wanted):
    """Runs a step that may fail, or overlap with a cancellation, and reads its outputs.

    Args:
        made: The engine.
        dice: The source of randomness.
        live: The running requests with their numbers.
        texts: What was read, by number.
        wanted: The complete answers, by number.
    """
    made.network.fail = int(dice.random() < 0.05)
    if dice.random() < 0.5:
        made.start()  # arrivals and cancellations happen while it computes
    if live and dice.random() < 0.03:
        number, request = live.pop(dice.randrange(len(live)))
        request.cancel()
        del wanted[number]
    try:
        made.step()
    except RuntimeError:
        made.network.fail = 0
    for number, request in live:
        if request.can_read() and (output := request.read().get(0)):
            texts[number] += output.generated_ids


def test_texts_wait_for_the_memory_of_states():
    """No text is ended, and no running one is preempted."""
    made = engine(kind=HybridNetwork, states=3)
    asked = [(prompt(9 + number, number), replace(KINDS[0], max_tokens=12)) for number in range(5)]
    requests, most = [made.add(*each) for each in asked], 0
    found = [[] for _ in requests]
    while made.busy() or any(request.can_read() for request in requests):
        made.step()
        most = max(most, len(made.scheduler.running))
        for request, ids in zip(requests, found, strict=True):
            while request.can_read():
                ids += request.read()[0].generated_ids
    assert found == [alone(*each) for each in asked]
    assert (most, made.max_sequences, len(made.network.states)) == (2, 2, 3)
    assert not made.scheduler.preemptions


@pytest.mark.parametrize(("length", "computed"), [(1, 1), (2, 4), (4, 4), (5, 8), (31, 32)])
def test_a_prompt_is_padded_to_few_lengths_and_answered_as_without(length, computed):
    made = engine(pad_to=SIZE)
    request = made.add(prompt(length), KINDS[0])
    made.step()
    assert made.network.tensors["input_ids"].shape == [computed]
    assert run(made, request) == [alone(prompt(length), KINDS[0])]
    assert made.network.tensors["input_ids"].shape == [1]


def test_prompts_are_computed_in_chunks_beside_those_who_decode():
    made = engine(step_tokens=16)
    first = made.add(prompt(4), Params(max_tokens=40))
    made.step()
    made.add(prompt(60, 1), Params(max_tokens=1))
    before = made.network.computed
    made.step()
    assert made.scheduled == 2
    assert made.network.computed - before == 16
    assert first.can_read()
    run(made)


def test_whoever_is_cancelled_while_a_step_computes_gets_nothing_of_it():
    """Prompts, draft tokens, beams and single tokens. Other requests continue as if nothing had happened."""
    made = engine(step_tokens=64)
    kinds = [Params(max_tokens=20), Params(max_tokens=20, num_assistant_tokens=3), Params(max_tokens=20, beams=3)]
    kept = made.add(prompt(9, 9), Params(max_tokens=30))
    for decoding in (False, True):
        gone = [made.add(prompt(40, i), asked) for i, asked in enumerate(kinds)]
        for _ in range(8 if decoding else 0):
            made.step()
        assert made.start()
        assert made.start()  # the same step again
        for request in gone:
            request.cancel()
        late = made.add(prompt(6, 6), Params(max_tokens=4))
        made.step()
        assert not any(request.can_read() for request in gone)
        texts = run(made, late)
        assert texts == [alone(prompt(6, 6), Params(max_tokens=4))]
    assert kept.read()[0].generated_ids == alone(prompt(9, 9), Params(max_tokens=30))


def test_nothing_is_started_where_there_is_nothing_to_compute():
    made = engine()
    assert not made.start()
    run(made, made.add(prompt(4), Params(max_tokens=1)))
    assert not made.start()
    assert not made.busy()


def test_an_unsplit_prompt_is_computed_in_one_step():
    made = engine(step_tokens=100, split=False)
    made.add(prompt(90), Params(max_tokens=1))
    made.step()
    assert not made.busy()


def texts_of(made, request):
    """Runs to the end. Returns the ids of each of a request's texts."""
    texts = {}
    while made.busy():
        made.step()
        if request.can_read():
            for index, output in request.read().items():
                texts.setdefault(index, []).extend(output.generated_ids)
    return [texts[index] for index in sorted(texts)]


@pytest.mark.parametrize(
    ("length", "step_tokens", "caching"), [(30, 64, True), (90, 32, False), (4, 32, False), (33, 32, True)]
)
def test_the_texts_of_a_request_compute_their_prompt_once(length, step_tokens, caching):
    """This holds without a prefix cache too; then requests share nothing."""
    made = engine(step_tokens=step_tokens, caching=caching)
    asked = Params(max_tokens=5, temperature=1.0, seed=20, n=3)
    texts = texts_of(made, made.add(prompt(length), asked))
    assert texts == [alone(prompt(length), replace(asked, seed=20 + index)) for index in range(3)]
    whole = (length - 1) // SIZE * SIZE
    assert made.network.computed == length + 2 * (length - whole) + 3 * 4
    before = made.network.computed
    run(made, made.add(prompt(length), replace(asked, n=1)))
    assert made.network.computed - before == (length - whole if caching else length) + 4


def beams_by_definition(ids, asked):
    """Returns the result of transformers' and GenAI's beam search, without a cache."""
    width, length = asked.beams, lambda total, n: total / n**asked.length_penalty
    running, done = [(0.0, list(ids))], []
    for made in range(asked.max_tokens):
        found = []
        for score, text in running:
            line = logits_after(text)[None]
            values = line[0] - log_sum_exp(line)[0]
            found += [(score + float(v), text, t) for t, v in enumerate(values)]
        found.sort(key=lambda one: -one[0])
        front, following = max(score for score, _ in running), []
        for rank, (score, text, token) in enumerate(found[: 2 * width]):
            if token in asked.stops:
                if rank < width:
                    done.append((length(score, made + 1), [*text, token]))
            elif len(following) < width:
                following.append((score, [*text, token]))
        if len(done) >= width:
            done = sorted(done, reverse=True)[:width]
            most = asked.max_tokens if asked.early_stopping == "never" and asked.length_penalty > 0 else made
            if asked.early_stopping is True or (made and done[-1][0] >= length(front, most)):
                return [text[len(ids) :] for _, text in done]
        running = following
    done += [(length(score, asked.max_tokens), text) for score, text in running]
    return [text[len(ids) :] for _, text in sorted(done, reverse=True)[:width]]


@pytest.mark.parametrize(
    ("penalty", "stops", "blocks", "early_stopping"),
    [
        (0.5, (), 400, False),
        (1.0, (), 30, False),
        (0.5, (1, 2, 3, 4), 30, False),
        (-1.0, (1, 2, 3, 4), 400, False),
        (0.5, (1, 2, 3, 4), 400, True),
        (-1.0, (1, 2, 3, 4), 30, True),
        (0.5, (1, 2, 3, 4), 30, "never"),
        (-1.0, (1, 2, 3, 4), 400, "never"),
    ],
)
@pytest.mark.slow
def test_beam_search_is_what_the_definition_says(penalty, stops, blocks, early_stopping):
    """Searches run together with other requests; with few blocks, they start again."""
    made = engine(blocks, step_tokens=64)
    asked = Params(
        max_tokens=12, beams=4, length_penalty=penalty, stops=frozenset(stops), early_stopping=early_stopping
    )
    searches = [made.add(prompt(10 + i, i), asked) for i in range(3)]
    other = made.add(prompt(9, 9), Params(max_tokens=30))
    texts = run(made, other)
    assert texts == [alone(prompt(9, 9), Params(max_tokens=30))]
    for number, search in enumerate(searches):
        outputs = search.read()
        found = [output.generated_ids for _, output in sorted(outputs.items())]
        assert found == beams_by_definition(prompt(10 + number, number), asked)
    assert bool(made.scheduler.preemptions) is (blocks == 30)


def test_beams_that_begin_again_have_no_penalties_from_before():
    asked = Params(max_tokens=12, beams=3, repetition_penalty=1.5, frequency_penalty=-0.8)
    found = []
    for blocks in (200, 24):
        made = engine(blocks, step_tokens=64)
        searches = [made.add(prompt(10 + i, i), asked) for i in range(3)]
        while made.busy():
            made.step()
        assert bool(made.scheduler.preemptions) is (blocks == 24)
        found.append([[output.generated_ids for output in search.read().values()] for search in searches])
    assert found[0] == found[1]


def test_beams_have_alternatives_and_the_prompts_log_probabilities():
    """A search that starts again has them too."""
    ids = prompt(10)
    asked = Params(
        max_tokens=8,
        beams=3,
        logprobs=True,
        top_logprobs=2,
        prompt_logprobs=True,
        prompt_top_logprobs=1,
        stops=frozenset({1, 2}),
        logit_bias=((5, 3.0),),
    )
    for blocks in (64, 12):
        made = engine(blocks)
        searches = [made.add(ids, asked) for _ in range(2)]
        while made.busy():
            made.step()
        assert bool(made.scheduler.preemptions) is (blocks == 12)
        for search in searches:
            outputs = search.read()
            assert len(search.prompt_details) == 9
            for output in outputs.values():
                assert len(output.details) == len(output.generated_ids)
                for place, (token, detail) in enumerate(zip(output.generated_ids, output.details, strict=True)):
                    line = logits_after(ids + output.generated_ids[:place])[None]
                    values = (line - log_sum_exp(line))[0]
                    assert [i for i, _ in detail.top] == np.argsort(-values, kind="stable")[:2].tolist()
                    assert detail.logprob == pytest.approx(values[token], abs=1e-5)


def test_prompt_log_probabilities_are_exact_in_chunks_in_company_and_beside_the_cache():
    made, ids = engine(step_tokens=24), prompt(70)
    run(made, made.add(ids, Params(max_tokens=1)))
    others = [made.add(prompt(5, i), Params(max_tokens=40)) for i in range(3)]
    request = made.add(ids, Params(max_tokens=2, prompt_logprobs=True, prompt_top_logprobs=3))
    run(made, request, *others)
    assert request.cached == 0
    assert len(request.prompt_details) == 69
    for place, detail in enumerate(request.prompt_details, 1):
        line = logits_after(ids[:place])[None]
        values = (line - log_sum_exp(line)[:, None])[0]
        assert detail.logprob == pytest.approx(values[ids[place]], abs=1e-5)
        assert [i for i, _ in detail.top] == np.argsort(-values, kind="stable")[:3].tolist()


def test_a_text_that_ended_in_a_step_that_failed_later_has_its_end(monkeypatch):
    """Its last token was sampled before a draft token of another text, for which there is no memory."""
    made, failed = engine(), []
    drafting = made.add([*range(8)] * 4, Params(max_tokens=40, num_assistant_tokens=4, max_ngram_size=1))
    others = [made.add(prompt(9, number), Params(max_tokens=number)) for number in range(2, 12)]
    sample_all = step_runner.sample

    def sample_or_fail(logits, batch):
        over = [other for other in others if other.sequences[0].reason and other.status == "running"]
        if over and not failed:
            failed.extend(over)
            raise RuntimeError("no memory")
        return sample_all(logits, batch)

    monkeypatch.setattr(step_runner, "sample", sample_or_fail)
    texts = run(made, drafting, *others)
    assert failed
    assert texts[1:] == [alone(prompt(9, number), Params(max_tokens=number)) for number in range(2, 12)]
    assert {request.status for request in [drafting, *others]} == {"finished"}


class EncodedImages(PagedPipeline):
    """A pipeline without a tokenizer, all of whose requests have images that are encoded."""

    def __init__(self, *given):
        Engine.__init__(self, *given)
        self.encoded = []
        self._images = SimpleNamespace(queue=SimpleNamespace(poll=lambda: [self.encoded.pop()] if self.encoded else []))

    def release(self, number, **asked):
        request = Params(**asked).request(number, prompt(9))
        self.requests[number] = request
        self.encoded.append(ReleasedRequest(request, 4, None))


def test_a_request_that_cannot_be_queued_when_its_images_are_encoded_fails_alone():
    def without_memory(sequence):
        raise MemoryError

    sizes = EngineSizes(blocks=40, block_size=SIZE, context=400, step_tokens=32, max_sequences=4)
    parts = EngineParts(new_sampler_chain=without_memory)
    made = EncodedImages(FakeNetwork(SIZE), sizes, parts)
    made.release(1, sampler_chain={})
    made.admit()
    made.release(2, max_tokens=3)
    while not made.out or made.requests:
        made.admit()
        made.step()
    failed, *rest = made.out
    assert (failed.id, failed.error[0]) == (1, "EngineFailure")
    assert {record.id for record in rest} == {2}
    assert rest[-1].reason == "length"
    assert not made.waiting.clients


def test_a_request_that_cannot_be_computed_fails_alone():
    made = engine()
    bad = made.add(prompt(8), Params(max_tokens=10, allowed_token_ids=(3,), bad_words=((3,),)))
    good = made.add(prompt(9), Params(max_tokens=10))
    assert run(made, bad, good) == [[], alone(prompt(9), Params(max_tokens=10))]
    assert (bad.status, good.status) == ("refused", "finished")
    assert "allows" in bad.error


class Unmatched:
    """A grammar whose matchers cannot be made."""

    def __init__(self, error):
        self.error = error

    def fork(self):
        raise self.error


@pytest.mark.parametrize("texts", [1, 2])
@pytest.mark.parametrize(("error", "status"), [(BadRequest("no"), "refused"), (RuntimeError("no"), "failed")])
def test_a_request_whose_grammar_cannot_be_matched_fails_alone_and_leaves_nothing(error, status, texts):
    made = engine()
    asked = Params(max_tokens=10, n=texts, client="a")
    bad = made.add(prompt(8), asked, matcher=Unmatched(error))
    good = made.add(prompt(9), Params(max_tokens=10, client="b"))
    assert run(made, bad, good) == [[], alone(prompt(9), Params(max_tokens=10))]
    assert (bad.status, good.status) == (status, "finished")
    assert not made.waiting.clients  # or the shares of other clients would be smaller for ever


def test_a_choice_that_waits_ends_with_its_request():
    made = engine()
    made.scheduler.must_wait = lambda sequence: sequence.index == 0
    bad = made.add(prompt(8), Params(n=2), matcher=Unmatched(BadRequest("no")))
    made.step()
    assert bad.status == "refused"
    assert not made.busy()
    assert not made.waiting.clients


class Alternating:
    """A grammar with even and odd tokens in turn, `most` of them."""

    def __init__(self, most, made=0):
        self.most, self.made = most, made

    def prepare(self):
        pass

    def apply(self, line):
        line[1 - self.made % 2 :: 2] = -np.inf

    def consume(self, token):
        assert token % 2 == self.made % 2
        self.made += 1
        return self.made == self.most

    def forced(self):
        return []

    def fork(self):
        return Alternating(self.most, self.made)


class Verse(Alternating):
    """A grammar in which three of four tokens are forced. It proposes them, some of them wrong."""

    def __init__(self, most, made=0, *, guesses=True, wrong=0):
        super().__init__(most, made)
        self.guesses, self.wrong = guesses, wrong

    def _next(self, place):
        return None if place % 4 == 0 else (7 * place) % VOCAB

    def apply(self, line):
        token = self._next(self.made)
        if token is not None:
            line[[i for i in range(VOCAB) if i != token]] = -np.inf

    def consume(self, token):
        assert self._next(self.made) in (None, token)
        self.made += 1
        return self.made == self.most

    def forced(self):
        end = next(p for p in range(self.made, self.made + 5) if self._next(p) is None)
        found = [self._next(place) for place in range(self.made, end)] if self.guesses else []
        return [token if (self.made + i) % 7 or not self.wrong else token + 1 for i, token in enumerate(found)]

    def fork(self):
        return Verse(self.most, self.made, guesses=self.guesses, wrong=self.wrong)


@pytest.mark.parametrize("wrong", [0, 1])
@pytest.mark.parametrize("blocks", [200, 24])
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"temperature": 1.0, "seed": 5, "logprobs": True, "top_logprobs": 2},
        {"frequency_penalty": 0.5, "stops": frozenset({3, 9})},
    ],
)
@pytest.mark.slow
def test_what_a_grammar_leaves_no_choice_about_is_guessed_and_changes_nothing(monkeypatch, asked, blocks, wrong):
    monkeypatch.setattr(batch_state, "FEW_SEQUENCES", 4)
    found = []
    for guesses in (False, True):
        made = engine(blocks)
        requests = [
            made.add(prompt(10, i), Params(max_tokens=38, **asked), matcher=Verse(30, guesses=guesses, wrong=wrong))
            for i in range(3)
        ]
        plain = made.add(prompt(9, 9), Params(max_tokens=30))
        texts = run(made, *requests, plain)
        assert texts[3] == alone(prompt(9, 9), Params(max_tokens=30))
        found.append((texts, made.steps, {request.status for request in requests}))
        assert made.scheduler.preemptions or blocks > 24
    assert found[0][0] == found[1][0]
    assert found[0][2] == found[1][2] == {"finished"}


def test_guesses_of_a_grammar_save_steps_until_they_are_wrong_too_often():
    steps = []
    for options in ({"guesses": False}, {}, {"wrong": 1}):
        made = engine()
        run(made, made.add(prompt(10), Params(max_tokens=40), matcher=Verse(40, **options)))
        steps.append(made.steps)
    assert steps[1] <= 11
    assert steps[1] < steps[2] < steps[0]
    made = engine()
    crowd = [made.add(prompt(10, i), Params(max_tokens=41), matcher=Verse(40)) for i in range(3)]
    run(made, *crowd)
    assert made.steps >= 40
    made = engine()
    matcher = Verse(60)
    matcher.forced = lambda: [63]
    run(made, made.add(prompt(10), Params(max_tokens=60), matcher=matcher))
    assert made.network.computed <= 10 + 60 + JUMP_FORWARD_SCORE


def test_nobody_is_preempted_or_lost_for_a_guess():
    made = engine(blocks=10)
    request = made.add(prompt(12), Params(max_tokens=28), matcher=Verse(28))
    run(made, request)
    assert (request.status, made.scheduler.preemptions) == ("finished", 0)


@pytest.mark.parametrize("asked", [{}, {"n": 3, "temperature": 1.0}, {"beams": 3}])
def test_a_grammar_holds_for_every_text_and_ends_it(asked):
    made = engine()
    request = made.add(prompt(10), Params(max_tokens=30, **asked), matcher=Alternating(8 if not asked else 40))
    texts = texts_of(made, request)
    assert len(texts) == max(asked.get("n", 1), asked.get("beams", 1))
    assert request.status == "finished"
    for ids in texts:
        assert [token % 2 for token in ids] == [i % 2 for i in range(8 if not asked else 30)]


def test_a_short_prompt_is_computed_beside_a_long_one_which_keeps_half_of_each_step():
    made = engine(blocks=256, step_tokens=32)
    long = made.add([1] * 200, Params(max_tokens=1))
    made.step()
    others = [made.add([2 + i] * 300, Params(max_tokens=1)) for i in range(2)]
    short = made.add([9] * 10, Params(max_tokens=1))
    made.step()
    assert short.can_read()
    steps = 2
    while not long.can_read():
        made.step()
        steps += 1
    assert steps <= 1 + -(-168 // 16)
    run(made, long, short, *others)
