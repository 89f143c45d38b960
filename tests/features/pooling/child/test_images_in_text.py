"""Models that read images in a text, used as embedding models: tiny ones of the zoo, compared with torch's results for
chats.

A vector is the last layer's output for the last token. The head of the language model turns it into logits, which are
compared with those that tests/makers/zoo_vision_torch.py recorded.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from lean_ovms.config import Config
from lean_ovms.errors import StartError
from lean_ovms.features.pooling.child.model import OpenVinoPooler
from lean_ovms.features.pooling.child.pooling_graph import headless
from lean_ovms.features.pooling.types import TextWithImages
from lean_ovms.repository.model_config import LANGUAGE_MODEL
from lean_ovms.types import IMAGE_TAG, Image
from tests.features.pooling.child.rig import Rig
from tests.features.vision.child.models import F32, unpacked
from tests.features.vision.child.test_zoo_vision import RECORDED, shown
from tests.makers.zoo_vision_torch import PROMPTS

pytestmark = [pytest.mark.model, pytest.mark.slow]


def head(folder: Path) -> np.ndarray[Any, Any]:
    """Returns the weights of a language model's head."""
    node = ov.Core().read_model(folder / LANGUAGE_MODEL).output("logits").get_node()
    while node.get_type_name() != "MatMul":
        node = node.input_value(0).get_node()
    while node.get_type_name() != "Constant":
        node = node.input_value(node.get_input_size() - 1 if node.get_type_name() == "MatMul" else 0).get_node()
    return np.array(node.data, np.float32)


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def load(name: str) -> tuple[Rig, Path]:
        folder = Path(unpacked(name, tmp_path_factory.mktemp(name)))
        config = Config(model_path=str(folder), task="embeddings", plugin_config=json.dumps(F32))
        return Rig(pooler=OpenVinoPooler(config)), folder

    return load


def prompt(kind: str) -> str | TextWithImages:
    text, images = shown(PROMPTS[kind])
    return TextWithImages(text, tuple(images)) if images else text


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
def test_the_last_token_has_seen_texts_and_images(load: Any, name: str) -> None:
    rig, folder = load(name)
    weights = head(folder)
    kinds = [*PROMPTS, "none", "one"]
    number = rig.submit(*map(prompt, kinds), normalize=False)
    rig.run()
    assert rig.tokens(number) == [RECORDED[name][kind][0] for kind in kinds]
    for kind, [row] in zip(kinds, rig.rows(number), strict=True):
        logits = weights @ row
        found = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        _, [token, *_], [logprob, *_] = RECORDED[name][kind]
        assert found.argmax() == token
        assert found.max() == pytest.approx(logprob, abs=5e-3)


def test_an_export_for_feature_extraction_has_hidden_states_as_logits(load: Any, tmp_path: Path) -> None:
    other, _ = load("qwen3_vl")
    folder = Path(unpacked("qwen3_vl", tmp_path))
    network = ov.Core().read_model(folder / LANGUAGE_MODEL)
    headless(network, "logits")
    (folder / "exported").mkdir()
    ov.save_model(network, folder / "exported" / LANGUAGE_MODEL, compress_to_fp16=False)
    for file in (folder / "exported").iterdir():
        file.replace(folder / file.name)
    config = Config(model_path=str(folder), task="embeddings", plugin_config=json.dumps(F32))
    [[row]], [[same]] = Rig(pooler=OpenVinoPooler(config)).ask(prompt("two")), other.ask(prompt("two"))
    assert np.abs(row - same).max() < 1e-4


def test_what_cannot_be_read_is_refused(load: Any) -> None:
    rig, _ = load("qwen3_vl")
    image = Image(40, 40, bytes(4800), "messages[0].content[1].image_url.url")
    for text, why in (
        (f"<|image_pad|>{IMAGE_TAG.format(0)}", "the text contains an image placeholder"),
        (f"{'a ' * 2048}{IMAGE_TAG.format(0)}", "longer than allowed 2048"),
    ):
        number = rig.submit(TextWithImages(text, (image,)), truncate=-1)  # a text with images cannot be truncated
        rig.run()
        assert why in rig.error(number)


def test_other_families_are_not_for_embeddings(tmp_path: Path) -> None:
    config = Config(model_path=unpacked("llava", tmp_path), task="embeddings")
    with pytest.raises(StartError, match="only Qwen's compute embeddings"):
        OpenVinoPooler(config)
