"""The same weights in the forms that other servers load. Those of the embedded model are made when they are needed."""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from lean_ovms.config import Config

FORMS = ("model", "gguf", "hf")


class Unavailable(Exception):
    """A rival that cannot take part; the text says why, and what to do."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where the forms of another model are."""
    parser.add_argument("--gguf", default="", metavar="FILE", help="the same model as GGUF; the embedded one: Q8_0")
    parser.add_argument("--hf", default="", metavar="FOLDER", help="the same model as safetensors")


class Weights(Mapping[str, str]):
    """model: the folder of OpenVINO files; gguf: a file; hf: a folder that transformers can load."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._folder = tempfile.TemporaryDirectory(prefix="bench-weights-")
        self._made: dict[str, str] = {}

    def __getitem__(self, form: str) -> str:
        """The path. Raises Unavailable for a form that is not there and cannot be made."""
        if form == "model":
            return str(Config(model_path=self._args.model_path).model_dir)
        given: str = getattr(self._args, form)
        if given:
            return given
        if form not in self._made:
            self._made[form] = str(self._make(form))
        return self._made[form]

    def _make(self, form: str) -> Path:
        if self._args.model_path:
            raise Unavailable(f"no weights for it: pass --{form}")
        missing = [name for name in ("gguf", "safetensors") if not importlib.util.find_spec(name)]
        if missing:
            raise Unavailable(f"its weights cannot be made: pip install {' '.join(missing)}")
        from tools import make_gguf, make_hf

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
