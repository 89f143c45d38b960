"""GGUF files on the paged engine: tokens and log probabilities of transformers in torch, which tools/zoo_gguf.py
recorded, and every type of weights against the same weights in F32."""

import json
import random

import pytest

pytest.importorskip("gguf")

import gguf
import numpy as np

from lean_ovms.engine.loading.gguf_tokenizer import PRE_TOKENIZERS, GgufTokenizer
from lean_ovms.engine.paged import gguf_network
from lean_ovms.errors import StartError
from lean_ovms.repository.gguf import BLOCKS, COMPARED, TOKENIZERS
from tests.engine.paged.test_zoo import answers
from tests.engine.real import EXACT, load
from tools import zoo_gguf
from tools.make_gguf import put

RECORDED = json.loads(zoo_gguf.FILE.read_text())
TYPES = {gguf.GGMLQuantizationType(kind).name: sizes for kind, sizes in BLOCKS.items()}
OPTIONS = {
    "pipeline_type": "PAGED",
    "max_num_batched_tokens": 64,
    "plugin_config": json.dumps({**json.loads(EXACT["plugin_config"]), "INFERENCE_PRECISION_HINT": "f32"}),
}
pytestmark = pytest.mark.model


def test_every_compared_architecture_is_recorded():
    assert {known["architecture"] for known in RECORDED.values()} == set(COMPARED)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RECORDED))
def test_tokens_and_log_probabilities_are_those_of_torch(name, tmp_path):
    pipe = load(blocks=60, model_path=str(zoo_gguf.write(tmp_path / "x.gguf", name)), **OPTIONS)
    found = answers(pipe)
    assert [ids for ids, _ in found] == [ids for ids, _ in RECORDED[name]["answers"]]
    for (_, ours), (_, theirs) in zip(found, RECORDED[name]["answers"], strict=True):
        assert ours == pytest.approx(theirs, abs=5e-3)


@pytest.mark.slow
def test_a_draft_of_the_same_file_is_always_right(tmp_path):
    path = str(zoo_gguf.write(tmp_path / "x.gguf", "llama"))
    pipe = load(blocks=60, model_path=path, draft_model_path=path, **OPTIONS)
    assert [ids for ids, _ in answers(pipe)] == [ids for ids, _ in RECORDED["llama"]["answers"]]
    assert pipe.drafts.accepted == pipe.drafts.drafted > 0
