"""The same weights in all forms that servers load. For the embedded model, the other forms are made when needed."""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from lean_ovms.config import Config
from lean_ovms.features.gguf.model_file import header_of

FORMS = ("model", "gguf", "hf")
BASE = "{{ messages[0].content }}"
"""A chat template for models that were not trained to chat."""


class Unavailable(Exception):
    """Raised if a rival cannot take part. The message says why, and what to do."""


class Weights(Mapping[str, str]):
    """Paths of the same weights by form: "model" (a folder of OpenVINO files, or the GGUF file that lean_ovms serves),
    "gguf" (a GGUF file) and "hf" (a folder that transformers can load).

    `path` is the path that was given, "" for the embedded model. `served` is the value of --model_path. `template` is a
    chat template for files that have none, and `options` are lean_ovms's options for it.
    """

    def __init__(self, path: str = "") -> None:
        self.path, self.form = path, "gguf" if path.endswith(".gguf") else "model"
        if path and any(Path(path).glob("*.safetensors")):
            self.form = "hf"
        self.served = "" if self.form == "hf" else path
        self._given = {self.form: path} if path else {}
        base = self.form == "gguf" and "tokenizer.chat_template" not in header_of(Path(path)).metadata
        self.template = BASE if base else ""
        self.options = ("--chat_template", BASE) if base else ()
        self._made = contextlib.ExitStack()

    def __getitem__(self, form: str) -> str:
        """Returns the path of a form. Raises Unavailable if there is none, and it cannot be made."""
        if form == "model":
            return self.served or str(Config().model_dir)
        if form not in self._given:
            self._given[form] = str(self._make(form))
        return self._given[form]

    def serves(self, form: str) -> bool:
        """Returns whether contestants that load this form take part."""
        return not self._given or form in self._given

    def _make(self, form: str) -> Path:
        if self.path:
            raise Unavailable("no weights for it: pass --weights NAME=PATH")
        missing = [name for name in ("gguf", "safetensors") if not importlib.util.find_spec(name)]
        if missing:
            raise Unavailable(f"its weights cannot be made: pip install {' '.join(missing)}")
        from tests.makers import make_gguf, make_hf

        folder = Path(self._made.enter_context(tempfile.TemporaryDirectory(prefix="bench-weights-")))
        if form == "gguf":
            return make_gguf.make(folder / "demo.gguf", "Q8_0")
        return make_hf.make(folder / "demo")

    def __iter__(self) -> Iterator[str]:
        return iter(FORMS)

    def __len__(self) -> int:
        return len(FORMS)

    def close(self) -> None:
        """Removes the files that were made."""
        self._made.close()
