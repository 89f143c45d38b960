"""Images as a task of the worker: order, fairness between clients, errors, cancellation. No model."""

from __future__ import annotations

import io
from collections.abc import Generator, Sequence
from dataclasses import asdict
from typing import Any

import pytest
from PIL import Image

from lean_ovms.config import Config
from lean_ovms.engine.protocol import Cancel, Decoder, Encode, Ping, Pong, Record, Refused, attachments, encode
from lean_ovms.errors import StartError
from lean_ovms.features.images.child import task as image_generation
from lean_ovms.features.images.child.fake_pipeline import RAISE, FakeImagePipeline
from lean_ovms.features.images.child.task import ImageTask
from lean_ovms.features.images.params import ImageParams
from lean_ovms.features.images.records import GeneratedImage, GenerateImage, PartialImage
from lean_ovms.types import Image as Source
from lean_ovms.types.engine import EngineStats
from tests.engine.rig import WorkerRig

STEPS = 3


class Rig(WorkerRig):
    """A worker with the fake model. `ended` has the prompts whose work has ended, for whatever reason."""

    def __init__(self, queued: int = 8, per_client: int = 8) -> None:
        pipeline = FakeImagePipeline()
        super().__init__(ImageTask(pipeline, queued, per_client))
        self.ended: list[str] = []
        generate = pipeline.generate

        def noted(
            prompt: str, params: ImageParams, images: Sequence[Source] = ()
        ) -> Generator[bytes | None, None, bytes]:
            try:
                return (yield from generate(prompt, params, images))
            finally:
                self.ended.append(prompt)

        pipeline.generate = noted  # type: ignore[method-assign]

    def finish(self) -> list[Record]:
        """Runs until nothing is left to do, and returns what was sent."""
        found = self.turn()
        while not self.task.idle:
            found += self.turn()
        return found


@pytest.fixture
def rig() -> Rig:
    return Rig()


def image(number: int, prompt: str = "x", client: str = "", *, begun: bool = False, **changes: Any) -> GenerateImage:
    params = ImageParams(**{"width": 16, "height": 8, "steps": STEPS, "seed": 1, **changes})
    return GenerateImage(number, prompt, asdict(params), begun, client)


def ids(records: list[Record]) -> list[int]:
    return [record.id for record in records]  # type: ignore[attr-defined]


def test_an_image_takes_a_turn_for_each_step_and_commands_are_answered_between_them(rig: Rig) -> None:
    rig.put(image(1))
    assert [rig.turn() for _ in range(STEPS)] == [[]] * STEPS
    rig.put(Ping(7))
    pong, done = rig.turn()
    assert isinstance(pong, Pong)
    assert (pong.stats["running"], EngineStats(**pong.stats).steps) == (1, STEPS)
    assert isinstance(done, GeneratedImage)
    assert rig.task.idle


@pytest.mark.parametrize(("name", "form"), [("png", "PNG"), ("jpeg", "JPEG"), ("webp", "WEBP")])
def test_the_file_has_the_size_and_format(name: str, form: str, rig: Rig) -> None:
    rig.put(image(1, format=name, compression=50))
    [done] = rig.finish()
    with Image.open(io.BytesIO(done.data)) as file:  # type: ignore[attr-defined]
        assert (file.format, file.size, file.mode) == (form, (16, 8), "RGB")


def test_the_image_to_edit_and_its_mask_reach_the_pipeline_over_the_wire(rig: Rig) -> None:
    command = image(1)
    command.images, command.pixels = [[2, 3], [1, 2]], [b"a" * 18, b"b" * 6]
    decoder = Decoder()
    decoder.know([GenerateImage])
    [received] = [found for part in (*attachments([command]), encode([command])) for found in decoder.feed(part)]
    assert received == command
    rig.put(received, image(2))
    seen: list[Sequence[Source]] = []
    generate = rig.task.pipeline.generate
    rig.task.pipeline.generate = lambda *given: seen.append(given[2]) or generate(*given)  # type: ignore
    assert ids(rig.finish()) == [1, 2]
    assert seen == [[Source(2, 3, b"a" * 18), Source(1, 2, b"b" * 6)], []]
    assert received.pixels == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(("partial", "steps", "shown"), [
    (0, 8, []), (1, 8, [4]), (2, 8, [3, 6]), (3, 8, [2, 4, 6]), (3, 4, [1, 2, 3]), (3, 2, [1]), (1, 1, []),
])  # fmt: skip
def test_unfinished_images_are_sent_in_between(partial: int, steps: int, shown: list[int], rig: Rig) -> None:
    rig.put(image(1, steps=steps, partial_images=partial, format="png"))
    turns = [rig.turn() for _ in range(steps)]
    assert [number for number, sent in enumerate(turns, 1) if sent] == shown
    for record in [record for sent in turns for record in sent]:
        assert isinstance(record, PartialImage)
        with Image.open(io.BytesIO(record.data)) as file:
            assert file.getpixel((0, 0)) == (shown[0],) * 3
        shown = shown[1:]
    [done] = rig.turn()
    assert isinstance(done, GeneratedImage)


def test_a_cancelled_image_ends_after_the_step_that_is_computed(rig: Rig) -> None:
    rig.put(image(1, "one"), image(2, "two"), image(3, "three"))
    rig.turn()
    rig.put(Cancel(1), Cancel(2), Cancel(99))
    assert ids(rig.finish()) == [3]
    assert rig.ended == ["one", "three"]
    rig.put(image(4, "four"))
    rig.turn()
    rig.task.close()
    assert (rig.ended[2:], rig.task.idle) == (["four"], True)


def test_clients_take_turns_by_the_work_done_for_them(rig: Rig) -> None:
    rig.put(*(image(number, client="a") for number in (1, 2, 3)), image(4, client="b", steps=4 * STEPS))
    rig.put(image(5, client="b"))
    assert ids(rig.finish()) == [1, 4, 2, 3, 5]


def test_a_client_that_comes_late_has_saved_up_no_turns(rig: Rig) -> None:
    rig.put(*(image(number, client="a") for number in (1, 2, 3, 4)))
    found: list[Record] = []
    while len(found) < 2:
        found += rig.turn()
    rig.put(image(5, client="b"), image(6, client="b"))
    assert (ids(found), ids(rig.finish())) == ([1, 2], [3, 5, 4, 6])


def test_a_request_that_sends_its_images_one_by_one_keeps_its_share(rig: Rig) -> None:
    rig.put(image(1, client="a"), *(image(number, client="b") for number in (10, 11, 12)))
    order: list[int] = []
    while not rig.task.idle or rig.transport.inbox:
        for number in ids(rig.turn()):
            order.append(number)
            if number < 3:
                rig.put(image(number + 1, client="a", begun=True))
    assert order == [1, 10, 11, 2, 12, 3]


def test_what_waits_is_limited_but_a_request_that_has_begun_goes_on() -> None:
    rig = Rig(per_client=1)
    rig.put(image(1, client="a"), image(2, client="a"), image(3, client="b"))
    refused, *rest = rig.finish()
    assert isinstance(refused, Refused)
    assert "of this client" in refused.error[1]  # type: ignore[operator]
    assert ids(rest) == [1, 3]
    rig = Rig(queued=1)
    rig.put(image(1), image(2), image(3, begun=True))
    refused, *rest = rig.finish()
    assert isinstance(refused, Refused)
    assert (refused.id, refused.error[0]) == (2, "TooManyRequests")
    assert ids(rest) == [1, 3]


@pytest.mark.parametrize(("command", "kind"), [
    (Encode(1, ["x"], True), "BadRequest"), (image(1, width=17), "BadRequest"), (image(1, RAISE), "EngineFailure"),
])  # fmt: skip
def test_what_cannot_be_made_is_refused_and_the_next_image_is_made(command: Record, kind: str, rig: Rig) -> None:
    rig.put(command, image(2))
    refused, done = rig.finish()
    assert isinstance(refused, Refused)
    assert refused.error[0] == kind
    assert isinstance(done, GeneratedImage)


def test_the_fake_engine_is_loaded_by_its_option_and_needs_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(fake_engine=True, task="image_generation", max_queued_requests=3)
    made = image_generation.load(config, lambda: None)
    assert (made.max_queued, type(made.pipeline)) == (3, FakeImagePipeline)
    monkeypatch.setattr(image_generation.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StartError, match="needs Pillow"):
        image_generation.load(config, lambda: None)
