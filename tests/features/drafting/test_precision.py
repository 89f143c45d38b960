"""Heads that draft tokens in bf16: their angles are not computed in bf16, and they are as close to f32 as torch's."""

import json

import numpy as np
import pytest

pytest.importorskip("gguf")

from lean_ovms.engine.paged.model_inputs import Chunk
from lean_ovms.features.drafting.child.head import Head
from lean_ovms.features.drafting.child.heads import HeadWeights
from tests.archives import extract
from tests.engine.paged.test_precision import AS_NEAR, compiled, needs_bf16, rounded_angles
from tests.features.drafting.test_heads import drafting, with_head
from tests.features.vision.child import models
from tests.makers import networks_bf16

HEADS = models.ZOO / "heads"
pytestmark = [pytest.mark.model, pytest.mark.slow, needs_bf16]


@pytest.mark.parametrize("name", sorted(path.name.removesuffix(".tar.xz") for path in HEADS.glob("*.tar.xz")))
def test_no_angle_of_a_head_is_computed_in_bf16(name, tmp_path):
    extract(models.ZOO / f"{name}.tar.xz", tmp_path)
    extract(HEADS / f"{name}.tar.xz", tmp_path)
    head, text = tmp_path / "openvino_mtp_model.xml", tmp_path / "openvino_language_model.xml"
    assert rounded_angles(compiled(HeadWeights(head, text))) == []


@pytest.mark.parametrize("name", networks_bf16.HEADS)
def test_a_head_is_as_near_to_f32_as_torchs_bf16(name, tmp_path, monkeypatch):
    """Compares the head's output for each token of a prompt after more than 1,000 tokens, from its model's states in
    bf16."""
    ids, path, found = networks_bf16.tokens(f"heads/{name}"), with_head(name, tmp_path), []
    run = Head._run

    def recorded(head, chunks, rows, drafts):
        logits = np.array(run(head, [Chunk(*chunk[:2], chunk.length, chunk.length) for chunk in chunks], rows, []))
        for chunk in chunks:
            lines, logits = logits[: chunk.length].astype(np.float64), logits[chunk.length :]
            for place, line in enumerate(lines, chunk.start + 2):
                if place < len(ids):
                    said[place] = line[ids[place]] - np.log(np.exp(line - line.max()).sum()) - line.max()
        return run(head, chunks, rows, drafts)

    monkeypatch.setattr(Head, "_run", recorded)
    for hint in ("f32", "bf16"):
        said = np.zeros(len(ids))
        properties = json.dumps({**models.F32, "INFERENCE_PRECISION_HINT": hint})
        options = {"kv_cache_precision": hint, "plugin_config": properties, "max_num_batched_tokens": 640}
        rig = models.load(path, 60, compiled_twice=False, **options, **drafting(name, path))
        rig.ask(ids, max_tokens=4, ignore_eos=True)
        assert said[2:].all()
        found.append(said[-networks_bf16.LAST :])
    networks_bf16.assert_near(f"heads/{name}", *found, AS_NEAR)
