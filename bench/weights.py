"""The same weights in the forms that servers load. Those of the embedded model and of shapes are made."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.processes import ROOT
from lean_ovms.config import Config
from lean_ovms.features.gguf.model_file import header_of

FORMS = ("model", "gguf", "hf")
OPENVINO = ("int8", "int4", "f16")
SAFETENSORS = "safetensors"
REAL = {
    "SmolLM2": {"Q4_1": "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "int8": "smollm2_ir", "bf16": "smollm2_hf"},
    "Gemma 3": {"Q4_K_M": "gemma3/gemma-3-270m-q4_k_m.gguf"},
}
"""Files in the folder of tools.real_models by kind (bf16: of vLLM); which also makes the exports."""
BASE = "{{ messages[0].content }}"
"""The chat template of a model that was not trained to chat."""


class Unavailable(Exception):
    """A rival that cannot take part; the text says why, and what to do."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where the forms of another model are."""
    parser.add_argument(
        "--gguf", default="", metavar="FILE", help="the same model as GGUF; without --model_path ours serves it, too"
    )
    parser.add_argument("--hf", default="", metavar="FOLDER", help="the same model as safetensors")


class Weights(Mapping[str, str]):
    """model: the folder of OpenVINO files, or the GGUF file, that ours serves; gguf: a file; hf: a folder that
    transformers can load.

    served: what --model_path gets, "" for the embedded model. template: for chats, where the files have none; options:
    those of lean_ovms for it.
    """

    def __init__(self, served: str = "", gguf: str = "", hf: str = "", template: str = "") -> None:
        self.served, self.template = served, template
        self.options = ("--chat_template", template) if template else ()
        self._given = {"gguf": gguf, "hf": hf}
        self._folder = tempfile.TemporaryDirectory(prefix="bench-weights-")

    def __getitem__(self, form: str) -> str:
        """The path. Raises Unavailable for a form that is not there and cannot be made."""
        if form == "model":
            return self.served or str(Config().model_dir)
        if not self._given[form]:
            self._given[form] = str(self._make(form))
        return self._given[form]

    def has(self, form: str) -> bool:
        """Whether it is there already. model: a folder of OpenVINO files."""
        return bool(self._given[form] if form != "model" else self.served and not self._given["gguf"])

    def _make(self, form: str) -> Path:
        if self.served:
            raise Unavailable(f"no weights for it: pass --{form}")
        missing = [name for name in ("gguf", "safetensors") if not importlib.util.find_spec(name)]
        if missing:
            raise Unavailable(f"its weights cannot be made: pip install {' '.join(missing)}")
        from tests.makers import make_gguf, make_hf

        folder = Path(self._folder.name)
        if form == "gguf":
            return make_gguf.make(folder / "demo.gguf", "Q8_0")
        return make_hf.make(folder / "demo")

    def __iter__(self) -> Iterator[str]:
        return iter(FORMS)

    def __len__(self) -> int:
        return len(FORMS)

    def close(self) -> None:
        """Remove what was made."""
        self._folder.cleanup()


def given(args: argparse.Namespace) -> Weights:
    """The weights that the options name."""
    return Weights(args.model_path or args.gguf, args.gguf, args.hf)


def of_shape(folder: Path, shape: str, kinds: list[str]) -> dict[str, Weights]:
    """The weights of tools.random_model by kind (int8, int4, f16, a type of GGUF, safetensors), made if need be."""
    paths = {kind: folder / (kind if kind in (*OPENVINO, SAFETENSORS) else f"{kind}.gguf") for kind in kinds}
    missing = [kind for kind, path in paths.items() if not path.exists()]
    if missing:
        made = [kind for kind in missing if kind in OPENVINO]
        types = [kind for kind in missing if kind not in made and kind != SAFETENSORS]
        more = ["--safetensors"] if SAFETENSORS in missing else []
        options = ["--shape", shape, "--weights", *made, "--gguf", *types, *more]
        subprocess.run([sys.executable, "-m", "tools.random_model", str(folder), *options], cwd=ROOT, check=True)
    return {
        kind: Weights(hf=str(path))
        if kind == SAFETENSORS
        else Weights(str(path), "" if kind in OPENVINO else str(path))
        for kind, path in paths.items()
    }


def of_real_models(folder: Path) -> Iterator[tuple[Path, dict[str, Weights]]]:
    """Yields, for each model of tools.real_models that is there, its GGUF file, and its weights by kind."""
    for name, files in REAL.items():
        kinds = {kind: str(folder / file) for kind, file in files.items() if (folder / file).exists()}
        file = next((Path(path) for path in kinds.values() if path.endswith(".gguf")), None)
        if file is None:
            print(f"{name} is left out: python -m tools.real_models {folder}", file=sys.stderr)
            continue
        template = "" if "tokenizer.chat_template" in header_of(file).metadata else BASE
        [kind] = [kind for kind, path in kinds.items() if path == str(file)]
        found = {f"{name} {kind}": Weights(str(file), str(file), template=template)}
        if "int8" in kinds:
            found[f"{name} int8"] = Weights(kinds["int8"])
        if "bf16" in kinds:
            found[f"{name} bf16"] = Weights(hf=kinds["bf16"])
        yield file, found
