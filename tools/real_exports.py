"""python -m tools.real_exports FOLDER NAME... makes OpenVINO exports of models that tools.real_models has fetched.

It needs a Python with torch, transformers, gguf, optimum-intel and nncf, in which `python -m tools.real_models FOLDER
--export_with PYTHON` starts it. Kokoro also needs kokoro and onnx. The checkpoints that optimum-intel reads stay in
FOLDER, as smollm2_hf and whisper_hf: the tests compute reference results with them, and vLLM serves the first.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tools import real_kokoro

WEIGHT_TYPES = {1: "i1", 2: "<i2", 4: "<f2", 0: "<f4"}
"""CTranslate2's numbers of data types, with numpy's names of the types."""

WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?=\p{N})|\s+(?!\S)|\s+"
"""The regular expression with which SmolLM2's tokenizer splits a text into words.

Its publisher splits in two steps: digits, then what is between them. openvino_tokenizers (2026.4) joins these into one
expression that lacks the third alternative from the end, and so splits spaces in front of a digit.
"""


@dataclass(frozen=True, slots=True)
class Export:
    """One call of optimum-cli."""

    fetched: str
    """The model's name in tools.real_models."""
    checkpoint: str
    """The folder that optimum-cli reads."""
    arguments: tuple[str, ...]
    """The arguments of optimum-cli for the task and the weights."""
    network: str = "openvino_model.xml"
    """The file that exists once the export is complete."""
    needs: tuple[str, ...] = ()
    """Modules that only this export needs."""


CHAT, VECTORS = ("--task", "text-generation-with-past"), ("--task", "feature-extraction")
SPEECH = ("--task", "automatic-speech-recognition-with-past")
MULTILINGUAL = 51865
"""The number of tokens of Whisper models with languages; those for English only have one less."""
EXPORTS = {
    "smollm2_fp16": Export("smollm2", "smollm2_hf", (*CHAT, "--weight-format", "fp16")),
    "smollm2_ir": Export("smollm2", "smollm2_hf", (*CHAT, "--weight-format", "int8")),
    # optimum-cli's default group size of 128 does not divide the model's 576 input channels.
    "smollm2_int4": Export(
        "smollm2", "smollm2_hf", (*CHAT, "--weight-format", "int4", "--sym", "--group-size", "64", "--ratio", "1.0")
    ),
    "minilm_ir": Export("minilm", "minilm", (*VECTORS, "--weight-format", "fp32")),
    "minilm_int8": Export("minilm", "minilm", (*VECTORS, "--weight-format", "int8")),
    "whisper_ir": Export("whisper_ct2", "whisper_hf", SPEECH, "openvino_encoder_model.xml"),
    "whisper_en_ir": Export("whisper_en_ct2", "whisper_en_hf", SPEECH, "openvino_encoder_model.xml"),
    "mpnet_ir": Export("mpnet", "mpnet", (*VECTORS, "--weight-format", "fp32")),
    "kokoro_ir": Export("kokoro_onnx", "kokoro_checkpoint", ("--task", "text-to-audio"), needs=("kokoro", "onnx")),
}


def is_whole(folder: Path, name: str) -> bool:
    """Returns whether an export is complete."""
    return (folder / name / EXPORTS[name].network).is_file()


def bpe_tokenizer(gguf_file: Path) -> Any:
    """Returns SmolLM2's tokenizer, which splits off single digits and then GPT-2's words.

    The tokenizer that transformers makes of the GGUF file is wrong: it splits texts into nearly twice as many tokens.
    """
    from gguf import GGUFReader, TokenType
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    fields = GGUFReader(gguf_file).fields
    tokens, merges, kinds = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "merges", "token_type"))
    vocabulary = {token: number for number, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(vocabulary, [tuple(merge.split(" ")) for merge in merges]))
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(WORDS), "isolated"), by_bytes])
    made.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == TokenType.CONTROL]
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return made


def smollm2_checkpoint(source: Path, target: Path) -> None:
    """Writes SmolLM2 in the format of transformers, with the weights of the GGUF file in f32."""
    import torch
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    file = next(source.glob("*.gguf"))
    AutoModelForCausalLM.from_pretrained(source, gguf_file=file.name, dtype=torch.float32).save_pretrained(target)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe_tokenizer(file),
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        model_max_length=8192,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = GGUFReader(file).fields["tokenizer.chat_template"].contents()
    tokenizer.save_pretrained(target)


def _ctranslate2_weights(file: BinaryIO) -> dict[str, Any]:
    """Returns the arrays of a CTranslate2 model by name."""
    import numpy as np

    def number(form: str) -> int:
        [value] = struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))
        return int(value)

    def text() -> str:
        return file.read(number("H")).rstrip(b"\0").decode()

    _version, specification, _revision = number("I"), text(), number("I")
    if specification != "WhisperSpec":
        raise ValueError(f"a model of CTranslate2 of {specification}, not of Whisper")
    weights = {}
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        kind = WEIGHT_TYPES[number("B")]
        weights[name] = np.frombuffer(file.read(number("I")), kind).reshape(shape)
    return weights


def _whisper_names(side: str, layers: int) -> dict[str, tuple[str, ...]]:
    """Maps CTranslate2's layers of Whisper to those of transformers.

    Args:
        side: "encoder" or "decoder".
        layers: The number of layers on this side.

    Returns:
        For each CTranslate2 layer, the layers of transformers whose rows it contains, in this order.
    """
    names = {f"{side}/layer_norm": (f"{side}.layer_norm",)}
    for number in range(layers):
        ours, theirs = f"{side}.layers.{number}", f"{side}/layer_{number}"
        attentions = {"self_attention": ("self_attn", 1)}
        if side == "decoder":
            attentions["attention"] = ("encoder_attn", 2)
        for there, (here, out) in attentions.items():
            queries, keys, values, mixed = (f"{ours}.{here}.{part}_proj" for part in ("q", "k", "v", "out"))
            apart = out == 2
            names[f"{theirs}/{there}/layer_norm"] = (f"{ours}.{here}_layer_norm",)
            names[f"{theirs}/{there}/linear_0"] = (queries,) if apart else (queries, keys, values)
            if apart:
                names[f"{theirs}/{there}/linear_1"] = (keys, values)
            names[f"{theirs}/{there}/linear_{out}"] = (mixed,)
        names[f"{theirs}/ffn/layer_norm"] = (f"{ours}.final_layer_norm",)
        names[f"{theirs}/ffn/linear_0"], names[f"{theirs}/ffn/linear_1"] = (f"{ours}.fc1",), (f"{ours}.fc2",)
    return names


def whisper_checkpoint(source: Path, target: Path) -> None:
    """Writes Whisper in the format of transformers, with the weights of a CTranslate2 folder in f32."""
    import numpy as np
    import torch
    from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    with (source / "model.bin").open("rb") as file:
        found = _ctranslate2_weights(file)
    told = json.loads((source / "config.json").read_text("utf-8"))
    vocabulary = json.loads((source / "tokenizer.json").read_text("utf-8"))
    tokens = {token["content"]: token["id"] for token in vocabulary["added_tokens"]}
    end, begin = tokens["<|endoftext|>"], tokens["<|startoftranscript|>"]
    embeddings = found["decoder/embeddings/weight"]
    state = {"decoder.embed_tokens.weight": embeddings}
    sizes: dict[str, int] = {}
    for side in ("encoder", "decoder"):
        layers = sum(name.startswith(f"{side}/layer_") and name.endswith("/ffn/linear_0/bias") for name in found)
        state[f"{side}.embed_positions.weight"] = found[f"{side}/position_encodings/encodings"]
        sizes |= {f"{side}_layers": layers, f"{side}_attention_heads": int(found[f"{side}/num_heads"])}
        sizes[f"{side}_ffn_dim"] = len(found[f"{side}/layer_0/ffn/linear_0/bias"])
        for theirs, ours in _whisper_names(side, layers).items():
            for kind, of_norm in (("weight", "gamma"), ("bias", "beta")):
                rows = found[f"{theirs}/{of_norm if 'norm' in theirs else kind}"]
                for name, part in zip(ours, np.split(rows, len(ours)), strict=True):
                    # Keys have no bias in transformers: it would add the same number to every attention score.
                    if kind == "weight" or not name.endswith("k_proj"):
                        state[f"{name}.{kind}"] = part
    for name in ("conv1", "conv2"):
        state |= {f"encoder.{name}.{kind}": found[f"encoder/{name}/{kind}"] for kind in ("weight", "bias")}
    special = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": begin}
    config = WhisperConfig(
        vocab_size=len(embeddings),
        d_model=embeddings.shape[1],
        num_mel_bins=found["encoder/conv1/weight"].shape[1],
        max_source_positions=len(state["encoder.embed_positions.weight"]),
        max_target_positions=len(state["decoder.embed_positions.weight"]),
        **sizes,
        **special,
    )
    model = WhisperForConditionalGeneration(config)
    weights = {name: torch.from_numpy(array.astype(np.float32)) for name, array in state.items()}
    model.model.load_state_dict(weights)
    model.tie_weights()
    of_languages: dict[str, Any] = {"is_multilingual": len(embeddings) >= MULTILINGUAL}
    if of_languages["is_multilingual"]:
        of_languages["lang_to_id"] = {name: number for name, number in tokens.items() if number in told["lang_ids"]}
        of_languages["task_to_id"] = {name: tokens[f"<|{name}|>"] for name in ("transcribe", "translate")}
    model.generation_config = GenerationConfig(
        **special,
        suppress_tokens=told["suppress_ids"],
        begin_suppress_tokens=told["suppress_ids_begin"],
        alignment_heads=told["alignment_heads"],
        no_timestamps_token_id=tokens["<|notimestamps|>"],
        prev_sot_token_id=tokens["<|startofprev|>"],
        max_initial_timestamp_index=50,
        max_length=config.max_target_positions,
        return_timestamps=False,
        **of_languages,
    )
    model.save_pretrained(target)
    WhisperFeatureExtractor(feature_size=config.num_mel_bins).save_pretrained(target)
    shutil.copy(source / "tokenizer.json", target)
    ends = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "<|endoftext|>")
    of_tokenizer = {"tokenizer_class": "WhisperTokenizer", "model_max_length": 1024, **ends}
    (target / "tokenizer_config.json").write_text(json.dumps(of_tokenizer), "utf-8")


CHECKPOINTS = {
    "smollm2_hf": smollm2_checkpoint,
    "whisper_hf": whisper_checkpoint,
    "whisper_en_hf": whisper_checkpoint,
    "kokoro_checkpoint": real_kokoro.checkpoint,
}
"""The functions that write the checkpoints which no package contains."""


def export(folder: Path, name: str) -> None:
    """Makes one export, and the checkpoint that it needs. A folder gets its name when it is complete."""
    wanted = EXPORTS[name]
    checkpoint, target = folder / wanted.checkpoint, folder / name
    if not (checkpoint / "config.json").is_file():
        _make(checkpoint, lambda new: CHECKPOINTS[wanted.checkpoint](folder / wanted.fetched, new))
    command = [sys.executable, "-m", "optimum.commands.optimum_cli", "export", "openvino", "-m", str(checkpoint)]

    def write(new: Path) -> None:
        subprocess.run([*command, *wanted.arguments, str(new)], check=True)
        # optimum-cli looks for Kokoro's lexicon on GitHub, and goes on without it.
        if (checkpoint / "data").is_dir():
            shutil.copytree(checkpoint / "data", new / "data", dirs_exist_ok=True)

    _make(target, write)


def _make(target: Path, write: Any) -> None:
    """Has a folder written under a temporary name, and renames it when it is complete."""
    new = target.with_name(f"{target.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    write(new)
    shutil.rmtree(target, ignore_errors=True)
    new.rename(target)


if __name__ == "__main__":
    for named in sys.argv[2:]:
        export(Path(sys.argv[1]), named)
