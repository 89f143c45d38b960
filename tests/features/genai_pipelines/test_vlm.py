"""Vision on the real engine: the worker reports exactly what openvino_genai computes by itself."""

import numpy as np
import pytest

from lean_ovms.engine.generation.image_prompts import ImagePrompt
from lean_ovms.engine.protocol import Cancel, Counted, Tokens
from lean_ovms.features.genai_pipelines.child.guard.pipeline import PipelineRequest
from lean_ovms.types import Image, SamplingParams
from tests.engine.real import assert_empty
from tests.engine.rig import Rig
from tests.engine.vlm import SIZE, load, load_stateful, said, see, tags, turn
from tests.pictures import COLOURS

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def vlm_pipeline():
    return load()


@pytest.fixture(scope="module")
def tight():
    return load(blocks=6, enable_prefix_caching=False)


def words(rig, request, index=0):
    return rig.pipeline.decode(rig.answer(request).tokens[index], True)


def direct(engine, prompt, *colours, size=SIZE, **fields):
    """Returns the ids and the prompt tokens of openvino_genai's own request loop."""
    import openvino as ov
    import openvino_genai as genai

    config = genai.GenerationConfig()
    config.set_eos_token_id(engine._eos)
    config.apply_chat_template = False
    config.max_new_tokens = 30
    for name, value in fields.items():
        setattr(config, name, value)
    images = [ov.Tensor(np.full((*size, 3), COLOURS[c], np.uint8)) for c in colours]
    engine._next_id += 1
    handle = engine._pipe.add_request(engine._next_id, prompt, images, config)
    ids = []
    while engine._pipe.has_non_finished_requests():
        engine._pipe.step()
        while handle.can_read():
            ids += handle.read()[0].generated_ids
    return ids, handle.get_perf_metrics().get_num_input_tokens()


@pytest.mark.parametrize("colours", [(), ("yellow", "red", "blue")])
def test_answers_and_counts_are_those_of_openvino_genai(vlm_pipeline, colours):
    prompt = turn(tags(len(colours)) + "describe")
    rig = Rig(pipeline=vlm_pipeline)
    request = see(rig, prompt, *colours)
    rig.run()
    ids, count = direct(vlm_pipeline, prompt, *colours)
    assert rig.answer(request).tokens[0] == ids
    assert rig.answer(request).accepted.prompt_tokens == count
    if colours:
        assert words(rig, request) == said(*colours)
    assert_empty(rig)


def test_requests_with_and_without_images_run_together(vlm_pipeline):
    rig = Rig(pipeline=vlm_pipeline)
    one = see(rig, turn(tags(1) + "describe"), "red")
    gone = see(rig, turn(tags(1) + "describe"), "red", size=(1, 1), ignore_eos=True, max_tokens=200)
    two = see(rig, turn("What color is it?\n" + tags(2)), "green", "blue", size=(20, 300))
    none = see(rig, turn("Hello!"))
    rig.turn(3)
    rig.put(Cancel(gone))
    rig.run()
    assert rig.answer(gone).reasons == {}
    assert [words(rig, r) for r in (one, two, none)] == [said("red"), said("green", "blue"), "Hello!"]
    assert_empty(rig)


def test_the_prefix_cache_does_not_take_one_image_for_another(vlm_pipeline):
    rig = Rig(pipeline=vlm_pipeline)
    for colour in ("red", "blue", "red"):
        request = see(rig, turn(tags(1) + "describe"), colour)
        rig.run()
        assert words(rig, request) == said(colour)


def test_a_grammar_holds_an_answer_to_an_image(vlm_pipeline):
    tag = '{"type": "structural_tag", "format": {"type": "regex", "pattern": "It is (blue|red|green)"}}'
    asked = SamplingParams(temperature=0.0)
    work = PipelineRequest(tokens=[], sampling=asked, max_tokens=20, min_tokens=0, seed=0, stops=frozenset())
    work.constraint, work.image_prompt = tag, image_prompt("red")
    handle = vlm_pipeline.add(work)
    ids = []
    while vlm_pipeline.busy():
        vlm_pipeline.step()
        while handle.can_read():
            ids += handle.read()[0].generated_ids
    assert vlm_pipeline.decode(ids, True) == "It is red"


def image_prompt(colour):
    image = Image(*SIZE, bytes(COLOURS[colour]) * (SIZE[0] * SIZE[1]))
    return ImagePrompt(turn(tags(1) + "describe"), False, (image,))


# --- what must do no harm


def test_the_models_own_notation_is_an_error_of_its_request_alone(vlm_pipeline):
    rig = Rig(pipeline=vlm_pipeline)
    good = see(rig, turn(tags(1) + "describe"), "red")
    bad = see(rig, turn("an <image> without an image"))
    rig.run()
    assert rig.answer(bad).failed[0] == "BadRequest"
    assert "/cpp/" not in rig.answer(bad).failed[1]
    assert words(rig, good) == said("red")


# --- life in the batch


def test_image_tokens_count_against_the_cache(tight):
    rig = Rig(pipeline=tight)
    fits = see(rig, turn(tags(3) + "describe"), "red", "red", "red", max_tokens=20)
    larger = see(rig, turn("describe " * 100 + tags(3)), "red", "red", "red")
    rig.run()
    assert rig.answer(fits).reasons == {0: "stop"}
    assert rig.answer(larger).refused[3] == "context_length_exceeded"


def test_images_of_several_requests_are_encoded_in_different_steps(vlm_pipeline):
    """In between, streams get tokens."""
    rig = Rig(pipeline=vlm_pipeline)
    stream = see(rig, turn("Hello!"), ignore_eos=True, max_tokens=50)
    rig.turn(3)
    newcomers = [see(rig, turn(tags(1) + "describe"), "red") for _ in range(3)]
    for running in (2, 3, 4):
        rig.turn()
        assert len(rig.scheduler.running) == running
    rig.run()
    assert [words(rig, r) for r in newcomers] == [said("red")] * 3
    assert rig.answer(stream).reasons == {0: "length"}


def test_the_true_count_is_sent_before_the_end(vlm_pipeline):
    rig = Rig(pipeline=vlm_pipeline)
    see(rig, turn(tags(2) + "describe"), "red", "blue")
    rig.run()
    told = [r for frame in rig.transport.frames for r in frame if isinstance(r, Counted | Tokens)]
    assert [type(r) for r in told[-2:]] == [Counted, Tokens]
    assert told[-1].reason == "stop"
    assert told[-2].prompt_tokens == direct(vlm_pipeline, turn(tags(2) + "describe"), "red", "blue")[1]


@pytest.fixture(scope="module")
def stateful():
    return load_stateful()


@pytest.mark.parametrize("colours", [(), ("yellow", "red", "blue")])
def test_answers_and_counts_are_those_of_the_batch(stateful, colours):
    prompt = turn(tags(len(colours)) + "describe")
    batched, alone = Rig(pipeline=load()), Rig(pipeline=stateful)
    answers = []
    for rig in (batched, alone):
        request = see(rig, prompt, *colours)
        rig.run()
        answers.append((words(rig, request), rig.answer(request).reasons, rig.answer(request).accepted.prompt_tokens))
    assert answers[0] == answers[1]
    assert_empty(alone)


def test_requests_wait_for_each_other(stateful):
    rig = Rig(pipeline=stateful)
    requests = [see(rig, turn(tags(1) + "describe"), colour) for colour in ("red", "blue", "green")]
    text, gone = see(rig, turn("Hello!")), see(rig, turn("Hello!"), ignore_eos=True, max_tokens=900)
    short = see(rig, turn(tags(1) + "describe"), "red", max_tokens=2)
    rig.turn(3)
    rig.put(Cancel(gone))
    rig.run()
    assert rig.answer(short).reasons == {0: "length"}
    assert [words(rig, r) for r in requests] == [said("red"), said("blue"), said("green")]
    assert words(rig, text) == "Hello!"
    assert_empty(rig)
