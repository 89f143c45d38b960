"""Records how far transformers in torch is from f32 in bf16, for the tiny networks that write no text: those of
embeddings, scores and classes, Whisper, and SpeechT5. The records are tests/data/zoo/networks_bf16.json.

Of each network: the mean difference of its output in bf16, and the first numbers of its last row in f32. Inputs are
longer than 4,096 tokens where positions are computed, and as long as the table of positions where there is one. The
weights in torch are made again as tests/makers/make_pooling_models.py, make_voice_model.py and zoo_gguf.py made those
of the files; those of Whisper, which was trained, are read from its files.

python -m tests.makers.networks_bf16 [NAME...]   (needs torch, transformers, optimum-intel and the package gguf)
"""

from __future__ import annotations

import json
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.makers import zoo_bf16, zoo_gguf

DATA = Path(__file__).parents[1] / "data"
FILE = DATA / "zoo" / "networks_bf16.json"
FAR, LAST, HEAD = 4200, 1000, 16
"""Tokens of a long text, how many of its last ones are compared, and how many numbers of the last row are recorded."""
POOLING = {
    "bert_mean": (16, 60), "mpnet": (16, 60), "modernbert": (1, FAR), "qwen3_embed": (1, FAR), "bert_cross": (64, 60),
    "roberta_cross": (64, 60), "modernbert_cross": (64, 250), "qwen3_rerank": (64, 1200), "bert_classes": (64, 60),
    "bert_tokens": (16, 60)
}  # fmt: skip
"""The models of tests/data/pooling_models.zip: texts, and tokens of each."""
GGUF = {name: (1, 1200 if name == "bert" else FAR) for name in zoo_gguf.EMBEDDING}
WHISPER, VOICE = ("encoder", "decoder"), ("encoder", "decoder", "postnet", "vocoder")
NAMES = [
    *(f"pooling/{name}" for name in POOLING),
    *(f"gguf/{name}" for name in GGUF),
    *(f"whisper/{part}" for part in WHISPER),
    *(f"voice/{part}" for part in VOICE),
]
VOICE_STEPS, TEXT = 1200, 400
"""Steps of a speech decoder at once, and tokens of what is spoken."""
SPOKEN = 100
"""Tokens that Whisper's decoder gets."""


def texts(name: str) -> np.ndarray:
    """Returns the ids of a pooling model's texts, none of them special: int64 [texts, tokens]."""
    kind, _, model = name.partition("/")
    size = (POOLING if kind == "pooling" else GGUF)[model]
    return np.random.RandomState(5).randint(5, 380 if kind == "pooling" else 64, size).astype(np.int64)


def numbers(*shape: int) -> np.ndarray:
    """Returns random numbers: float32."""
    return np.random.RandomState(6).standard_normal(shape).astype(np.float32)


def assert_near(name: str, exact: np.ndarray, found: np.ndarray, most: float, error: float = 1e-3) -> None:
    """What a network computes in f32 is what torch does, and what it computes in bf16 is as near to it as torch's is.

    Args:
        name: of the record.
        exact: the output in f32.
        found: the output in bf16.
        most: by how much the difference may exceed torch's.
        error: the largest difference of what is recorded of the output in f32, by its largest number.
    """
    known = json.loads(FILE.read_text())[name]
    wanted = np.array(known["head"])
    assert np.abs(head(exact) - wanted).max() <= error * max(1.0, np.abs(exact).max())
    assert 0 < difference(exact, found) < most * known["torch"]


def difference(exact: np.ndarray, found: np.ndarray) -> float:
    """Returns the mean difference of two outputs, of the last tokens of a long text."""
    return float(np.abs(last(exact) - last(found)).mean())


def last(output: np.ndarray) -> np.ndarray:
    return output[:, -LAST:] if output.ndim == 3 else output


def head(output: np.ndarray) -> np.ndarray:
    """Returns the first numbers of the last row, or the last ones of a sound."""
    return output.reshape(-1, output.shape[-1])[-1][:HEAD] if output.ndim > 1 else output[-HEAD:]


def weights(file: Path) -> dict[str, np.ndarray]:
    """Returns the weights of an export by their names in torch, those in 8 bits multiplied by their scales."""
    import openvino as ov

    parts = {"MatMul": "weight", "Convolution": "weight", "Gather": "weight", "Multiply": "weight", "Add": "bias"}
    found: dict[str, np.ndarray] = {}
    for operation in ov.Core().read_model(file).get_ordered_ops():
        place, part = operation.get_friendly_name(), parts.get(operation.get_type_name())
        for value in operation.input_values() if place.startswith("__module.") and part else ():
            data = constant(value.get_node())
            if data is not None and data.size > 1:
                found.setdefault(f"{place.removeprefix('__module.').partition('/')[0]}.{part}", data)
    return found


def constant(node: Any) -> np.ndarray | None:
    """Returns what a node computes of constants alone; None if it does not."""
    kind = node.get_type_name()
    if kind == "Constant":
        return np.asarray(node.data)
    if kind not in ("Convert", "Reshape", "Subtract", "Multiply"):
        return None
    values = [constant(value.get_node()) for value in node.input_values()]
    if any(value is None for value in values):
        return None
    first: np.ndarray = values[0].astype(np.float32)  # type: ignore[union-attr]
    if kind in ("Convert", "Reshape"):
        return first.reshape(node.output(0).shape)
    return first - values[1] if kind == "Subtract" else first * values[1]


def of_pooling(name: str) -> tuple[Any, Any]:
    """Returns a network in torch, and how it is asked."""
    import torch
    from tokenizers import Tokenizer

    from tests.makers import make_pooling_models as made

    kind, config, _, _, what = made.MODELS[name]
    model = made.network(kind, config)
    with zipfile.ZipFile(made.OUT) as file:
        words = Tokenizer.from_str(file.read(f"{name}/tokenizer.json").decode())
    no, yes = words.token_to_id("no"), words.token_to_id("yes")
    ids = torch.tensor(texts(f"pooling/{name}"))

    def ask(model: Any) -> Any:
        found = model(input_ids=ids)
        if what == "yes":
            return (found.logits[:, -1, yes] - found.logits[:, -1, no])[:, None]
        return found.last_hidden_state if what in ("MEAN", "CLS", "LAST") else found.logits

    return model, ask


def of_gguf(name: str) -> tuple[Any, Any]:
    """Returns a network in torch, and how it is asked."""
    import torch

    model, _ = zoo_gguf.network(name)
    ids = torch.tensor(texts(f"gguf/{name}"))
    more = {"token_type_ids": torch.zeros_like(ids)} if "bert" in name else {}

    def ask(model: Any) -> Any:
        found = model(input_ids=ids, **more).last_hidden_state
        for tensor, shape in zoo_gguf.DENSE.get(name, {}).items():
            found = found @ torch.tensor(zoo_gguf.values(tensor, shape)).to(found.dtype).T
        return found

    return model, ask


def of_whisper(part: str) -> tuple[Any, Any]:
    """Returns a network in torch, and how it is asked."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(DATA / "whisper_words.zip") as file:
        file.extractall(folder)
        path = Path(folder) / "model"
        config = WhisperConfig(**json.loads((path / "config.json").read_text()))
        whole = WhisperForConditionalGeneration(config).eval()
        found = weights(path / f"openvino_{part}_model.xml")
    model = whole.model.encoder if part == "encoder" else whole
    scale = (config.d_model // config.encoder_attention_heads) ** -0.5
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            queries = name.endswith("q_proj.bias")  # which the export has scaled
            place = name.replace(".q_proj.", ".") if queries else name
            if place in found:
                parameter.copy_(torch.tensor(found[place].reshape(parameter.shape)) / (scale if queries else 1.0))
    if part == "encoder":
        frames = torch.tensor(numbers(1, config.num_mel_bins, 2 * config.max_source_positions))
        return model, lambda model: model(frames.to(model.dtype)).last_hidden_state
    hidden = torch.tensor(numbers(1, config.max_source_positions, config.d_model))
    ids = torch.tensor(spoken(config.vocab_size))
    return model, lambda model: model(encoder_outputs=(hidden.to(model.dtype),), decoder_input_ids=ids).logits


def spoken(size: int) -> np.ndarray:
    """Returns what Whisper's decoder gets. size: of its vocabulary."""
    return np.random.RandomState(7).randint(3, size, (1, SPOKEN)).astype(np.int64)


def of_voice(part: str) -> tuple[Any, Any]:
    """Returns a network in torch, and how it is asked. Nothing is dropped out, which this model does at random."""
    import torch

    from tests.makers import make_voice_model as made

    with tempfile.TemporaryDirectory() as folder:
        model, vocoder = made.networks(len(made.tokenizer(Path(folder))))
    width = model.config.hidden_size
    if part == "vocoder":
        sound = torch.tensor(numbers(200, 80))
        return vocoder, lambda vocoder: vocoder(sound.to(vocoder.dtype))
    if part == "encoder":
        ids = torch.tensor(letters())
        return model.speecht5.encoder, lambda encoder: encoder(ids).last_hidden_state
    if part == "postnet":
        frames = torch.tensor(numbers(1, VOICE_STEPS, 80))
        return model.speech_decoder_postnet, lambda net: net.postnet(frames.to(net.feat_out.weight.dtype))
    prenet = model.speecht5.decoder.prenet
    prenet._consistent_dropout = lambda values, chance: values / (1 - chance)
    given = [torch.tensor(values) for values in decoded(width)]

    def ask(model: Any) -> Any:
        frames, speaker, hidden = (values.to(model.dtype) for values in given)
        decoder = model.speecht5.decoder
        last_one = decoder.prenet(frames, speaker)[:, -1:]  # the export computes a step: earlier ones are in its state
        found = decoder.wrapped_decoder(last_one, encoder_hidden_states=hidden, use_cache=False).last_hidden_state
        return model.speech_decoder_postnet.feat_out(found).view(1, -1, 80)

    return model, ask


def letters() -> np.ndarray:
    """Returns the tokens that are spoken."""
    return np.random.RandomState(8).randint(5, 40, (1, TEXT)).astype(np.int64)


def decoded(width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns what a speech decoder gets: frames, the speaker, and hidden states. width: of these."""
    return numbers(1, VOICE_STEPS, 80), numbers(1, 512), numbers(1, TEXT, width)


def record(name: str) -> dict[str, Any]:
    """Returns the entry of a network."""
    import torch

    kind, _, model_name = name.partition("/")
    model, ask = {"pooling": of_pooling, "gguf": of_gguf, "whisper": of_whisper, "voice": of_voice}[kind](model_name)
    with torch.no_grad():
        exact = ask(model.eval()).float().numpy()
        found = ask(zoo_bf16.in_bf16(model)).float().numpy()
    rounded = [round(float(value), 4) for value in head(exact)]
    return {"torch": float(f"{difference(exact, found):.3g}"), "head": rounded}


if __name__ == "__main__":
    sys.exit(zoo_bf16.write(FILE, NAMES, record, __doc__ or ""))
