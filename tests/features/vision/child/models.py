"""For tests of vision with the paged engine: tiny models of each family, and a rig that waits for images."""

import json
import threading
from dataclasses import asdict, replace
from pathlib import Path

from lean_ovms.config import Config
from lean_ovms.engine.loading import settings
from lean_ovms.engine.protocol import Submit
from lean_ovms.types import Image, SamplingParams
from tests.archives import extract
from tests.engine.real import EXACT, assembled
from tests.engine.rig import Rig

ZOO = Path(__file__).parents[3] / "data" / "zoo_vision"
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in ZOO.glob("*.tar.xz") if "tokenizer" not in path.name)
F32 = {**json.loads(EXACT["plugin_config"]), "INFERENCE_PRECISION_HINT": "f32"}


def unpacked(name, directory):
    """Returns the path of a model of the zoo."""
    for archive in (name, "tokenizer"):
        extract(ZOO / f"{archive}.tar.xz", directory)
    return str(directory)


class ImageRig(Rig):
    """A rig whose worker waits until an image is encoded."""

    def __init__(self, pipeline, wake, **options):
        super().__init__(pipeline=pipeline, **options)
        self._wake, self._receive = wake, self.transport.receive
        self.transport.receive = self._receive_or_wait

    def _receive_or_wait(self, wait):
        if wait and not self.transport.inbox and not self.transport.closed:
            assert self._wake.wait(60), "no image was encoded"
            self._wake.clear()
            wait = False
        return self._receive(wait)

    def run(self, most=5000):
        for _ in range(most):
            queue = self.backend.image_queue
            if self.backend.idle and not self.transport.inbox and not (queue and queue.waiting):
                return self
            self.turn()
        raise AssertionError(f"still at work after {most} turns: {self.stats()}")

    def see(self, prompt, *images, client="", group=0, **sampling):
        """Puts a Submit with images, each an Image or (height, width, pixels), into the inbox. Returns its id."""
        images = [image if isinstance(image, Image) else Image(*image) for image in images]
        number = self.next_id()
        asked = asdict(SamplingParams(**{"temperature": 0.0, **sampling}))
        record = Submit(number, prompt, False, None, False, asked)
        record.images, record.pixels = [[image.height, image.width] for image in images], [i.pixels for i in images]
        record.image_times = [[image.seconds, *image.times] if image.times else [] for image in images]
        record.client, record.group = client, group
        record.image_params = [f"image {number}" for number in range(1, len(images) + 1)]
        self.put(record)
        return number


def load(path, blocks=400, *, compiled_twice=True, shared=False, **options):
    """Returns a rig on the paged engine with this model in f32."""
    wake = threading.Event()
    options = {**EXACT, "plugin_config": json.dumps(F32), "max_num_batched_tokens": 64, **options}
    config = Config(model_path=str(path), pipeline_type="PAGED", **options)
    made = replace(settings.resolve(config, 1 << 30, paged=True), blocks=blocks)
    return ImageRig(assembled(config, made, wake.set, compiled_twice=compiled_twice, shared=shared), wake)
