"""The contract of a guarded pipeline, tested on the scripted one and on openvino_genai, so that the fake can be
trusted.

test_backend_contract.py has what all backends promise. Promises that also hold for a stateful pipeline, which computes
one request at a time, are tested on that as well (`each`).
"""

from dataclasses import replace

import pytest

from lean_ovms.errors import BadRequest
from lean_ovms.features.genai_pipelines.child.guard.pipeline import PipelineRequest
from lean_ovms.types import SamplingParams
from tests.engine.real import chat, draft_model, load
from tests.features.genai_pipelines.guard.fake_pipeline import FakePipeline, Script

BLOCKS = 12
GREEDY = SamplingParams(temperature=0.0)
OPTIONS = {"draft": {"draft_model_path": draft_model()}, "prompt_lookup": {"prompt_lookup": True}}


def genai(speculative=""):
    return load(blocks=BLOCKS, **OPTIONS.get(speculative, {}))


def build(name, request):
    if name == "scripted":
        return FakePipeline(Script(blocks=BLOCKS, context=131_072))
    return request.getfixturevalue("stateful") if name == "stateful" else genai()


def real(*names):
    return [pytest.param(name, marks=pytest.mark.model) for name in names]


@pytest.fixture(scope="module", params=["scripted", *real("genai")])
def pipeline(request):
    return build(request.param, request)


@pytest.fixture(scope="module", params=["scripted", *real("genai", "stateful")])
def each(request):
    return build(request.param, request)


@pytest.fixture(autouse=True)
def drained(request):
    """Checks that every test leaves its pipeline as it found it."""
    yield
    for name in {"pipeline", "each"} & set(request.fixturenames):
        assert not request.getfixturevalue(name).busy()


def work(tokens=(40, 41, 42), max_tokens=8, **changes):
    fields = {
        "tokens": list(tokens),
        "sampling": replace(GREEDY, ignore_eos=True),
        "max_tokens": max_tokens,
        "min_tokens": 0,
        "seed": 0,
        "stops": frozenset(),
    }
    return PipelineRequest(**{**fields, **changes})


def finish(pipe, *handles, most=400):
    """Runs steps to the end. Returns the ids of each handle."""
    found = [[] for _ in handles]
    for _ in range(most):
        if not pipe.busy():
            return found
        pipe.step()
        for handle, ids in zip(handles, found, strict=True):
            while handle.can_read():
                ids += handle.read()[0].generated_ids
    raise AssertionError("no end")


def first(pipe, handle):
    """Runs steps until the handle can be read."""
    for _ in range(400):
        pipe.step()
        if handle.can_read():
            return handle
    raise AssertionError("no output")


def test_cancel_takes_effect_with_the_next_step_and_makes_the_handle_unreadable(each):
    handle, other = each.add(work(max_tokens=4000)), each.add(work([9, 8, 7], max_tokens=3))
    first(each, handle)
    handle.cancel()
    assert not handle.can_read()
    with pytest.raises(RuntimeError):
        handle.read()
    assert len(finish(each, other)[0]) == 3


def test_a_cancelled_request_keeps_the_pipeline_busy_until_a_step_has_ended_it(each):
    handle = each.add(work(max_tokens=4000))
    first(each, handle).read()
    handle.cancel()
    assert each.busy()
    while each.busy():  # the thread of a stateful pipeline notices at its next token, after some steps without a result
        each.step()


def test_cancel_before_the_first_step_and_after_the_end_does_no_harm(each):
    early = each.add(work())
    early.cancel()
    late = each.add(work(max_tokens=1))
    assert len(finish(each, late)[0]) == 1
    late.cancel()
    each.step()  # an idle step does nothing
    assert not each.busy()
    eos = each.info.eos_token_ids[-1]
    assert (each.decode([eos], True), each.decode([eos], False)) == ("", each.info.eos_token)
    assert each.encode("", False) == []
    with pytest.raises(BadRequest):
        each.encode("a\ud800b", False)


def test_whoever_does_not_fit_the_cache_is_lost_without_a_word_and_takes_others_along(pipeline):
    handle = pipeline.add(work([40] * (BLOCKS * 32 + 1)))
    other = pipeline.add(work([41] * 10, max_tokens=300))
    while pipeline.busy():
        pipeline.step()
    for lost in (handle, other):
        assert pipeline.status(lost) == "lost"
        assert lost.read() == {}
        assert not lost.can_read()
    assert finish(pipeline, pipeline.add(work(max_tokens=2)))[0]


def poison(pipe):
    """Adds a request whose computation fails, without the check that would reject it."""
    if isinstance(pipe, FakePipeline):
        return pipe.add(work(pipe.encode("<|raise|>", False)))
    return pipe.add(work([10**6], sampling=replace(GREEDY, repetition_penalty=1.5)))


def test_an_exception_poisons_every_step_until_all_are_cancelled(pipeline):
    handle = pipeline.add(work(max_tokens=20))
    pipeline.step()
    culprit = poison(pipeline)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            pipeline.step()
    culprit.cancel()
    with pytest.raises(RuntimeError):
        pipeline.step()
    handle.cancel()
    pipeline.step()
    assert not pipeline.busy()
    whole, again = finish(pipeline, pipeline.add(work(max_tokens=20)), pipeline.add(work(max_tokens=20)))
    assert len(whole) == 20
    assert whole == again


def test_what_cannot_be_added_is_a_bad_request_and_harms_nobody(each):
    other = each.add(work(max_tokens=4))
    got = first(each, other).read()[0].generated_ids
    for bad in (work([]), work(max_tokens=0)):
        with pytest.raises(BadRequest):
            each.add(bad)
    with pytest.raises(BadRequest):
        each.check(work(max_tokens=0))
    assert len(got + finish(each, other)[0]) == 4


@pytest.mark.model
@pytest.mark.parametrize(
    ("make", "recoverable"), [(lambda: genai("draft"), False), (lambda: genai("prompt_lookup"), True)]
)
def test_assisted_pipelines_bring_several_tokens_and_the_same_text(make, recoverable, engine):
    pipe = make()
    assert pipe.info.speculative
    assert pipe.recoverable is recoverable
    prompt = pipe.encode(chat("Count from 1 to 9."), False)
    sampling = replace(GREEDY, ignore_eos=True, num_assistant_tokens=4, max_ngram_size=3)
    plain = finish(engine, engine.add(work(prompt, max_tokens=24)))[0]
    handle = pipe.add(work(prompt, max_tokens=24, sampling=sampling))
    sizes, ids = [], []
    while pipe.busy():
        pipe.step()
        if handle.can_read():
            sizes.append(len(more := handle.read()[0].generated_ids))
            ids += more
    assert max(sizes) > 1
    assert ids[:24] == plain
