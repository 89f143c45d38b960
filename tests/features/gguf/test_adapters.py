"""LoRA adapters of GGUF files, beside requests without an adapter.

Tokens and log probabilities are those of transformers in torch, which tests/makers/zoo_gguf.py recorded. In bf16 they
are as close to f32 as torch's.
"""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("gguf")

from lean_ovms.features.lora import modules
from tests.engine.paged.test_precision import AS_NEAR, in_both, needs_bf16
from tests.engine.real import load
from tests.engine.rig import Rig
from tests.features.gguf.test_networks import OPTIONS, RECORDED
from tests.makers import make_lora, networks_bf16, zoo_gguf
from tests.makers.zoo_torch import TOKENS, prompts

pytestmark = [pytest.mark.model, pytest.mark.slow]


def written(name, directory):
    """Writes the adapter of a model, and returns its name in requests."""
    arrays = {}
    for layer, (down, up) in zoo_gguf.adapter(RECORDED[name]["tensors"]).items():
        arrays[f"base_model.model.{layer}.lora_A.weight"] = down
        arrays[f"base_model.model.{layer}.lora_B.weight"] = up
    make_lora.write(directory / "adapter_model.safetensors", arrays)
    settings = {"peft_type": "LORA", "r": zoo_gguf.RANK, "lora_alpha": zoo_gguf.RANK * zoo_gguf.STRENGTH}
    (directory / "adapter_config.json").write_text(json.dumps(settings))
    return modules.dumps(modules.LoraModule("a", str(directory), zoo_gguf.STRENGTH))


def in_two(name, directory):
    """Writes the adapter of a model as two GGUF files with other scales, and returns their names in requests."""
    found = []
    for place, (start, scale) in enumerate((("attn", 2.0), ("ffn", 0.5))):
        [module] = modules.parse(converted(name, directory, start, zoo_gguf.RANK * zoo_gguf.STRENGTH / scale))
        found.append(replace(module, name=str(place), scale=scale))
    return modules.dumps(*found)


def converted(name, directory, start="", alpha=zoo_gguf.RANK * zoo_gguf.STRENGTH):
    """Writes the adapter of a model as a GGUF file, and returns its name in requests.

    Args:
        name: The name of the model.
        directory: The directory of the file.
        start: The beginning of the names of the layers that it changes; "" for all.
        alpha: The value of adapter.lora.alpha.
    """
    metadata, tensors = RECORDED[name]["metadata"], {}
    heads = {"q": "head_count", "k": "head_count_kv"}
    for layer, (down, up) in zoo_gguf.adapter(RECORDED[name]["tensors"]).items():
        number, place = layer.removeprefix("model.layers.").split(".", 1)
        part = zoo_gguf.PROJECTIONS[place]
        if not part.startswith(start):
            continue
        if name in zoo_gguf.PERMUTED and part in ("attn_q", "attn_k"):
            up = make_lora.in_pairs(up, metadata[f"{name}.attention.{heads[part[-1]]}"])
        tensors[f"blk.{number}.{part}.weight"] = down, up
    path = make_lora.write_gguf(directory / f"a{start}.gguf", name, tensors, alpha)
    return modules.dumps(modules.LoraModule("a", str(path)))


@pytest.mark.parametrize("name", zoo_gguf.ADAPTED)
@pytest.mark.parametrize("write", [written, converted, in_two])
def test_answers_with_an_adapter_are_those_of_torch(name, write, tmp_path):
    known, adapter = RECORDED[name], write(name, tmp_path)
    path = zoo_gguf.write(tmp_path / "x.gguf", name)
    rig = Rig(pipeline=load(blocks=120, model_path=str(path), allow_runtime_lora=True, **OPTIONS))
    asked = []
    for ids in prompts():
        for wanted in ("answers", "adapted"):
            number = rig.submit(ids, max_tokens=TOKENS, ignore_eos=True, logprobs=True)
            rig.transport.inbox[-1][0].adapter = adapter if wanted == "adapted" else ""
            asked.append((number, wanted))
        rig.turn()
    rig.run()
    for place, (number, wanted) in enumerate(asked):
        ids, logprobs = known[wanted][place // 2]
        answer = rig.answer(number)
        assert answer.tokens[0] == ids
        assert answer.logprobs[0] == pytest.approx(logprobs, abs=5e-3)
    assert known["answers"] != known["adapted"]


@pytest.mark.parametrize("name", ["phi3", "glm4"])
def test_an_adapter_of_a_matrix_with_gate_and_up_changes_what_that_matrix_changed_does(name, tmp_path):
    tensors, changed = zoo_gguf.weights(name), {}
    for tensor in [tensor for tensor in tensors if tensor.endswith(("ffn_up.weight", "ffn_down.weight"))]:
        rows, width = tensors[tensor].shape
        down, up = zoo_gguf.values(f"{tensor}.A", [4, width]), zoo_gguf.values(f"{tensor}.B", [rows, 4])
        changed[tensor] = down, up
    merged = {tensor: value + np.matmul(*changed[tensor][::-1]) if tensor in changed else value
              for tensor, value in tensors.items()}  # fmt: skip
    adapter = make_lora.write_gguf(tmp_path / "a.gguf", name, changed)
    paths = [
        zoo_gguf.write(tmp_path / f"{place}.gguf", name, "F32", each) for place, each in enumerate((tensors, merged))
    ]
    found = []
    for path, texts in zip(paths, ([modules.dumps(modules.LoraModule("a", str(adapter))), ""], [""]), strict=True):
        rig = Rig(pipeline=load(blocks=120, model_path=str(path), allow_runtime_lora=True, **OPTIONS))
        for text in texts:
            number = rig.submit(prompts()[0], max_tokens=TOKENS, ignore_eos=True, logprobs=True)
            rig.transport.inbox[-1][0].adapter = text
            rig.run()
            found.append((rig.answer(number).tokens[0], rig.answer(number).logprobs[0]))
    adapted, plain, wanted = found
    assert adapted[0] == wanted[0] != plain[0]
    assert adapted[1] == pytest.approx(wanted[1], abs=5e-3)


@needs_bf16
@pytest.mark.parametrize("name", zoo_gguf.ADAPTED)
def test_a_model_with_an_adapter_is_as_near_to_f32_as_torchs_bf16(name, tmp_path):
    adapter, path = written(name, tmp_path), zoo_gguf.write(tmp_path / "x.gguf", name)
    found = in_both(path, f"lora/{name}", adapter=adapter, allow_runtime_lora=True)
    networks_bf16.assert_near(f"lora/{name}", *found, AS_NEAR)
