"""The same weights in the forms that servers load. Those of the embedded model are made."""

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
"""The chat template of a model that was not trained to chat."""


class Unavailable(Exception):
    """A rival that cannot take part; the text says why, and what to do."""


class Weights(Mapping[str, str]):
    """model: the folder of OpenVINO files, or the GGUF file, that ours serves; gguf: a file; hf: a folder that
    transformers can load.

    path: one of them, "" for the embedded model. served: what --model_path gets. template: for chats, where a file has
    none; options: those of lean_ovms for it.
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
        """The path. Raises Unavailable for a form that is not there and cannot be made."""
        if form == "model":
            return self.served or str(Config().model_dir)
        if form not in self._given:
            self._given[form] = str(self._make(form))
        return self._given[form]

    def serves(self, form: str) -> bool:
        """Whether who loads this form takes part."""
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
        """Remove what was made."""
        self._made.close()
