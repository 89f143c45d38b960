"""Composes all options of the server. Each is declared once: with its name, type, default, bounds and help.

The flag of an option is --name (hyphens and underscores are the same), its environment variable LEAN_OVMS_NAME; both
and docs/options.md are derived from the declaration. A value out of bounds stops the start with a message that names
the option. --help imports this package, so it must stay light.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import Field, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from ..composition import TEXT_GENERATION, Composition, compose
from ..errors import StartError
from ..manifest import ADAPTER_INPUTS, ANSWERS_WITHOUT_MODEL, EngineRow, TaskRow
from .options import DEMO_MODEL, MODEL, EngineOptions, LimitOptions, ModelOptions, Options, ServerOptions

__all__ = ["DEMO_MODEL", "GROUPS", "LOCAL_PAGES", "PER_MODEL", "Config", "EngineConfig", "listed"]

LOCAL_PAGES = "localhost"
"""The entry of --allowed_origins for every page of the client's own machine, whatever its port, as in llama.cpp."""
_LOCAL_ORIGIN = re.compile(r"https?://(?:localhost|127\.0\.0\.1|\[::1\])(?::\d{1,5})?")
PER_MODEL = ("model", "engine")
"""The groups of options that can be set for each model in a config file; all others hold for the whole server."""
GROUPS = {
    "deployment": "which models are served, and when they are loaded",
    "repository": "where models come from: a hub, a directory or config.json",
    "model": "a model: its files, name and chat template, and what requests may ask of it",
    "engine": "the process that computes a model: device, memory, batching, speculative decoding",
    "listen": "addresses, TLS, the API key, CORS",
    "limits": "how much one request, one client and all clients together may use",
    "images": "images in requests",
    "audio": "audio files in requests",
    "realtime": "live audio, and WebSockets for responses",
    "responses": "stored responses and conversations",
    "tools": "MCP servers whose tools responses may use",
    "files": "uploaded files, and batches of requests",
    "behaviour": "format of answers, web page, logs, metrics",
}
"""The groups of options with their descriptions, in the order of --help and of the documentation."""


T = TypeVar("T", bound=Options)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class EngineConfig(ModelOptions, EngineOptions):
    """The options of an engine process. Options of the core are attributes; `of` returns those of a feature.

    Two objects are equal if all their options are.
    """

    def __init__(self, **values: Any) -> None:
        """Sets the given options, and all others to their defaults.

        Raises:
            StartError: A value is out of bounds, options are incompatible, or --without names an unknown feature.
            TypeError: A name is not that of an option.
        """
        composition = compose(values.get("without", ""))
        owners = composition.option_owners
        parts: dict[type[Options], dict[str, Any]] = {kind: {} for kind in composition.options if self._has(kind)}
        own: dict[str, Any] = {}
        for name, value in values.items():
            parts.get(owners.get(name, Options), own)[name] = value
        super().__init__(**own)
        made = {kind: kind(**given) if given else kind.defaults() for kind, given in parts.items()}
        object.__setattr__(self, "composition", composition)
        object.__setattr__(self, "_parts", made)
        object.__setattr__(self, "_makers", {})
        for part in self._parts.values():
            part.check(self)

    composition: ClassVar[Composition]
    """The features of the server, with their tables."""
    _parts: ClassVar[dict[type[Options], Options]]
    _makers: ClassVar[dict[str, Any]]

    @classmethod
    def _has(cls, kind: type[Options]) -> bool:
        """Returns whether the options of this class belong to this object."""
        return kind.in_engine

    def of(self, kind: type[T]) -> T:
        """Returns the options of a feature."""
        found = self._parts[kind]
        assert isinstance(found, kind)
        return found

    def value(self, name: str) -> Any:
        """Returns the value of an option of the core or of a feature. Raises AttributeError for an unknown name."""
        owner = self.composition.option_owners.get(name)
        return getattr(self if owner is None else self._parts[owner], name)

    def any_set(self, names: Iterable[str]) -> bool:
        """Returns whether any of these options differs from its default. Raises AttributeError for an unknown name."""
        return any(map(self.value, names))

    @property
    def engine_rows(self) -> list[EngineRow]:
        """The features' extensions of the engine that these options enable, in the order of their installation."""
        return [row for row in self.composition.engine_rows if self.any_set(row.options)]

    def part(self, seam: str) -> Any:
        """Imports and returns what makes the part at a seam of manifest.py; None if the options enable no such part."""
        if seam not in self._makers:  # requests ask for some
            self._makers[seam] = self.composition.part(seam) if self.wants(seam) else None
        return self._makers[seam]

    def wants(self, seam: str) -> bool:
        """Returns whether a feature supplies a part at this seam, and the options and the model's files enable it."""
        row = self.composition.parts.get(seam)
        if row is None or (row.options and not any(map(self._is_set, row.options))):
            return False
        models = self._models() if row.text else (self.model_dir,)
        return not row.file or any(
            _has_text(model / row.file, row.text) or self.composition.format_of(model) is not None for model in models
        )

    def _models(self) -> Iterator[Path]:
        """Yields the paths of the model and of other models that the options name, such as a draft model."""
        yield self.model_dir
        for kind, part in self._parts.items():
            values = (getattr(part, row.name) for row in fields(kind) if row.metadata["path"] == MODEL)
            yield from map(Path, filter(None, values))

    @property
    def without_model(self) -> bool:
        """Whether answers are produced without a model, so that none of its files is needed."""
        return self.wants(ANSWERS_WITHOUT_MODEL)

    def _is_set(self, name: str) -> bool:
        """Returns whether an option of this name exists and differs from its default."""
        owner = self.composition.option_owners.get(name, type(self))
        return self.given(name) not in (None, getattr(owner, name, None))

    def given(self, name: str) -> Any:
        """Returns the value of an option; None if it belongs to a feature that the server lacks."""
        owner = self.composition.option_owners.get(name)
        return getattr(self, name, None) if owner is None else getattr(self._parts[owner], name)

    @property
    def model_file(self) -> str:
        """Which file to use if a directory has several models in single files; empty if no option says so."""
        return next((name for row in self.composition.formats if (name := self.value(row.option))), "")

    def with_model_file(self: C, name: str) -> C:
        """Returns the options with another `model_file`. Options of features that the server lacks are not set."""
        suffix = Path(name).suffix
        rows = self.composition.formats
        return self.replace(**{row.option: name if suffix == row.suffix else "" for row in rows})

    def values(self) -> dict[str, Any]:
        """Returns the values of all options by name."""
        found = {row.name: getattr(self, row.name) for row in fields(self)}
        for part in self._parts.values():
            found |= {row.name: getattr(part, row.name) for row in fields(part)}
        return found

    def replace(self: C, **changes: Any) -> C:
        """Returns a copy with some options changed. Raises StartError as the constructor does."""
        return type(self)(**self.values() | changes)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.values() == self.values()

    def __hash__(self) -> int:
        return hash(tuple(self.values().values()))

    def __repr__(self) -> str:
        private = {
            row.name for part in (self, *self._parts.values()) for row in fields(part) if row.metadata["private"]
        }
        shown = (f"{name}={value!r}" for name, value in self.values().items() if name not in private)
        return f"{type(self).__name__}({', '.join(shown)})"


C = TypeVar("C", bound=EngineConfig)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Config(EngineConfig, LimitOptions, ServerOptions):
    """All options of a server. Build it with keywords, or from a command line with cli.arguments.parse."""

    def __init__(self, **values: Any) -> None:
        """Sets the given options, and checks those of the core together. Raises StartError."""
        super().__init__(**values)
        served = self.composition.task_names
        if self.task and self.task not in served:
            raise StartError(f"--task must be one of: {', '.join(served)}, not {self.task}")
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            raise StartError(f"--root_path must begin with a slash and not end with one, not {self.root_path!r}")
        if self.reuse_port and self.unix_socket:
            raise StartError("--reuse_port cannot be used together with --unix_socket")

    @classmethod
    def _has(cls, kind: type[Options]) -> bool:
        return True

    def engine_features(self, task: TaskRow) -> list[str]:
        """Returns the names of the features that the engine process needs for a model of this task."""
        features = self.composition.features
        suffixes = {model.suffix for model in self._models()}
        needed = {
            one.name
            for one in features
            if task.name in [row.name for row in one.tasks]
            or any(row.suffix in suffixes or (row.adapter and self.wants(ADAPTER_INPUTS)) for row in one.formats)
            or (one.backend and task is TEXT_GENERATION)
            or (one.engine is not None and self.any_set(one.engine.options))
            or any(row.make.startswith("child.") and self.wants(row.seam) for row in one.parts)
        }
        while more := {name for one in features if one.name in needed for name in one.needs} - needed:
            needed |= more
        return [one.name for one in features if one.name in needed]

    def for_engine(self, features: Collection[str]) -> dict[str, Any]:
        """Returns an EngineConfig's values with these features as JSON for its process, without private options."""
        found = {row.name: getattr(self, row.name) for row in fields(EngineConfig) if row.name != "without"}
        for one in self.composition.features:
            if one.name in features and one.options is not None and one.options.in_engine:
                found |= {row.name: getattr(self._parts[one.options], row.name) for row in fields(one.options)}
        return found

    @property
    def model_list(self) -> str:
        """The path of a file that lists the models to serve; empty if there is none."""
        row = self.composition.settings
        return "" if row is None else str(self.value(row.option))

    @property
    def origins(self) -> list[str]:
        """The entries of allowed_origins."""
        return [origin.strip() for origin in self.allowed_origins.split(",")]

    @property
    def hosts(self) -> list[str]:
        """The entries of allowed_hosts, in lower case."""
        return [name.strip().lower() for name in self.allowed_hosts.split(",") if name.strip()]

    def allows_origin(self, origin: str) -> bool:
        """Returns whether an origin is allowed by name, or as a page of the client's own machine."""
        if origin == LOCAL_PAGES:
            return False
        return origin in self.origins or (LOCAL_PAGES in self.origins and bool(_LOCAL_ORIGIN.fullmatch(origin)))

    def cors_headers(self, origin: str = "") -> list[tuple[str, str]]:
        """Returns the CORS headers, without which a browser hides a response from the page.

        If several origins are allowed, the header has the page's origin, as it can hold only one.
        """
        named = [origin for origin in self.origins if origin != LOCAL_PAGES]
        value = origin if self.allows_origin(origin) else "".join(named[:1])
        headers = [("Access-Control-Allow-Origin", value)] if value else []
        headers += [
            ("Access-Control-Allow-Methods", self.allowed_methods),
            ("Access-Control-Allow-Headers", self.allowed_headers),
            ("Access-Control-Expose-Headers", "X-Request-Id, Warning, Retry-After"),
        ]
        if self.origins != named[:1]:
            headers.append(("Vary", "Origin"))
        return headers + ([("Access-Control-Allow-Credentials", "true")] if self.allow_credentials else [])


def _has_text(file: Path, text: str) -> bool:
    """Returns whether a file exists and contains this text. Every file contains the empty text."""
    try:
        return file.is_file() and (not text or text in file.read_text("utf-8", "replace"))
    except OSError:  # it is reported by those who need the file
        return False


@cache
def listed(without: str = "") -> tuple[Field[Any], ...]:
    """Returns all options of a Config that lacks some features, group by group."""
    rows = [*fields(Config), *(row for kind in compose(without).options for row in fields(kind))]
    return tuple(sorted(rows, key=lambda row: list(GROUPS).index(row.metadata["group"])))


def shown(without: str = "") -> list[Field[Any]]:
    """Returns the options that have a flag, which are all but the secret ones."""
    return [row for row in listed(without) if not row.metadata["secret"]]
