"""The paged engine with the model that names colours: images together with everything that text supports."""

import threading

import pytest

from lean_ovms.errors import from_wire
from lean_ovms.features.vision.child.family import Layout
from tests.engine.real import assert_empty
from tests.engine.vlm import MODEL, SIZE, said, tags, turn
from tests.features.vision.child.models import load
from tests.pictures import COLOURS

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model():
    return load(MODEL)


@pytest.fixture
def rig(model):
    return model


def picture(colour, size=SIZE):
    return (*size, bytes(COLOURS[colour]) * (size[0] * size[1]))


def ask(rig, text, *colours, size=SIZE, **sampling):
    sampling = {"max_tokens": 30, **sampling}
    return rig.see(turn(text), *(picture(colour, size) for colour in colours), **sampling)


def words(rig, number, index=0):
    answer = rig.answer(number)
    assert answer.failed is answer.refused is None
    return rig.backend.decode(answer.tokens[index], True)


def test_requests_with_and_without_images_run_together(rig):
    numbers = [
        ask(rig, tags(1) + "describe", "red"),
        ask(rig, "What color is it?\n" + tags(2), "green", "blue", size=(20, 300)),
        ask(rig, "Hello!"),
        ask(rig, tags(3) + "describe", "blue", "red", "green"),
        ask(rig, "<ov_genai_image_1>\n<ov_genai_image_0>\ndescribe", "red", "blue"),
    ]
    rig.run()
    found = [words(rig, number) for number in numbers]
    assert found == [said("red"), said("green", "blue"), "Hello!", said("blue", "red", "green"), said("blue", "red")]
    counts = [rig.answer(number).accepted.prompt_tokens for number in numbers]
    assert counts[3] - counts[0] == 2 * 17 + 2  # 16 and a line break, and that of `tags`
    assert_empty(rig)


def test_the_prefix_cache_tells_images_apart_and_knows_them_again(rig):
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" * 2
    cached = []
    for colour in ("yellow", "blue", "yellow"):
        number = rig.see(system + turn(tags(1) + "describe"), picture(colour), max_tokens=30)
        rig.run()
        assert words(rig, number) == said(colour)
        cached.append(rig.answer(number).cached)
    assert cached[0] <= cached[1] < cached[2]


@pytest.mark.parametrize(("salts", "options"), [("ab", {}), ("aa", {"enable_prefix_caching": False})])
def test_who_shares_no_prompts_shares_no_images(salts, options, rig, monkeypatch):
    rig = load(MODEL, **options) if options else rig
    encoded, encode = [], rig.backend._images._family.encode
    monkeypatch.setattr(rig.backend._images._family, "encode", lambda image: encoded.append(1) or encode(image))
    for salt in salts:
        number = ask(rig, tags(2) + "describe", "green", "green", size=(35, 33), cache_salt=salt)
        rig.run()
        assert words(rig, number) == said("green", "green")
    assert len(encoded) == 2


def test_images_beyond_the_budget_are_encoded_again(monkeypatch):
    rig = load(MODEL, image_cache_mb=1)
    family, encoded = rig.backend._images._family, []
    encode = family.encode
    monkeypatch.setattr(rig.backend._images._cache, "_budget", 5000)  # 16 tokens of 64 numbers take 4096 bytes
    monkeypatch.setattr(family, "encode", lambda image: encoded.append(1) or encode(image))
    for colour in ("red", "blue", "red", "red"):
        number = ask(rig, tags(1) + "describe", colour)
        rig.run()
        assert words(rig, number) == said(colour)
    assert len(encoded) == 3


def test_others_go_on_while_an_image_is_encoded(rig, monkeypatch):
    begun, go, encode = threading.Event(), threading.Event(), rig.backend._images._family.encode

    def slow(image):
        begun.set()
        assert go.wait(60)
        return encode(image)

    monkeypatch.setattr(rig.backend._images._family, "encode", slow)
    image = ask(rig, tags(1) + "describe", "yellow", size=(41, 43))
    rig.turn()
    assert begun.wait(60)
    text = ask(rig, "Hello!")
    while not rig.answer(text).reasons:
        rig.turn()
    assert words(rig, text) == "Hello!"
    assert rig.answer(image).accepted.prompt_tokens > 16  # the number of tokens is known before the image is encoded
    assert not rig.answer(image).tokens
    assert rig.backend.idle  # the loop can wait
    assert rig.stats().queued == 1
    go.set()
    rig.run()
    assert words(rig, image) == said("yellow")


def test_images_take_a_part_of_a_step_beside_those_who_decode(rig, monkeypatch):
    lengths, schedule = [], rig.backend.scheduler.schedule

    def recorded():
        made = schedule()
        lengths.extend(chunk.length for chunk in (made.chunks if made is not None else ()))
        return made

    monkeypatch.setattr(rig.backend.scheduler, "schedule", recorded)
    colours = ["red", "green", "blue", "yellow"]
    ask(rig, tags(4) + "describe", *colours, size=(51, 52), max_tokens=1)
    rig.run()
    assert max(lengths) == 64  # load sets max_num_batched_tokens
    text = ask(rig, "Hello!", ignore_eos=True, max_tokens=100)
    while not rig.answer(text).tokens:
        rig.turn()
    lengths.clear()
    beside = ask(rig, "Hello!" + tags(4), *colours, size=(51, 52), max_tokens=1)  # its images are already encoded
    while not rig.answer(beside).reasons:
        rig.turn()
    assert not rig.answer(text).reasons
    assert 1 < max(lengths) <= 64 // 4
    rig.run()


def test_a_request_that_is_cancelled_before_its_image_is_encoded(rig, monkeypatch):
    go, encode = threading.Event(), rig.backend._images._family.encode
    monkeypatch.setattr(rig.backend._images._family, "encode", lambda image: go.wait(60) and encode(image))
    first, second = ask(rig, tags(1) + "describe", "red", size=(44, 45)), ask(rig, "describe" + tags(1), "red")
    rig.turn()
    rig.cancel(first)
    rig.turn()
    go.set()
    rig.run()
    assert words(rig, second) == said("red")
    assert not rig.answer(first).tokens
    assert_empty(rig)


def test_a_charge_for_encoding(rig, monkeypatch):
    """An image costs its client twice its tokens: when it is encoded, and when the language model reads them."""
    charges, charge = [], rig.backend.waiting.charge
    monkeypatch.setattr(rig.backend.waiting, "charge", lambda client, n: charges.append(n) or charge(client, n))
    totals = []
    for text in ("describe", "What do you see?"):
        charges.clear()
        number = ask(rig, text + tags(1), "yellow", size=(61, 62), max_tokens=4)
        rig.run()
        totals.append(sum(charges) - rig.answer(number).accepted.prompt_tokens + rig.answer(number).cached)
    assert totals[0] - totals[1] == 16


def test_several_answers_beams_and_penalties(rig):
    sampled = ask(rig, tags(1) + "describe", "red", n=3, temperature=0.01, seeds=[1, 2, 3])
    beams = ask(rig, tags(1) + "describe", "red", n=2, beams=4)
    penalised = ask(rig, tags(1) + "describe", "red", repetition_penalty=1.01, frequency_penalty=0.01, logprobs=True)
    rig.run()
    assert [words(rig, sampled, i) for i in range(3)] == [said("red")] * 3
    assert words(rig, beams) == said("red")
    assert words(rig, penalised) == said("red")


def test_an_image_that_cannot_be_read_is_refused_by_its_number(rig, monkeypatch):
    from lean_ovms.errors import BadRequest

    def layout(size):
        if size[0] == 3:
            raise BadRequest("too low")
        return Layout(16)

    monkeypatch.setattr(rig.backend._images._family, "layout", layout)
    number = rig.see(turn(tags(2) + "describe"), picture("red"), picture("red", (3, 40)))
    rig.run()
    error = from_wire(rig.answer(number).refused)
    assert (str(error), error.param) == ("image 2: too low", "image 2")


def test_what_images_do_not_allow_is_refused_and_texts_have_all_of_it(rig):
    ids = rig.backend.encode(turn("Hello!"), False)
    probed = ask(rig, tags(1) + "describe", "red", prompt_logprobs=True)
    named = ask(rig, tags(1) + "<image> describe", "red")
    text = rig.submit([0] * 5 + ids, max_tokens=30, truncate=len(ids), want_tokens=True, prompt_logprobs=True)
    rig.run()
    assert from_wire(rig.answer(probed).refused).param == "prompt_logprobs"
    assert "image placeholder" in str(from_wire(rig.answer(named).refused))
    assert words(rig, text) == "Hello!"
    assert rig.answer(text).accepted.tokens == ids
    assert len(rig.answer(text).prompt_logprobs) == len(ids)


def test_preempted_requests_have_their_images_again(rig):
    tight = load(MODEL, blocks=12, max_num_batched_tokens=32, enable_prefix_caching=False)
    shown = [("red", "blue"), ("green", "yellow", "red"), ("blue",), ("yellow", "blue"), ("red",), ("green", "red")]
    found = []
    for each in (tight, rig):
        numbers = [ask(each, tags(len(one)) + "describe", *one, max_tokens=70, ignore_eos=True) for one in shown]
        each.run()
        found.append([each.answer(number).tokens[0] for number in numbers])
    assert found[0] == found[1]
    assert tight.stats().preemptions
    assert_empty(tight)


def test_without_the_feature_the_same_model_answers_texts(rig):
    text_alone = load(MODEL, without="vision")
    assert (text_alone.backend.info.vision, text_alone.backend.info.image_tokens) == (False, [])
    asked = {"max_tokens": 8, "ignore_eos": True}
    numbers = rig.see(turn("describe"), **asked), text_alone.see(turn("describe"), **asked)
    texts = [words(one.run(), number) for one, number in zip((rig, text_alone), numbers, strict=True)]
    assert texts[0] == texts[1]
    refused = text_alone.see(turn(tags(1)), picture("red"))
    text_alone.run()
    error = from_wire(text_alone.answer(refused).refused)
    assert error.message == "This servable supports only text input, but image_url has been provided"
