"""Images are recognized by their content."""

import numpy as np
import pytest

from lean_ovms.errors import BadRequest
from lean_ovms.features.vision.child import image_cache
from lean_ovms.features.vision.child.family import Layout
from lean_ovms.features.vision.child.image_cache import ImageCache
from lean_ovms.types import Image


class Family:
    def layout(self, size):
        if size[0] == 1:
            raise BadRequest("too low")
        return Layout(size[0] * size[1])


@pytest.fixture
def cache():
    return ImageCache(Family(), 100)


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
