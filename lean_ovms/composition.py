"""Combines the manifests of a server's features into flat tables, once, before options are read.

A server that omits features (--without) has a different composition. Nothing in this module runs per request.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from . import features
from .errors import RequestError, StartError, error_response
from .manifest import (
    BackendRow,
    BodyRow,
    Command,
    Companion,
    ContentRow,
    DemoModel,
    EngineRow,
    ErrorForm,
    Feature,
    FormatRow,
    HelperRow,
    Metric,
    ModelRow,
    ObserverRow,
    PanelRow,
    ParserRow,
    PartRow,
    Route,
    Row,
    SettingsRow,
    StartRow,
    TaskRow,
    named,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .types import Response
    from .util.files import ModelFiles

R = TypeVar("R", bound=Row | Route | Command)

CHATS = ("InternVLChatModel",)
"""Architectures that generate text, and whose names are not like those of others that do."""


def _generates_text(files: ModelFiles) -> bool:
    return files.is_of("ForCausalLM", "ForConditionalGeneration", "LMHeadModel") or any(
        name in CHATS for name in files.architectures
    )


TEXT_GENERATION = TaskRow(
    name="text_generation",
    recognizes=_generates_text,
    model="models.text_model:TextModel",
    loader="engine.worker.text_model:load",
    package="lean_ovms",
)
"""The task of the core itself."""


@cache
def manifests(names: tuple[str, ...] | None = None) -> tuple[Feature, ...]:
    """Returns the manifests of the named features, or of all that this process knows, in their order."""
    names = features.NAMES if names is None else names
    return tuple(importlib.import_module(f"{features.__name__}.{name}.feature").FEATURE for name in names)


def keep_only(names: Iterable[str]) -> None:
    """Restricts this process to the features of Config.engine_features; called once, before anything is composed."""
    features.NAMES = tuple(names)
    manifests.cache_clear()
    compose.cache_clear()


@cache
def compose(without: str = "") -> Composition:
    """Returns the composition of all features except those in `without`, and those that need one of them.

    The names are separated by commas or blanks. Raises StartError if one is unknown, or cannot be left out.
    """
    found = manifests()
    taken_in = {name: one.name for one in found for name in one.formerly}
    names = {taken_in.get(name, name) for name in without.replace(",", " ").split()}
    if unknown := sorted(names - {one.name for one in found}):
        known = ", ".join(one.name for one in found if not one.essential)
        raise StartError(f"--without {unknown[0]}: there is no such feature; the features are {known}")
    if essential := [one.name for one in found if one.essential and one.name in names]:
        raise StartError(f"--without {essential[0]}: this feature cannot be left out")
    reasons = dict.fromkeys(names, "left out by --without")
    while more := [one for one in found if one.name not in reasons and not reasons.keys().isdisjoint(one.needs)]:
        for one in more:
            needed = next(name for name in one.needs if name in reasons)
            reasons[one.name] = f"it needs {needed}, which is left out"
    return Composition(tuple(one for one in found if one.name not in reasons), reasons)


@dataclass(frozen=True, eq=False)
class Composition:
    """A set of features, and the tables made of the rows in their manifests."""

    features: tuple[Feature, ...]
    """The features that the server has."""
    left_out: dict[str, str]
    """The reasons why the other features are left out, by name."""

    @cached_property
    def _names(self) -> set[str]:
        """The names of the features, and the empty name, to which options with an empty `beside` refer."""
        return {"", *(one.name for one in self.features)}

    @cached_property
    def options(self) -> tuple[type[Any], ...]:
        """The option classes of the features, and of the libraries that they use."""
        kinds = (kind for one in self.features for kind in (*one.libraries, one.options))
        return tuple(dict.fromkeys(kind for kind in kinds if kind is not None and kind.beside in self._names))

    @cached_property
    def option_owners(self) -> dict[str, type[Any]]:
        """The option class of each option of a feature. Raises StartError if two features declare the same name."""
        owners: dict[str, type[Any]] = {}
        for kind in self.options:
            for row in fields(kind):
                if row.name in owners:
                    other = owners[row.name].__name__
                    raise StartError(f"the option {row.name} is declared twice, by {other} and {kind.__name__}")
                owners[row.name] = kind
        return owners

    @cached_property
    def flags(self) -> tuple[tuple[str, Path], ...]:
        """The files in which features list flags of other servers, each with the package of the feature."""
        folder = Path(features.__file__).parent
        return tuple((one.package, folder / one.name / one.flags) for one in self.features if one.flags)

    @cached_property
    def commands(self) -> tuple[Command, ...]:
        """The commands of the features."""
        return self._rows(lambda one: one.commands)

    @cached_property
    def commands_of_options(self) -> dict[str, Command]:
        """The commands that an option can ask for, by the name of the option."""
        return {row.option: row for row in self.commands if row.option}

    @cached_property
    def fetching_commands(self) -> dict[str, Command]:
        """The commands that fetch a model, by the option that asks for each."""
        return {name: row for name, row in self.commands_of_options.items() if row.fetches}

    @cached_property
    def companions(self) -> tuple[Companion, ...]:
        """The additional models that are pulled together with a model."""
        return tuple(row for one in self.features for row in one.companions)

    @cached_property
    def panels(self) -> tuple[PanelRow, ...]:
        """The panels of the browser page, in their order."""
        return tuple(sorted(self._rows(lambda one: (one.panel,)), key=lambda row: row.place))

    def _rows(self, of: Callable[[Feature], Iterable[R | None]]) -> tuple[R, ...]:
        """Returns the rows that the features have in one table, each with its package set."""
        return tuple(replace(row, package=one.package) for one in self.features for row in of(one) if row is not None)

    @cached_property
    def routes(self) -> tuple[Route, ...]:
        """The routes of the features."""
        return self._rows(lambda one: [row for row in one.routes if row.beside in self._names])

    @cached_property
    def tasks(self) -> tuple[TaskRow, ...]:
        """The tasks of the features, and text generation, in the order in which they look at a model directory."""
        return (*self._rows(lambda one: one.tasks), TEXT_GENERATION)

    @cached_property
    def task_names(self) -> tuple[str, ...]:
        """The names of the tasks, text generation first."""
        return tuple(row.name for row in (self.tasks[-1], *self.tasks[:-1]))

    @cached_property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics of the features."""
        return tuple(row for one in self.features for row in one.metrics)

    @cached_property
    def samplers(self) -> tuple[Any, ...]:
        """The imported functions that return values of features' metrics at a scrape."""
        return tuple(named(one.package, one.samples) for one in self.features if one.samples)

    def serving(self, models: str) -> list[str]:
        """Returns the paths with API version of the routes that serve models whose `routed_as` is this kind."""
        found = [row for row in self.routes if models and row.serves == models]
        return [row.path if row.path.startswith("/v") else row.bases[0] + row.path for row in found]

    @cached_property
    def engine_rows(self) -> tuple[EngineRow, ...]:
        """The features' extensions of the paged engine, in the order in which they are installed."""
        return self._rows(lambda one: (one.engine,))

    @cached_property
    def parts(self) -> dict[str, PartRow]:
        """The parts that features supply, by seam. Raises StartError if two features supply the same part."""
        found: dict[str, PartRow] = {}
        for one in self.features:
            for row in one.parts:
                if row.seam in found:
                    raise StartError(f"{found[row.seam].package} and {one.package} both supply the {row.seam}")
                found[row.seam] = replace(row, package=one.package)
        return found

    def part(self, seam: str) -> Any:
        """Imports and returns what creates the part at a seam; None if no feature supplies it."""
        row = self.parts.get(seam)
        return None if row is None else named(row.package, row.make)

    @cached_property
    def contents(self) -> dict[str, ContentRow]:
        """The readers of message content other than text, by its type. Raises StartError if two read the same type."""
        found: dict[str, ContentRow] = {}
        for row in self._rows(lambda one: one.contents):
            for kind in row.kinds:
                if kind in found:
                    raise StartError(f"{found[kind].package} and {row.package} both read content parts of type {kind}")
                found[kind] = row
        return found

    @cached_property
    def parsers(self) -> tuple[ParserRow, ...]:
        """The model families whose tool calls and reasoning the features can parse."""
        return self._rows(lambda one: one.parsers)

    def prepare_requests(self) -> None:
        """Builds the tables for reading generation requests, so that the first request does not wait for them."""
        _ = self.contents, self.bodies, self.harmless, self.changing_lines

    @cached_property
    def bodies(self) -> tuple[BodyRow, ...]:
        """The fields that clients of other APIs send to OpenAI's endpoints."""
        return self._rows(lambda one: (one.body,))

    @cached_property
    def harmless(self) -> frozenset[str]:
        """The fields of clients that never change an answer."""
        return frozenset(name for one in self.features for name in one.harmless)

    @cached_property
    def changing_lines(self) -> tuple[str, ...]:
        """The beginnings of lines that are removed from the start of system texts."""
        return tuple(line for one in self.features for line in one.changing_lines)

    @cached_property
    def helpers(self) -> tuple[HelperRow, ...]:
        """The helper models that work for models that read and write text."""
        return tuple(row for one in self.features for row in one.helpers)

    @cached_property
    def backend(self) -> BackendRow | None:
        """The feature's pipelines that can replace the paged engine, or None. Raises StartError if there are two."""
        return self._only("pipelines", lambda one: one.backend)

    @cached_property
    def formats(self) -> tuple[FormatRow, ...]:
        """The file formats that hold a whole model in one file."""
        return self._rows(lambda one: one.formats)

    @cached_property
    def settings(self) -> SettingsRow | None:
        """The files that hold options of models, or None. Raises StartError if two features read such files."""
        return self._only("files with options of models", lambda one: one.settings)

    def _only(self, what: str, of: Callable[[Feature], R | None]) -> R | None:
        """Returns the only row that `of` returns for a feature, or None. Raises StartError, naming `what`, for two."""
        found = self._rows(lambda one: (of(one),))
        if len(found) > 1:
            raise StartError(
                f"{' and '.join(row.package for row in found)} both declare {what}; a server needs exactly one"
            )
        return found[0] if found else None

    def format_of(self, path: PurePath) -> FormatRow | None:
        """Returns the format of a file, according to its name; None if it is not the file of a model."""
        return next((row for row in self.formats if path.suffix == row.suffix), None)

    @cached_property
    def a_model_file(self) -> str:
        """A phrase for each format of model files, for messages: "a NAME file, "; empty if there are no formats."""
        return "".join(f"a {row.name} file, " for row in self.formats)

    def require_format(self, path: Path) -> None:
        """Raises StartError if a file has a format that only an omitted feature reads."""
        row = compose().format_of(path)
        if row is not None and self.format_of(path) is None:
            feature = row.package.rpartition(".")[2]
            raise StartError(
                f"{path} cannot be served: the feature {feature}, which reads {row.name} files, is off: "
                f"{self.left_out[feature]}"
            )

    @cached_property
    def start_rows(self) -> tuple[StartRow, ...]:
        """The features' work during the start of a server, in their order."""
        return self._rows(lambda one: (one.start,))

    @cached_property
    def model_rows(self) -> tuple[ModelRow, ...]:
        """The features' work for a model before requests may use it."""
        return self._rows(lambda one: (one.model,))

    @cached_property
    def observers(self) -> tuple[ObserverRow, ...]:
        """The features' observers of request records."""
        found = [(one.observer, one) for one in self.features if one.observer is not None]
        return tuple(replace(row, package=one.package, extra=one.extra) for row, one in found)

    @cached_property
    def ports(self) -> tuple[str, ...]:
        """The options that set additional ports on which the server listens."""
        return tuple(name for one in self.features for name in one.ports)

    @cached_property
    def error_forms(self) -> ErrorForms:
        """The features' forms of error responses."""
        return ErrorForms(self._rows(lambda one: one.error_forms))

    @cached_property
    def demos(self) -> tuple[DemoModel, ...]:
        """The small models that features include for a first try."""
        return self._rows(lambda one: one.demos)

    @cached_property
    def keywords(self) -> dict[str, str]:
        """The options that keyword arguments of AsyncLLM turn on, by keyword."""
        return {name: option for one in self.features for name, option in one.keywords.items()}

    def method(self, name: str) -> Any:
        """Imports and returns the implementation of a method of AsyncLLM. Raises StartError if no feature has it."""
        for one in self.features:
            if name in one.methods:
                return named(one.package, one.methods[name])
        raise StartError(f"no feature of this program provides the method {name}")

    def task(self, name: str) -> TaskRow:
        """Returns the task of this name, or text generation for an empty name. Raises KeyError for another name."""
        return {row.name: row for row in self.tasks}[name or TEXT_GENERATION.name]


def records_of(*rows: TaskRow | EngineRow) -> list[type[Any]]:
    """Returns the classes of the records that only these tasks and features send, importing their modules."""
    modules = [importlib.import_module(f"{row.package}.{row.records}") for row in rows if row.records]
    return [
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__
    ]


# --- errors, in the form that the client of a request reads: that of a feature's API, or OpenAI's


class RequestStart(Protocol):
    """The parts of a request that decide the form of its error response."""

    @property
    def path(self) -> str: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


def below_root(path: str, root: str) -> str:
    """Returns a path without the prefix --root_path, if it has it."""
    return path.removeprefix(root) if root and path.startswith(root + "/") else path


class ErrorForms:
    """The forms of error responses that a server has besides OpenAI's."""

    def __init__(self, rows: Iterable[ErrorForm] = (), root: str = "") -> None:
        """Keeps the forms of errors.

        Args:
            rows: The forms, with the paths to which they apply.
            root: The server's --root_path, a possible prefix of request paths.
        """
        self.rows = tuple(rows)
        self._root = root

    def below(self, root: str) -> ErrorForms:
        """Returns the same forms for a server with this --root_path."""
        return ErrorForms(self.rows, root)

    def of(self, request: RequestStart) -> ErrorForm | None:
        """Returns the form that a request's client expects, by path or a typical header; None for OpenAI's."""
        path = below_root(request.path, self._root) + "/"
        for row in self.rows:
            if path.startswith(row.paths) or (row.header and row.header in request.headers):
                return row
        return None

    def response(
        self,
        error: RequestError,
        headers: Iterable[tuple[str, str]] = (),
        *,
        request: RequestStart | None,
        request_id: str = "",
    ) -> Response:
        """Returns the JSON response for an error, in the form that the client expects.

        Args:
            error: The error.
            headers: Headers to send besides the error's own.
            request: The request; None if it could not be read, which selects OpenAI's form.
            request_id: The id of the request, for forms that show it.
        """
        response = error_response(error, headers)
        if request is not None and (row := self.of(request)) is not None:
            response.status = row.statuses.get(error.status, error.status)
            body: Mapping[str, Any] = named(row.package, row.body)(error, request_id)
            response.body = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        return response


OPENAI_ONLY = ErrorForms()
"""No form but OpenAI's."""
