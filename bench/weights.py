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

FORMS = ("model", "gguf", "hf")
OPENVINO = ("int8", "int4", "f16")
SAFETENSORS = "safetensors"


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

    served: what --model_path gets, "" for the embedded model.
    """

    def __init__(self, served: str = "", gguf: str = "", hf: str = "") -> None:
        self.served = served
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
