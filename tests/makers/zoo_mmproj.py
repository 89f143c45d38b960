"""Tiny models with vision in llama.cpp's form, a GGUF file with its mmproj: fixtures of tests/data/zoo_mmproj.

Each is a NAME.tar.xz with NAME.gguf and mmproj-NAME.gguf, made by llama.cpp's own converter from the networks of
tests/makers/zoo_vision.py, and from those in zoo_mmproj.json, which OpenVINO has no export of. answers.json has the
answers of transformers in torch.

python -m tests.makers.zoo_mmproj LLAMA_CPP DIR [NAME...]   (needs torch, transformers, Pillow; LLAMA_CPP: its sources)
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.makers import zoo_vision, zoo_vision_torch
from tests.makers.zoo import pack

LAYERS = {"num_hidden_layers": 6, "layer_types": ["sliding_attention"] * 5 + ["full_attention"]}
"""The layers of Gemma 3: without these values, every sixth layer in a file attends to all tokens."""
DEEPER = {"depth": 4}
"""The number of layers in Qwen2-VL's encoder: with fewer, the converter does not know the names of the projector's
tensors."""
DELTAS = {"full_attention_interval": 2}
"""The field that the converter reads for Qwen3.5's layers in place of their types."""
MODELS: dict[str, dict[str, dict[str, Any]]] = {
    "gemma3": {"text_config": LAYERS},
    "gemma4": {"vision_config": {"use_clipped_linears": True}},
    "gemma4-moe": {"vision_config": {"standardize": True}},
    "mistral3": {
        "text_config": {"architectures": ["MistralForCausalLM"], "rms_norm_eps": 1e-5},
        "vision_config": {"hidden_act": "silu", "num_hidden_layers": 4},
    },
    "llava": {"text_config": {"architectures": ["LlamaForCausalLM"]}},
    "llava_next": {"text_config": {"architectures": ["LlamaForCausalLM"]}},
    "qwen2_vl": {"vision_config": DEEPER},
    "qwen2_5_vl": {"vision_config": DEEPER | {"fullatt_block_indexes": [1, 3], "window_size": 112}},
    "qwen3_5": {"text_config": DELTAS},
    "qwen3_5_moe": {"text_config": DELTAS},
    "qwen3_vl": {},
    "smolvlm": {"text_config": {"architectures": ["VLlama3ForCausalLM"]}},
}
"""The models, and additions to parts of their configurations in zoo_vision."""
_DATA: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
MODELS |= {name: {} for name in _DATA["models"]}
BUFFERS = {"input_min": -1, "input_max": 1.25, "output_min": -2, "output_max": 1.5, "std_bias": 0.5, "std_scale": 1.5}
"""The values of Gemma 4's limits, and the scale of its embeddings."""
VIDEOS = "qwen2_vl", "qwen2_5_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "gemma4", "gemma4-moe"
"""Models with a video. transformers 4.57 has to answer for the first two, because in 5.5.4 all frames of a video have
the time of the first one, which contradicts its documentation. It also makes other weights."""
RENAMED = {
    "gemma3": {"model.language_model.": "language_model.", "model.vision": "vision", "model.multi": "multi"},
    "internvl": {"model.language_model.": ""},
    "internvl-6b": {"model.language_model.": ""},
    "lighton_ocr": {"model.language_model.": "model."},
    "llava": {"model.language_model.": ""},
    "llava_next": {"model.language_model.": ""},
    "mistral3": {"model.language_model.": "language_model.", "model.vision": "vision", "model.multi": "multi"},
    "mistral3-ministral": {"model.language_model.": "", "model.vision": "vision", "model.multi": "multi"},
    "llava-pixtral": {"model.language_model.": "", "model.vision": "vision", "model.multi": "multi"},
    "paddleocr_vl": {"model.visual.": "visual."},
    "qwen2_vl": {"model.visual.": "visual."},
    "qwen2_5_vl": {"model.visual.": "visual."},
    "qwen3_5": {"model.language_model.visual.": "model.visual."},
    "qwen3_5_moe": {"model.language_model.visual.": "model.visual."},
}
"""Prefixes of tensors' names that transformers 5 writes, with those in published models."""


def make(name: str, llama_cpp: Path, target: Path) -> dict[str, Any]:
    """Writes NAME.tar.xz into a folder, and returns torch's answers."""
    model, words = zoo_vision.network(name), zoo_vision.tokenizer()
    if more := _DATA["tokens"].get(name):
        words.add_special_tokens({"additional_special_tokens": more})
        model.lm_head.weight.data[words.convert_tokens_to_ids(more)] = 0
    for buffer, values in model.named_buffers():
        if (kind := buffer.rpartition(".")[2]) in BUFFERS:
            values.fill_(BUFFERS[kind])
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / name
        model.save_pretrained(source)
        words.save_pretrained(source)
        (source / "preprocessor_config.json").write_text(json.dumps(zoo_vision.PIXELS[name]))
        complete(source / "config.json", model)
        _rename(source, RENAMED.get(name, {}))
        fill(source / "tokenizer.json")
        files = [converted(source, llama_cpp, eyes=False)]
        _rename(source, {"lm_head.": None})  # which that of Gemma 4's eyes does not know: published models have none
        files.append((_clip if "CLIP" in str(model.config.vision_config) else converted)(source, llama_cpp, eyes=True))
        pack(files, target / f"{name}.tar.xz")
    prompts = zoo_vision_torch.PROMPTS
    if name in VIDEOS:
        prompts = prompts | zoo_vision_torch.VIDEO_PROMPTS
    return {kind: zoo_vision_torch.answer(name, model, words, prompt) for kind, prompt in prompts.items()}


def complete(config: Path, model: Any) -> None:
    """Adds the name of the model's class to the configuration of a part, as transformers 4 does."""
    name = type(model).__name__.replace("LightOnOcr", "LightOnOCR")  # as published
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": [name]}))


def _rename(source: Path, renamed: dict[str, Any]) -> None:
    """Gives tensors their names in published models, and drops those without one."""
    from safetensors.torch import load_file, save_file

    tensors = {}
    for tensor, values in load_file(source / "model.safetensors").items():
        begin = next((begin for begin in renamed if tensor.startswith(begin)), "")
        if (new := renamed.get(begin, "")) is not None:
            tensors[new + tensor[len(begin) :]] = values
    save_file(tensors, source / "model.safetensors")


def fill(tokenizer: Path) -> None:
    """Adds tokens until there are as many as embeddings; for Gemma 3, the converter drops the rows after the last
    token."""
    found = json.loads(tokenizer.read_text())
    vocabulary = found["model"]["vocab"]
    # Otherwise they would get ids after the last.
    vocabulary |= {token["content"]: token["id"] for token in found["added_tokens"]}
    known = {*vocabulary.values()}
    vocabulary |= {f"[PAD{number}]": number for number in range(zoo_vision.VOCAB) if number not in known}
    tokenizer.write_text(json.dumps(found))


def converted(source: Path, llama_cpp: Path, *, eyes: bool) -> Path:
    """Returns the GGUF file that llama.cpp's converter makes of a folder, of its text or its vision part."""
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
    import conversion
    import gguf
    import torch
    from conversion import base

    kind = base.ModelType.MMPROJ if eyes else base.ModelType.TEXT
    architecture = base.get_model_architecture(base.ModelBase.load_hparams(source, False), kind)
    made = conversion.get_model_class(architecture, mmproj=eyes)
    made.no_mtp = True  # Qwen3.5 has no layers for draft tokens here
    if not eyes:  # the converter does not know the tokenizer
        made.set_vocab = lambda self: self._set_vocab_gpt2()
        base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    file = source.parent / f"{'mmproj-' * eyes}{source.name}.gguf"
    with torch.inference_mode():
        made(source, gguf.LlamaFileType.MOSTLY_F16, file).write()
    return file


def _clip(source: Path, llama_cpp: Path, *, eyes: bool) -> Path:
    """Returns the mmproj file that llama.cpp's old converter makes of LLaVA's folder; the new one does not read it."""
    import subprocess

    import torch
    from safetensors.torch import load_file, save_file

    config = json.loads((source / "config.json").read_text())
    tensors, made = load_file(source / "model.safetensors"), source / "clip"
    made.mkdir()
    begin = "model.vision_tower."
    tower = {name[len(begin) :]: values for name, values in tensors.items() if name.startswith(begin)}
    save_file(tower, made / "model.safetensors")
    others = {name.removeprefix("model."): values for name, values in tensors.items() if not name.startswith(begin)}
    kept = {name: values for name, values in others.items() if "multi_modal" in name or "newline" in name}
    torch.save(kept, made / "llava.projector")
    more = {key: config[key] for key in ("vision_feature_layer", "image_grid_pinpoints") if key in config}
    (made / "config.json").write_text(json.dumps({**config["vision_config"], **more}))
    script = llama_cpp / "tools" / "mtmd" / "legacy-models" / "convert_image_encoder_to_gguf.py"
    options = ["--clip-model-is-vision", "--llava-projector", str(made / "llava.projector")]
    environment = {**os.environ, "PYTHONPATH": str(llama_cpp / "gguf-py")}
    subprocess.run([sys.executable, str(script), "-m", str(made), *options], check=True, env=environment)
    return (made / "mmproj-model-f16.gguf").rename(source.parent / f"mmproj-{source.name}.gguf")


def record(found: dict[str, Any], target: Path) -> None:
    """Adds answers by the names of models to answers.json in a folder."""
    file = target / "answers.json"
    known = (json.loads(file.read_text()) if file.is_file() else {}) | found
    lines = [f"{json.dumps(each)}: {json.dumps(known[each], separators=(',', ':'))}" for each in sorted(known)]
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main(argv: list[str]) -> int:
    if len(argv) < 2 or not set(argv[2:]) <= MODELS.keys():
        print(__doc__, file=sys.stderr)
        return 2
    llama_cpp, target = map(Path, argv[:2])
    target.mkdir(parents=True, exist_ok=True)
    for name, fields in _DATA["models"].items():
        text = {
            field: value for field, value in {**zoo_vision.TEXT, **fields["text_config"]}.items() if value is not None
        }
        zoo_vision.MODELS[name] = {**fields, "text_config": text}
    zoo_vision.PIXELS |= _DATA["pixels"]
    for name in argv[2:] or MODELS:
        fields = zoo_vision.MODELS[name]
        changed = {part: {**fields[part], **more} for part, more in MODELS[name].items()}
        zoo_vision.MODELS[name] = fields | changed
        found = make(name, llama_cpp, target)
        print(name, {kind: (length, len(set(ids))) for kind, (length, ids, _) in found.items()}, flush=True)
        record({name: found}, target)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
