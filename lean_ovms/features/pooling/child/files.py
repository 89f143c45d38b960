"""Reads the files of a model directory that say how the model pools, what its labels are and how long inputs may be.

sentence-transformers' files (modules.json, 1_Pooling, sentence_bert_config.json, config_sentence_transformers.json) may
be missing, as optimum-cli does not copy them. This module only reads; model_kind.py decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ....repository import model_config, model_file
from ....types import Json
from ....util import files

POOLING_MODES = (
    ("CLS", "cls", "pooling_mode_cls_token"),
    ("MAX", "max", "pooling_mode_max_tokens"),
    ("MEAN", "mean", "pooling_mode_mean_tokens"),
    ("MEAN_SQRT_LEN", "mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens"),
    ("WEIGHTED_MEAN", "weightedmean", "pooling_mode_weightedmean_tokens"),
    ("LAST", "lasttoken", "pooling_mode_lasttoken"),
)
"""In 1_Pooling/config.json: the value of pooling_mode, which newer versions of sentence-transformers write, and the
boolean of older ones. Vectors of several modes are concatenated: those of booleans in this order, those of a list in
its own."""
NO_LIMIT = 1_000_000
"""A model_max_length above it means that there is none."""
AFTER_NETWORK = ("Pooling", "Dense", "Normalize")
"""The modules of sentence-transformers after the network that are supported, in the order in which they must be."""
NO_CHANGE = "Dropout"
"""The module that changes nothing after training."""


class DenseModule(NamedTuple):
    """A module of sentence-transformers with a linear layer, which exported networks lack."""

    folder: Path
    """The folder of its files."""
    outputs: int
    """The number of its outputs by its config.json; 0 if that file is missing."""
    activation: str
    """The name of the class of its activation function."""
    residual: bool
    """Whether the input is added to the output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingFiles:
    """The contents of the files of a model directory that say how the model pools."""

    path: Path
    """The directory."""
    config: Json = field(default_factory=dict)
    """The members of config.json."""
    modules: list[str] | None = None
    """The class names in modules.json; None if the file is missing."""
    pooling: list[str] = field(default_factory=list)
    """The pooling modes that `pooling_source` sets, in the file's words; [] if the file is missing."""
    pooling_source: str = "1_Pooling/config.json"
    """The file that says how the model pools."""
    pools_prompts: bool = True
    """Whether the tokens of a prompt count in the pooled vector, or there are no prompts."""
    max_seq_length: int = 0
    """The most tokens of an input by sentence_bert_config.json; 0 if it sets none."""
    model_max_length: int = 0
    """The most tokens of an input by tokenizer_config.json; 0 if it sets none."""
    lower_case: bool = False
    """Whether texts are converted to lower case before they are tokenized."""
    prompts: dict[str, str] = field(default_factory=dict)
    """The texts that can be put before an input, by their names, such as "query"."""
    tokenizer_config: Json = field(default_factory=dict)
    """The members of tokenizer_config.json."""
    scored_tokens: list[int] = field(default_factory=list)
    """The token whose logit is the score of a language model that reranks, by its LogitScore module, after the token
    whose logit is subtracted, if there is one; [] without such a module."""
    dense: list[DenseModule] = field(default_factory=list)
    """The modules with linear layers in modules.json, in their order."""

    @property
    def names(self) -> str:
        """The names by which the model's family may be known, in lower case."""
        return f"{self.path.resolve().name} {self.config.get('_name_or_path', '')}".lower()

    @property
    def normalizes(self) -> bool | None:
        """Whether the last module in modules.json is a normalization; None if the file is missing."""
        return None if self.modules is None else "Normalize" in self.modules

    @property
    def keeps_tokens(self) -> bool:
        """Whether modules.json describes a late interaction model, with a vector for each token."""
        return self.modules is not None and "Dense" in self.modules and "Pooling" not in self.modules

    @property
    def unsupported(self) -> str:
        """The first module after the network that is not supported, or not at its place; "" if there is none."""
        left: tuple[str, ...] = AFTER_NETWORK
        for name in (self.modules or [])[1:]:
            if name not in left and name != NO_CHANGE:
                return name
            left = left[left.index(name) :] if name in left else left
        return ""

    def dense_after(self, output: str, *, each_token: bool) -> list[DenseModule]:
        """Returns the Dense modules that an exported network's output of this name lacks.

        Modules after pooling do not change vectors of each token.
        """
        lacks = not each_token or (output != "token_embeddings" and "Pooling" not in (self.modules or ()))
        return self.dense if lacks else []

    @property
    def labels(self) -> list[str]:
        """The names of the labels by id2label of config.json, in the order of their ids."""
        names = self.config.get("id2label")
        if not isinstance(names, dict):
            return []
        try:
            return [str(names[key]) for key in sorted(names, key=int)]
        except ValueError:
            return []


def read(path: Path) -> PoolingFiles:
    """Reads the files of the model directory at `path`. A file that is missing or damaged counts as empty."""
    if (file := model_file.of(path)) is not None:
        return _of_file(path, file)
    config = model_config.read(path)
    modules = _modules(path)
    pooling = _pooling(path, modules or [])
    bert = files.read_object(path / "sentence_bert_config.json")
    ours = files.read_object(path / "config_sentence_transformers.json")
    tokenizer = files.read_object(path / "tokenizer_config.json")
    prompts = _texts(config.get("task_instructions")) | _texts(ours.get("prompts"))
    return PoolingFiles(
        path=path,
        config=config,
        modules=None if modules is None else [kind.rpartition(".")[2] for kind, _ in modules],
        pooling=_modes(pooling),
        pools_prompts=pooling.get("include_prompt") is not False or not any(prompts.values()),
        max_seq_length=_count(bert.get("max_seq_length")),
        model_max_length=_count(tokenizer.get("model_max_length")),
        lower_case=bert.get("do_lower_case") is True,
        prompts=prompts,
        tokenizer_config=tokenizer,
        scored_tokens=_scored_tokens(path, modules or []),
        dense=[_dense(path, place) for kind, place in modules or [] if kind.endswith("Dense")],
    )


def _of_file(path: Path, file: model_file.ModelFile) -> PoolingFiles:
    found = file.pooling()
    return PoolingFiles(
        path=path,
        config=file.config(),
        pooling=[found.mode] if found.mode else [],
        pooling_source=f"the {path.suffix[1:].upper()} file",
        tokenizer_config=dict(found.tokens),
    )


def _modules(path: Path) -> list[tuple[str, str]] | None:
    """Returns the type and the path of each module in modules.json; None if the file is missing."""
    entries = files.read_or_none(path / "modules.json")
    if not isinstance(entries, list):
        return None
    return [(str(entry.get("type", "")), str(entry.get("path", ""))) for entry in entries if isinstance(entry, dict)]


def _folder(path: Path, place: str) -> Path | None:
    """Returns a folder that modules.json names; None if it is not below the model directory."""
    relative = Path(place)
    return None if relative.is_absolute() or ".." in relative.parts else path / relative


def _dense(path: Path, place: str) -> DenseModule:
    folder = _folder(path, place) or path / "Dense"
    found = files.read_object(folder / "config.json")
    activation = str(found.get("activation_function", "torch.nn.modules.activation.Tanh"))
    residual = found.get("use_residual") is True
    return DenseModule(folder, _count(found.get("out_features")), activation.rpartition(".")[2], residual)


def _pooling(path: Path, modules: list[tuple[str, str]]) -> Json:
    """Returns the settings of the Pooling module; empty if its file is missing."""
    place = _folder(path, next((where for name, where in modules if name.endswith("Pooling")), "1_Pooling"))
    return files.read_object(place / "config.json") if place is not None else {}


def _scored_tokens(path: Path, modules: list[tuple[str, str]]) -> list[int]:
    folder = _folder(path, next((place for kind, place in modules if kind.endswith("LogitScore")), "/"))
    found = files.read_object(folder / "config.json") if folder is not None else {}
    true, false = found.get("true_token_id"), found.get("false_token_id")
    return [one for one in (false, true) if type(one) is int] if type(true) is int else []


def _modes(settings: Json) -> list[str]:
    """Returns the pooling modes that the settings of a Pooling module name, the mean if they name none."""
    if "pooling_strategy" in settings:  # of SpladePooling
        how = settings["pooling_strategy"], settings.get("activation_function", "relu")
        return ["SPLADE"] if how == ("max", "relu") else ["SPLADE with " + " and ".join(map(str, how))]
    named = settings.get("pooling_mode")
    if named is None:
        return [mode for mode, _, flag in POOLING_MODES if settings.get(flag)] or ["MEAN"] * bool(settings)
    known = {name: mode for mode, name, _ in POOLING_MODES}
    return [known.get(str(name), str(name)) for name in (named if isinstance(named, list) else [named])]


def _count(value: Any) -> int:
    return int(value) if isinstance(value, int | float) and 0 < value < NO_LIMIT else 0


def _texts(value: Any) -> dict[str, str]:
    return {key: text for key, text in value.items() if isinstance(text, str)} if isinstance(value, dict) else {}
