"""python -m tools.random_model FOLDER --shape qwen3-0.6b makes a model with the sizes of a real one and random weights,
for benchmarks.

FOLDER/int8, FOLDER/int4 and FOLDER/f16 are OpenVINO models, FOLDER/Q8_0.gguf and so on are GGUF files, and
FOLDER/safetensors is a folder for vLLM. All have the same weights, which are derived from the tensors' names. A token
costs what it costs in the real model; the text is meaningless. No weights of other models and no network access are
needed, and only one tensor at a time is in memory. Needs the extra `train`; GGUF types other than F16, Q8_0 and Q4_0
need llama.cpp's llama-quantize.

To measure with it: `python -m bench ... --model_path FOLDER/int8 --ignore_eos`
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterator
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import openvino as ov
import torch
from openvino import opset13 as ops
from optimum.exporters.openvino import export_from_model
from optimum.intel import OVConfig
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights

from lean_ovms.features.gguf.child.tokenizer import QWEN2
from tests.makers import make_gguf, zoo_gguf, zoo_gguf_models
from tools.demo_model.export import NETWORK, save_tokenizer
from tools.demo_model.tokenizer import MARKERS, SPECIAL, wrapped

CONFIG = {"expert_feed_forward_length": "moe_intermediate_size"}
"""GGUF metadata that only some architectures have, with the name in config.json."""
HYBRID = "qwen3.5-0.8b"
SHAPES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
"""The model_type in transformers and the sizes of each shape. qwen3-30b-a3b has 2 of its 48 layers, 195m a small
vocabulary."""
COMMON = {"vocab_size": 151_936, "max_position_embeddings": 40_960, "tie_word_embeddings": True, "rms_norm_eps": 1e-6}
WEIGHTS = ("int8", "int4", "f16")
GROUP = 128
"""The number of input channels that share a scale in int4."""
LARGE = 1 << 16
"""Tensors with at least this many numbers are compressed, and are not in memory while the network is exported."""
ENDS = ("embed_tokens.weight", "lm_head.weight")
"""Tensors that stay int8 in an int4 model."""
GGUF = {"F16": (1, ""), "Q8_0": (7, ""), "Q4_0": (2, "Q8_0")}
"""GGUF types that the package gguf can make: the type's number, and the type of the embeddings if it differs."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write_tokenizer(size: int, path: Path) -> None:
    """Writes a tokenizer.json: byte-level BPE whose pieces have one to four letters, with and without a leading
    space."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [first + second for first, second in product(("\u0120", *LETTERS), LETTERS)]
    merges = chain(
        ((pair[0], pair[1]) for pair in pairs),
        product(pairs, LETTERS),
        product(pairs, (pair for pair in pairs if pair[0] != "\u0120")),
    )
    merges = list(islice(merges, size - len(SPECIAL) - len(MARKERS) - len(alphabet)))
    pieces = [*SPECIAL, *MARKERS, *alphabet, *(first + second for first, second in merges)]
    made = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, merges))
    parts = pre_tokenizers.Split(Regex(QWEN2[0]), behavior="isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([parts, pre_tokenizers.ByteLevel(False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    made.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKERS])
    made.save(str(path), pretty=False)


def values(name: str, shape: list[int]) -> np.ndarray:
    """Returns the weights of a tensor: ones for a norm, else random numbers that depend on the tensor's name."""
    if "norm" in name:
        return np.ones(shape, np.float32)
    dice = np.random.Generator(np.random.SFC64(zlib.crc32(name.encode())))
    return dice.standard_normal(shape, np.float32) * np.float32(0.02)


def compressed(data: np.ndarray, precision: str, file: Path) -> Any:
    """Returns weights as nodes of an OpenVINO network, with symmetric quantization.

    The numbers are memory-mapped from a file, except those in int4.

    Args:
        data: The weights.
        precision: One of WEIGHTS.
        file: The path for the numbers.
    """
    if precision == "f16":
        return ops.constant(on_disk(data.astype(np.float16), file), shared_memory=True)
    shape, top = data.shape, 127
    if precision == "int4":
        data, top = data.reshape(*shape[:-1], -1, GROUP), 7
    scales = (np.abs(data).max(-1, keepdims=True) / top).astype(np.float16)
    stored = np.rint(data / scales.astype(np.float32)).clip(-top, top).astype(np.int8)
    if precision == "int4":
        tensor = ov.Tensor(ov.Type.i4, ov.Shape(data.shape))
        tensor.data.reshape(-1)[:] = (stored[..., ::2] & 15 | stored[..., 1::2] << 4).astype(np.uint8).reshape(-1)
        weights = ops.constant(tensor)
    else:
        weights = ops.constant(on_disk(stored, file), shared_memory=True)
    scaled = ops.multiply(ops.convert(weights, "f16"), ops.constant(scales))
    flat = scaled if precision == "int8" else ops.reshape(scaled, np.array(shape), False)
    return ops.convert(flat, "f32")


def on_disk(data: np.ndarray, file: Path) -> np.ndarray:
    """Writes an array to a file, and returns it memory-mapped."""
    data.tofile(file)
    return np.memmap(file, data.dtype, "r+", shape=data.shape)


class RandomModel:
    """A model of one shape. It has the weights by their names in torch, and writes the model files."""

    def __init__(self, shape: str, layers: int, folder: Path) -> None:
        sizes = {**COMMON, **SHAPES[shape], **({"num_hidden_layers": layers} if layers else {})}
        self.kind = sizes.pop("model_type")
        if shape == HYBRID:
            full = range(sizes["num_hidden_layers"])
            sizes["layer_types"] = ["full_attention" if layer % 4 == 3 else "linear_attention" for layer in full]
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        write_tokenizer(sizes["vocab_size"], folder / "tokenizer.json")
        self.tokenizer = wrapped(folder / "tokenizer.json")
        (folder / "chat_template.jinja").write_text(str(self.tokenizer.chat_template), "utf-8")
        ends = {"eos_token_id": self.tokenizer.eos_token_id, "pad_token_id": 0, "bos_token_id": None}
        with no_init_weights():
            config = AutoConfig.for_model(self.kind, **sizes, **ends)
            self.network = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        self.network.tie_weights()
        self.network.generation_config.update(eos_token_id=[ends["eos_token_id"], 0], do_sample=False)
        self.config = self.network.config
        self.config.architectures = [type(self.network).__name__]  # without it vLLM serves no chat
        self.config.save_pretrained(folder)
        self.shapes = {name: list(weights.shape) for name, weights in self.network.named_parameters()}
        # the order of a delta net's heads in GGUF is only known for the sizes that the tests use
        self.architecture = "" if shape == HYBRID else zoo_gguf_models.MODELS.get(self.kind, ("",))[0]
        if self.architecture:
            kind = next(number for number, text in gguf.MODEL_ARCH_NAMES.items() if text == self.architecture)
            self._names = gguf.get_tensor_name_map(kind, self.config.num_hidden_layers)

    def values(self, name: str, tensor: Callable[[str, list[int]], np.ndarray] = values) -> np.ndarray:
        """Returns the weights of a parameter.

        Args:
            name: The name of the parameter in torch.
            tensor: Returns the weights of a GGUF tensor by name and shape; the parameter is made of these.
        """
        shape = self.shapes[name]
        if not self.architecture:
            return values(name, shape)
        target = self._names.get_name(name, try_suffixes=(".weight", ".bias"))
        return zoo_gguf.from_gguf(name, target, shape, self.architecture, self.config, tensor)

    @torch.no_grad()
    def export(self, target: Path) -> None:
        """Exports the network to OpenVINO. Each large tensor is all zeros, but for its number among the parameters.

        `save` finds the tensors by these numbers, and inserts the weights.
        """
        for number, (name, weights) in enumerate(self.network.named_parameters(), 1):
            if weights.numel() >= LARGE:
                weights.data = torch.from_numpy(np.zeros(weights.shape, np.float32))  # takes no memory until written
                weights.view(-1)[0] = number
                if weights.ndim == 3:  # experts: the export splits gate and up, so that each half needs a number
                    weights[0, weights.shape[1] // 2, 0] = -number
            else:
                weights.copy_(torch.from_numpy(self.values(name)))
        export_from_model(self.network, target, task="text-generation-with-past", ov_config=OVConfig(dtype="fp16"))

    def save(self, exported: Path, precision: str, scratch: Path) -> Path:
        """Writes an OpenVINO model with weights of one precision.

        Args:
            exported: The folder that `export` wrote.
            precision: One of WEIGHTS.
            scratch: A folder for the weights while the model is written.

        Returns:
            The folder of the model.
        """
        target = self.folder / precision
        target.mkdir(exist_ok=True)
        model = ov.Core().read_model(exported / NETWORK[0])
        names = list(self.shapes)
        for place, node in enumerate(model.get_ordered_ops()):
            large = node.get_type_name() == "Constant" and np.prod(node.shape) >= LARGE
            if not large or node.get_element_type() != ov.Type.f16:
                continue
            number = int(node.data.flat[0])
            name = names[abs(number) - 1]
            data = self.values(name)
            if list(data.shape) != list(node.shape):
                data = np.split(data, 2, axis=1)[number < 0]
            ends = precision == "int4" and name.endswith(ENDS)
            made = compressed(data, "int8" if ends else precision, scratch / f"{place}")
            if made.get_type_name() == "Constant":
                node.output(0).replace(made.output(0))
                continue
            for reader in node.output(0).get_target_inputs():  # the nodes that convert the constant to f32
                reader.get_node().output(0).replace(made.output(0))
        ov.save_model(model, target / NETWORK[0], compress_to_fp16=False)
        shutil.copy(exported / NETWORK[2], target)
        save_tokenizer(self.network, self.tokenizer, target)
        return target

    def save_gguf(self, kind: str, quantize: str) -> Path:
        """Writes a GGUF file and returns its path.

        Args:
            kind: The GGUF type, such as Q4_K_M.
            quantize: The program llama-quantize, for types that the package gguf cannot make.
        """
        path = self.folder / f"{kind}.gguf"
        if kind not in GGUF:
            plain = self.folder / "F16.gguf"
            plain = plain if plain.exists() else self.save_gguf("F16", quantize)
            subprocess.run([quantize, plain, path, kind], check=True, stdout=subprocess.DEVNULL)
            return path
        _, _, more = zoo_gguf_models.MODELS[self.kind]
        more = {key: getattr(self.config, CONFIG[key]) for key in more}
        sizes = zoo_gguf.metadata(self.config, self.architecture, more)
        words = {"general.file_type": GGUF[kind][0], **make_gguf.words(self.folder)}
        return make_gguf.pack(path, self.architecture, {**sizes, **words}, self._tensors(), kind, GGUF[kind][1])

    def _tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields the tensors of a GGUF file with their names."""
        for name in self.shapes:
            found: dict[str, list[int]] = {}

            def recorded(tensor: str, shape: list[int], found: dict[str, list[int]] = found) -> np.ndarray:
                found[tensor] = shape
                return np.empty(shape, np.float32)

            self.values(name, recorded)
            for tensor, shape in found.items():
                yield tensor, values(tensor, shape)

    def save_safetensors(self) -> Path:
        """Writes a folder in Hugging Face's format, with weights in f16, and returns its path."""
        target = self.folder / "safetensors"
        self.tokenizer.save_pretrained(target)
        self.config.save_pretrained(target)
        header, size = {"__metadata__": {"format": "pt"}}, 0
        for name, shape in self.shapes.items():
            end = size + 2 * int(np.prod(shape))
            header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [size, end]}
            size = end
        text = json.dumps(header).encode()
        with (target / "model.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for name in self.shapes:
                self.values(name).astype(np.float16).tofile(file)
        return target


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.random_model", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of the model; made if missing")
    parser.add_argument("--shape", choices=SHAPES, default="195m")
    parser.add_argument("--layers", type=int, default=0, help="number of layers, to have fewer")
    parser.add_argument("--weights", nargs="*", choices=WEIGHTS, default=["int8"])
    parser.add_argument("--gguf", nargs="*", default=[], metavar="TYPE", help="Q8_0, Q4_0, Q4_K_M and so on")
    parser.add_argument("--quantize", default="llama-quantize", metavar="PROGRAM", help="llama.cpp's program")
    parser.add_argument("--safetensors", action="store_true")
    args = parser.parse_args()
    model = RandomModel(args.shape, args.layers, args.folder)
    if args.gguf and not model.architecture:
        parser.error(f"--gguf: not for {args.shape}")
    count = sum(math.prod(shape) for shape in model.shapes.values())
    print(f"{args.shape}: {count / 1e6:,.0f} million parameters", flush=True)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        exported = Path(folder, "exported")
        if args.weights:
            model.export(exported)
        for precision in args.weights:
            print(model.save(exported, precision, Path(folder)), flush=True)
    for kind in args.gguf:
        print(model.save_gguf(kind, args.quantize), flush=True)
    if args.safetensors:
        print(model.save_safetensors())


if __name__ == "__main__":
    main()
