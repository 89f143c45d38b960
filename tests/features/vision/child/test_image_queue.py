"""Requests that wait for their images: clients take turns, an image is encoded once for all, and errors name the
image."""

import threading

import numpy as np
import pytest

from lean_ovms.engine.generation.sequence import GenerationRequest
from lean_ovms.errors import BadRequest, EngineFailure
from lean_ovms.features.vision.child.family import Layout
from lean_ovms.features.vision.child.image_cache import ImageCache
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
    assert rig.queue.cancel(2, None)
    assert not rig.queue.cancel(2, None)
    assert rig.encode(2) == {1: 2, 3: 2}
    assert rig.family.encoded == [10, 13]


def test_an_image_whose_request_was_cancelled_serves_another(rig):
    rig.add(1, 10)
    rig.add(2, 11, client="a")
    rig.add(3, 11, client="b")
    rig.queue.cancel(2, None)
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
