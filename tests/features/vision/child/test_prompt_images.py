"""The positions of images' tokens in a prompt and in its chunks."""

import numpy as np

from lean_ovms.features.vision.child.family import Layout
from lean_ovms.features.vision.child.image_cache import KnownImage
from lean_ovms.features.vision.child.prompt_images import PromptImages


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
