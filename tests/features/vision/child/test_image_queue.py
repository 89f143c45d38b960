"""Images of prompts: recognized by their content, encoded once for all who wait, and placed among the tokens."""

import threading

import numpy as np
import pytest

from lean_ovms.engine.generation.fair_queue import GenerationRequest
from lean_ovms.errors import BadRequest, EngineFailure
from lean_ovms.features.vision.child import image_cache
from lean_ovms.features.vision.child.family import Layout
from lean_ovms.features.vision.child.image_cache import ImageCache, KnownImage
from lean_ovms.features.vision.child.image_queue import ImageQueue
from lean_ovms.features.vision.child.prompt_images import PromptImages
from lean_ovms.types import Image, SamplingParams


class Family:
    """Encodes an image when the test says so. `encoded` has the first byte of each, in order."""

    def __init__(self):
        self.go = threading.Semaphore(0)
        self.encoded = []
        self.errors = {}

    def layout(self, size):
        return Layout(size[0])

    def encode(self, image):
        assert self.go.acquire(timeout=60)
        number = image.pixels[0]
        self.encoded.append(number)
        if number in self.errors:
            raise self.errors[number]
        return np.full((image.height, 2), number, np.float32)


class Rig:
    def __init__(self):
        self.family = Family()
        self.cache = ImageCache(self.family, 1 << 20)
        self.woken = threading.Semaphore(0)
        self.queue = ImageQueue(self.family, self.cache, self.woken.release)

    def add(self, number, *images, client=""):
        images = [Image(2, 1, bytes([value]) * 6, f"image {place}") for place, value in enumerate(images, 1)]
        request = GenerationRequest(number, SamplingParams(), {0, 1})
        request.client = client
        known = [(3 * place + np.arange(2), self.cache.get(image)) for place, image in enumerate(images)]
        self.queue.add(request, PromptImages(known, 20), images)

    def encode(self, times=1):
        """Returns the outcomes by the number of the request: its tokens, or the error."""
        outcomes = {}
        for _ in range(times):
            self.family.go.release()
            assert self.woken.acquire(timeout=60)
            outcomes |= {one.request.id: one.error or one.tokens for one in self.queue.poll()}
        return outcomes


@pytest.fixture
def rig():
    made = Rig()
    yield made
    made.family.go.release(100)  # leaves no thread waiting


def test_a_request_waits_for_all_its_images(rig):
    rig.add(1, 10, 11)
    assert rig.queue.waiting == 1
    assert rig.encode() == {}
    assert rig.encode() == {1: 4}
    assert rig.queue.waiting == 0
    assert rig.family.encoded == [10, 11]


def test_clients_take_turns(rig):
    rig.add(1, 10, 11, 12, client="a")
    rig.add(2, 13, client="a")
    rig.add(3, 20, client="b")
    assert (rig.queue.waiting_of("a"), rig.queue.waiting_of("b"), rig.queue.waiting_of("c")) == (2, 1, 0)
    assert rig.encode(3) == {3: 2}  # its encoding began before the other client's request arrived
    rig.encode(2)
    assert rig.family.encoded == [10, 11, 20, 12, 13]


def test_an_image_is_encoded_once_for_all_who_wait(rig):
    rig.add(1, 10, client="a")
    rig.add(2, 10, 10, client="b")
    assert rig.encode() == {1: 2, 2: 0}
    assert rig.family.encoded == [10]


def test_cancelled_images_are_not_encoded(rig):
    rig.add(1, 10)
    rig.add(2, 11, 12)
    rig.add(3, 13)
    assert rig.queue.cancel(2)
    assert not rig.queue.cancel(2)
    assert rig.encode(2) == {1: 2, 3: 2}
    assert rig.family.encoded == [10, 13]


def test_pixels_that_nobody_waits_for_are_freed_before_their_turn(rig):
    for number, image in enumerate((10, 11, 11), 1):
        rig.add(number, image)
    [_, job] = rig.queue._jobs.values()
    rig.queue.cancel(2)
    assert job.image is not None
    rig.queue.cancel(3)
    assert job.image is None
    rig.add(4, 11)
    assert rig.encode(2) == {1: 2, 4: 2}


def test_an_image_whose_request_was_cancelled_serves_another(rig):
    rig.add(1, 10)
    rig.add(2, 11, client="a")
    rig.add(3, 11, client="b")
    rig.queue.cancel(2)
    assert rig.encode(2) == {1: 2, 3: 0}


def test_an_error_names_the_image_and_ends_its_requests_alone(rig):
    rig.family.errors = {11: BadRequest("too dark"), 12: RuntimeError("Exception from src/x.cpp:1: secret")}
    rig.add(1, 10, 11)
    rig.add(2, 12)
    rig.add(3, 13)
    found = rig.encode(4)
    assert str(found[1]) == "image 2: too dark"
    assert isinstance(found[1], BadRequest)
    assert str(found[2]) == "image 1: the engine failed while it encoded the image"
    assert isinstance(found[2], EngineFailure)
    assert found[3] == 2


class SizedFamily:
    def layout(self, size):
        if size[0] == 1:
            raise BadRequest("too low")
        return Layout(size[0] * size[1])


@pytest.fixture
def cache():
    return ImageCache(SizedFamily(), 100)


def image(height, width, value):
    return Image(height, width, bytes([value]) * (3 * height * width))


def test_the_same_content_is_the_same_image(cache):
    one = cache.get(image(2, 6, 1))
    assert cache.get(image(2, 6, 1)) is one
    assert one.layout.tokens == 12
    assert one.token < 0


def test_other_content_and_other_sides_are_other_images(cache):
    images = [image(2, 6, 1), image(6, 2, 1), image(3, 4, 1), image(2, 6, 2)]
    assert len({cache.get(each).token for each in images}) == 4


def test_a_digest_that_is_known_is_not_computed_again(cache):
    known = Image(1000, 1000, b"", digest=image(2, 6, 1).content())
    assert cache.get(known) is cache.get(image(2, 6, 1))


def test_embeddings_that_were_not_used_for_longest_make_room(cache):
    known = [cache.get(image(2, 2, value)) for value in range(3)]
    rows = np.zeros((4, 3), np.float32)  # 48 bytes
    for one in known[:2]:
        cache.store(one, rows)
    cache.get(image(2, 2, 0))
    cache.store(known[2], rows)
    assert [one.rows is not None for one in known] == [True, False, True]
    assert cache.bytes == 96
    assert cache.get(image(2, 2, 1)) is known[1]  # it keeps its number, and so its blocks in the prefix cache


def test_numbers_are_not_used_twice(cache, monkeypatch):
    monkeypatch.setattr(image_cache, "MAX_KNOWN", 2)
    tokens = [cache.get(image(2, 2, value)).token for value in (0, 1, 2, 0)]
    assert len(set(tokens)) == 4


def known(number, layout, encoded=True):
    image = KnownImage(number, layout)
    if encoded:
        image.rows = np.arange(layout.tokens * 2, dtype=np.float32).reshape(-1, 2) + 100 * number
    return image


def prompt(images, length):
    """Returns a prompt with images whose tokens are consecutive, given by the position of the first."""
    return PromptImages([(np.arange(place, place + one.layout.tokens), one) for place, one in images], length)


def test_positions_with_rows_and_columns():
    """The numbers are those of transformers' get_rope_index for two words, an image of 2 x 3 tokens, and one word."""
    images = prompt([(2, known(1, Layout(6, 2, 3)))], 9)
    assert images.positions(0, 9).tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5],
        [0, 1, 2, 2, 2, 3, 3, 3, 5],
        [0, 1, 2, 3, 4, 2, 3, 4, 5],
    ]
    assert images.shift == -3
    assert images.positions(8, 3).tolist() == [[5, 6, 7]] * 3  # also after the prompt
    assert images.positions(20, 1).tolist() == [[17]] * 3
    assert prompt([(1, known(1, Layout(6, 2, 3)))], 7).positions(7, 2).tolist() == [[4, 5]] * 3  # behind it at the end


def test_positions_of_frames_in_time():
    """The numbers are those of transformers' get_rope_index for a word, a video of 3 x 1 x 2 tokens at 2 a time, and a
    word."""
    frames = [known(number, Layout(2, 1, 2, time=time)) for number, time in enumerate((None, 2, 4))]
    images = prompt([(1, frames[0]), (3, frames[1]), (5, frames[2])], 8)
    assert images.positions(0, 8).tolist() == [
        [0, 1, 1, 3, 3, 5, 5, 6],
        [0, 1, 1, 1, 1, 1, 1, 6],
        [0, 1, 2, 1, 2, 1, 2, 6],
    ]


def test_positions_of_two_videos_one_behind_the_other():
    frames = [known(number, Layout(1, 1, 1, time=time)) for number, time in enumerate((None, 0, None, 1))]
    assert prompt(list(enumerate(frames)), 5).positions(0, 5)[0].tolist() == [0, 0, 1, 2, 3]


def test_images_without_rows_and_columns_count_as_words_do():
    images = prompt([(1, known(1, Layout(4)))], 6)
    assert images.positions(0, 8).tolist() == [list(range(8))] * 3
    assert images.shift == 0


def test_every_chunk_has_the_embeddings_of_its_tokens():
    one, two = known(1, Layout(5)), known(2, Layout(3))
    images = prompt([(2, one), (8, two)], 12)
    assert images.missing() == []
    for size in range(1, 13):
        found = {}
        for start in range(0, 12, size):
            count = min(size, 12 - start)
            for places, rows in images.rows(start, count):
                assert 0 <= places[0] <= places[-1] < count
                found |= {start + place: row.tolist() for place, row in zip(places.tolist(), rows, strict=True)}
        assert found == {2 + n: row.tolist() for n, row in enumerate(one.rows)} | {
            8 + n: row.tolist() for n, row in enumerate(two.rows)
        }


def test_the_tokens_of_an_image_that_see_each_other_are_computed_and_cached_together():
    images = PromptImages([(np.arange(2, 7), known(1, Layout(5)))], 9, whole=True)
    assert [images.chunk(0, count) for count in range(1, 10)] == [1, 2, 2, 2, 2, 2, 7, 8, 9]
    assert [images.chunk(2, count) for count in range(1, 8)] == [5, 5, 5, 5, 5, 6, 7]
    assert [images.cached(blocks, 1) for blocks in range(10)] == [0, 1, 2, 2, 2, 2, 2, 7, 8, 9]
    assert [images.cached(blocks, 3) for blocks in range(4)] == [0, 0, 0, 3]
    apart = PromptImages([(np.arange(2, 7), known(1, Layout(5)))], 9)
    assert (apart.chunk(2, 3), apart.cached(2, 2)) == (3, 2)


def test_a_block_that_ends_between_two_images_may_begin_inside_the_first():
    images = PromptImages(
        [(np.arange(1, 5), known(1, Layout(4))), (np.arange(5, 9), known(2, Layout(4)))], 9, whole=True
    )
    assert images.cached(2, 4) == 0


def test_embeddings_stay_with_the_prompt_when_the_cache_drops_them():
    one, two = known(1, Layout(5)), known(2, Layout(3), encoded=False)
    images = prompt([(0, one), (5, two)], 8)
    assert images.missing() == [two]
    one.rows, two.rows = None, np.ones((3, 2), np.float32)
    assert images.missing() == []
    assert [int(places[0]) for places, _ in images.rows(0, 8)] == [0, 5]
    one = known(1, Layout(5), encoded=False)
    images = prompt([(0, one), (5, known(2, Layout(3)))], 8)
    images.missing()
    one.rows = np.ones((5, 2), np.float32)
    images.missing()
    assert [int(places[0]) for places, _ in images.rows(0, 8)] == [0, 5]  # whichever was encoded first


def test_text_between_the_tokens_of_an_image():
    one = known(1, Layout(4, texts=(("", 2), ("|", 2))))
    images = PromptImages([(np.array([1, 2, 4, 5]), one)], 7)
    assert images.missing() == []
    [(places, rows)] = images.rows(2, 3)
    assert places.tolist() == [0, 2]
    assert rows.tolist() == one.rows[1:3].tolist()
    assert images.positions(0, 8).tolist() == [list(range(8))] * 3
