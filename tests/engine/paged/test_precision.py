"""Networks computed in bf16 are as close to f32 as torch's, at any position in a text.

bf16 cannot represent all integers above 256, so an angle computed from a position in bf16 belongs to another position.
"""

import json
import random

import numpy as np
import openvino as ov
import pytest

pytest.importorskip("gguf")

from lean_ovms.engine.paged.model import PagedModel
from tests.engine.paged.test_zoo import unpacked
from tests.engine.real import load
from tests.engine.rig import Rig
from tests.makers import networks_bf16, zoo_bf16, zoo_gguf

BF16 = {"INFERENCE_PRECISION_HINT": "bf16"}
TORCH = json.loads(zoo_bf16.FILE.read_text())
AS_NEAR = 1.25
"""The largest allowed ratio of the differences. Rounding differs, so with few tokens the mean varies by a tenth."""
FAR = 7900
KINDS = ("gemma3_text", "gpt_oss", "llama", "qwen3_5_text")
"""Models with sliding windows of two frequencies, experts with attention sinks, a plain one, and a hybrid that counts
positions itself. Of other models, only the angles are checked."""
needs_bf16 = pytest.mark.skipif(
    "BF16" not in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"), reason="this CPU has no bf16"
)
pytestmark = pytest.mark.model


def rounded_angles(compiled):
    """Returns the operations in bf16 from which sines and cosines are computed in the compiled network."""
    found, waiting = {}, []
    for node in compiled.get_runtime_model().get_ops():
        if any(name in told(node, "originalLayersNames") for name in ("Cos", "Sin", "cos", "sin")):
            waiting += [value.get_node() for value in node.input_values()]
    while waiting:
        node = waiting.pop()
        if node.get_friendly_name() not in found:
            found[node.get_friendly_name()] = "bf16" in told(node, "outputPrecisions")
            waiting += [value.get_node() for value in node.input_values()]
    return [name for name, rounded in found.items() if rounded]


def told(node, key):
    known = node.get_rt_info()
    return str(known[key].astype(str)) if key in known else ""


def compiled(weights):
    core = ov.Core()
    return core.compile_model(weights.read(core), "CPU", BF16)


def test_every_model_was_compared_with_torchs_bf16():
    assert {*TORCH} == {*zoo_bf16.NAMES}, "run: python -m tests.makers.zoo_bf16 NAME"


def assert_as_near(name, opened):
    """Compares positions after more than 1,000 tokens, and checks that no angle is computed in bf16.

    `opened` returns the model's rig with further options.
    """
    known, found = TORCH.get(name, {}), {}
    for hint in ("bf16", "f32") if known and "logprobs" not in known else ("bf16",):
        properties = json.dumps({"INFERENCE_PRECISION_HINT": hint, "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"})
        rig = opened(kv_cache_precision=hint, plugin_config=properties)
        answer = rig.ask(zoo_bf16.text(name), max_tokens=1, prompt_logprobs=True)
        found[hint] = np.array(answer.prompt_logprobs[-zoo_bf16.compared(name) :])
        assert hint == "f32" or rounded_angles(rig.backend._model._compiled[0][0]) == []
    if known:
        wanted = np.array(known["logprobs"]) / 1000 if "logprobs" in known else found["f32"]
        assert 0 < np.abs(found["bf16"] - wanted).mean() < AS_NEAR * known["torch"]


@needs_bf16
@pytest.mark.slow
@pytest.mark.parametrize("name", zoo_bf16.TEXT)
def test_a_text_model_is_as_near_to_f32_as_torchs_bf16(name, tmp_path):
    path = str(zoo_gguf.write(tmp_path / name, name[:-5]) if name.endswith(".gguf") else unpacked(name, tmp_path))
    options = {"pipeline_type": "PAGED", "model_path": path}
    assert_as_near(name, lambda **more: Rig(pipeline=load(60, compiled_twice=False, **options, **more)))


@needs_bf16
@pytest.mark.slow
@pytest.mark.parametrize("name", [*KINDS, "llama.gguf"])
def test_far_positions_are_as_near_to_f32_as_the_first(name, tmp_path, monkeypatch):
    """The tokens are computed at positions that are FAR higher, with the same distances between them."""
    path = str(zoo_gguf.write(tmp_path / name, name[:-5]) if name.endswith(".gguf") else unpacked(name, tmp_path))
    start, moved = PagedModel.start, 0

    def start_moved(self, prompts):
        self._networks[self.adapting, prompts].get_tensor("position_ids").data[...] += moved
        start(self, prompts)

    def infer_moved(self, prompts):
        start_moved(self, prompts)
        return self.wait()

    monkeypatch.setattr(PagedModel, "start", start_moved)
    monkeypatch.setattr(PagedModel, "infer", infer_moved)
    dice = random.Random(5)
    ids = [dice.randrange(3, 64) for _ in range(200)]
    found = {}
    for hint in ("f32", "bf16"):
        properties = json.dumps({"INFERENCE_PRECISION_HINT": hint, "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"})
        options = {"model_path": path, "kv_cache_precision": "", "plugin_config": properties}
        pipe = load(60, compiled_twice=False, pipeline_type="PAGED", **options)
        for moved in (0, FAR):
            answer = Rig(pipeline=pipe).ask(ids, max_tokens=1, prompt_logprobs=True)
            found[hint, moved] = np.array(answer.prompt_logprobs[1:])
    near, far = (float(np.abs(found["f32", moved] - found["bf16", moved]).mean()) for moved in (0, FAR))
    assert 0 < far < 1.5 * near


def in_both(path, name, **more):
    """Returns the log probabilities of the last tokens of a text in f32 and in bf16. `more` has options, and an
    adapter."""
    adapter, found = more.pop("adapter", ""), []
    for hint in ("f32", "bf16"):
        properties = json.dumps({"INFERENCE_PRECISION_HINT": hint, "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"})
        options = {"kv_cache_precision": hint, "plugin_config": properties, **more}
        pipe = load(200, compiled_twice=False, pipeline_type="PAGED", model_path=str(path), **options)
        rig = Rig(pipeline=pipe)
        number = rig.submit(networks_bf16.tokens(name), max_tokens=1, prompt_logprobs=True)
        rig.transport.inbox[-1][0].adapter = adapter
        rig.run()
        found.append(np.array(rig.answer(number).prompt_logprobs[-networks_bf16.LAST :]))
    return found


@needs_bf16
@pytest.mark.slow
@pytest.mark.parametrize("name", networks_bf16.WINDOWS)
def test_behind_a_window_of_more_than_4096_tokens_a_model_is_as_near_to_f32_as_torchs_bf16(name, tmp_path):
    width, length = networks_bf16.WINDOWS[name]
    known = zoo_gguf.recorded()[name]["architecture"]
    changes = {f"{known}.attention.sliding_window": width, f"{known}.context_length": 2 * length}
    path = zoo_gguf.write(tmp_path / "x.gguf", name, **changes)
    networks_bf16.assert_near(f"window/{name}", *in_both(path, f"window/{name}"), AS_NEAR)
