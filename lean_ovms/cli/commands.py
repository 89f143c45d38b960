"""Running a command line: a command (pull, list, edit), or the server, after pulling its model if necessary.

Results go to stdout, as OVMS prints them; progress and errors to stderr. Heavy modules are imported on first use.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from .. import __version__
from ..composition import TEXT_GENERATION
from ..config import Config, listed
from ..engine.client import prestart
from ..errors import StartError, WrongOptions
from ..observability import logging as log
from ..repository import config_file, model_dir
from ..repository.gguf import is_gguf
from ..repository.graph_schema import FILE as GRAPH_FILE
from ..server import checks, exit_status
from ..util import resources
from ..util.files import read_text

logger = logging.getLogger("lean_ovms")

CONVERSION = ("weight_format", "extra_quantization_params")
"""Options of a conversion."""
FEWEST_FILES = 32
"""Open files of a server. With 24 the demo model is served; with 20 an import, the event loop or the engine fails."""


class Interrupted(BaseException):
    """SIGINT or SIGTERM arrived. Not an Exception, so that no handler of errors catches it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.status = exit_status.SIGNALLED + number


def run(config: Config) -> int:
    """Runs the command that the options name, or serves. Returns the exit status."""
    commands = [name for name in COMMANDS if config.value(name)]
    set_up_log(config, plain=bool(commands))
    try:
        _check(config, commands)
        config = with_repository(config)
        with _interruptible():
            if commands:
                COMMANDS[commands[0]](config)
                return _flush_stdout()
            config = available(config)
    except BrokenPipeError:  # the reader of stdout (head) has closed it
        if config.source_model:
            raise  # it may be the hub's connection
        return _flush_stdout()
    except Interrupted as interrupt:
        return _print_error("stopped; the same command goes on from here", interrupt.status)
    except WrongOptions as error:
        return _print_error(error, exit_status.USAGE)
    except StartError as error:
        if commands:
            return _print_error(error, exit_status.FAILED)
        return _print_error(f"cannot start: {error}", exit_status.of(error))
    return _serve(config)


def set_up_log(config: Config, *, plain: bool) -> None:
    """Sets up the log. plain: a person who waits for the end of a command reads it on a terminal, without times."""
    text = log.PLAIN if plain and config.log_format == "text" and sys.stderr.isatty() else ""
    log.setup(config.log_level, config.log_format, text=text)


def available(config: Config) -> Config:
    """Returns the options that serve the model: one of a hub is pulled, and one in a directory is prepared, as far as
    that has not been done. Raises StartError."""
    if config.source_model:
        config = with_repository(config)
        checks.checked(config)
        return pull(config)
    return _prepared(config) if config.model_path and not config.fake_engine else config


def _serve(config: Config) -> int:
    if resources.raise_open_files(FEWEST_FILES) < FEWEST_FILES:
        problem = f"cannot start: a server needs {FEWEST_FILES} open files, more than the limit (ulimit -n) allows"
        return _print_error(problem, exit_status.NEVER_SERVED)
    if not config.fake_engine:
        prestart.prestart()
    try:
        from ..server.run import run as serve

        return serve(config)
    finally:
        prestart.discard()


def with_repository(config: Config) -> Config:
    """Returns the options with the user's cache as the repository for models of a hub, unless another one is given."""
    if config.model_repository_path or not (config.source_model or config.pull or config.list_models):
        return config
    repository = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lean_ovms" / "models"
    try:
        repository.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartError(f"{repository}: {error.strerror}; give another --model_repository_path") from None
    return config.replace(model_repository_path=str(repository))


def _prepared(config: Config) -> Config:
    """Returns the options for a directory that can be served: a checkpoint is converted, and missing tokenizers are
    made. Raises StartError."""
    path = config.model_dir
    try:
        if not path.is_dir() or not model_dir.missing_in(path, config.task):
            given = [name for name in CONVERSION if config.value(name)]
            _require(not given, f"--{''.join(given[:1])} is for models that have to be converted")
            return config
        from ..hub.pull import prepare  # late: few models need it

        prestart.discard()
        found = prepare(path, config.task, config.weight_format, config.extra_quantization_params)
    except OSError:
        return config  # loading says what is wrong
    name = config.model_name or path.resolve().name
    return _served(config, {"model_path": str(found), "model_name": name}) if found != path else config


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGINT and SIGTERM raise Interrupted in the block. Process 1 of a container needs that: signals without a handler
    have no effect on it. The server has handlers of its own."""

    def stop(number: int, frame: object) -> None:
        raise Interrupted(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _flush_stdout() -> int:
    """Flushes stdout. Returns the exit status: a reader that has closed it (head) is no error, a full disk is."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python tries again at exit and reports that
        if not isinstance(error, BrokenPipeError):
            return _print_error(f"stdout: {error.strerror}", exit_status.FAILED)
    return exit_status.OK


def _print_error(message: object, status: int) -> int:
    print(f"lean_ovms: {message}", file=sys.stderr)
    return status


def _check(config: Config, commands: list[str]) -> None:
    """Raise WrongOptions for options that do not go together, as OVMS does."""
    if len(commands) > 1:
        raise WrongOptions(f"--{commands[0]} and --{commands[1]} exclude each other")
    command = commands[0] if commands else ""
    if config.source_model and (config.model_path or (config.config_path and command != "pull")):
        other = "model_path" if config.model_path else "config_path"
        raise WrongOptions(f"--source_model and --{other} exclude each other")
    if config.source_model and command and command != "pull":
        raise WrongOptions(f"--source_model and --{command} exclude each other")
    if command == "pull" or config.source_model:
        _require(config.source_model or config.model_name, "--pull needs --source_model ORGANISATION/NAME")
        from ..deployment.desired import check_task  # late: other commands do not need it

        check_task(config)
    elif command == "configure":
        _require(config.model_path, "--configure needs --model_path")
        _require(not config.model_name, "--configure and --model_name exclude each other: a graph holds no name")
    elif command and command != "list_models":
        _require(config.model_name, f"--{command} needs --model_name")
        _require(_config_file(config) is not None, f"--{command} needs --config_path")
    for name in ("gguf_filename", "weight_format", "extra_quantization_params", "draft_source_model", "vocoder"):
        converted = name in CONVERSION and config.model_path and not command
        allowed = (
            config.source_model
            or converted
            or command in (("pull", "configure") if name == "gguf_filename" else ("pull",))
        )
        _require(not config.given(name) or allowed, f"--{name} needs --source_model")


def _require(condition: object, message: str) -> None:
    if not condition:
        raise WrongOptions(message)


# --- pulling


def pull(config: Config) -> Config:
    """Pulls source_model to the repository. Returns the options that serve it from there. Raises StartError."""
    from ..hub import pull as hub_pull
    from ..hub.client import HubClient

    prestart.discard()  # a download takes minutes
    source = hub_pull.check_name(config.source_model or config.model_name)
    repository = Path(config.model_repository_path)
    target = repository / source
    open_hub = partial(HubClient.from_environ, f"lean_ovms/{__version__}")
    config = config.replace(gguf_filename=hub_pull.gguf_name(source, target, config.gguf_filename, open_hub))
    request = hub_pull.PullRequest(
        source=source,
        repository=repository,
        target=target,
        gguf=config.gguf_filename,
        overwrite=config.overwrite_models,
        weight_format=config.weight_format,
        extra=_conversion(config),
        task=config.task,
        bar=True,
    )
    hub_pull.pull(request, open_hub)
    draft = ""
    if source_of_draft := config.given("draft_source_model"):
        name = hub_pull.check_name(source_of_draft)
        draft = name.replace("/", "-")
        draft_request = replace(
            request, source=name, target=target / draft, gguf="", weight_format="", extra="", task=""
        )
        hub_pull.pull(draft_request, open_hub)
    return _write_graph(config, target, draft, name=config.model_name or source)


def _conversion(config: Config) -> str:
    """Returns the arguments of optimum-cli: those given, and the vocoder's."""
    given = config.extra_quantization_params
    if not config.vocoder:
        return given
    return f"{given} --model-kwargs {shlex.quote(json.dumps({'vocoder': config.vocoder}))}".strip()


def _write_graph(config: Config, directory: Path, draft: str, name: str) -> Config:
    """Writes the graph of these options into directory. Returns the options that serve it by that graph."""
    from ..repository import graph_writer
    from ..repository.task import detect
    from ..util import atomic_file

    gguf = config.gguf_filename
    found = config.task or detect(directory / gguf, config.composition)
    config = config.replace(task="" if found == TEXT_GENERATION.name else found)
    if graph_writer.graph_of(config) is None:
        logger.info("%s gets no %s: OVMS has no graph for the task %s", directory, GRAPH_FILE, config.task)
        return _served(config, {"model_path": str(directory), "model_name": name})
    if path_of_draft := config.given("draft_model_path"):
        draft = str(Path(path_of_draft).absolute())
    text = graph_writer.text(config, f"./{gguf}", draft, __version__)
    path = directory / GRAPH_FILE
    try:
        if path.exists() and read_text(path) != text:
            shutil.copyfile(path, path.with_suffix(".pbtxt.bak"))
            logger.info("%s is replaced by one from the options given; the old one is %s.bak", path, path.name)
        atomic_file.write(path, text)
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"{path} cannot be written: {error}") from None
    served = {"model_path": str(directory), "model_name": name, "task": ""}
    return _served(config, {**graph_writer.written_options(config), **served})


def _served(config: Config, changes: dict[str, Any]) -> Config:
    """Returns the options with these changes, and without those that say where a model comes from."""
    rest = {row.name: row.default for row in listed(config.without) if row.metadata["group"] == "repository"}
    return config.replace(**{**rest, **changes})


# --- commands


def _pull(config: Config) -> None:
    served = pull(config)
    name = config.source_model or config.model_name
    if sys.stdout.isatty():
        print(f"{name} is in {served.model_path}; lean_ovms run {name} starts a chat with it")
        return
    print(f"Model: {name} downloaded to: {served.model_path}")
    print(f"Graph: {GRAPH_FILE} created in: {served.model_path}")


def _list(config: Config) -> None:
    from ..repository.listing import servable

    found = servable(Path(config.model_repository_path))
    for path in found:
        print(path)
    if not found:
        print(f"lean_ovms: there is no model in {config.model_repository_path}", file=sys.stderr)


def _configure(config: Config) -> None:
    path = Path(config.model_path)
    if path.is_file() and is_gguf(path):
        config = config.replace(gguf_filename=path.name)
        path = path.parent
    elif config.gguf_filename:
        if not (path / config.gguf_filename).is_file():
            raise StartError(f"there is no {path / config.gguf_filename}")
    else:
        model_dir.check(path, config.task)
    _write_graph(config, path, "", "")
    print(f"Graph: {GRAPH_FILE} created in: {path}")


def _add(config: Config) -> None:
    from ..repository import config_editor

    file, path = _config_file(config), config.model_path
    assert file is not None
    if not path:
        _require(config.model_repository_path, "--add_to_config needs --model_path or --model_repository_path")
        path = config_editor.relative_path(file.parent, Path(config.model_repository_path) / config.model_name)
    if not (file.parent / path).exists():
        print(f"lean_ovms: there is nothing at {file.parent / path} yet", file=sys.stderr)
    changed = config_editor.add(file, config.model_name, path, config_editor.options_of(config))
    print(f"Config updated: {file}" if changed else f"{config.model_name} is in {file} already")


def _remove(config: Config) -> None:
    from ..repository import config_editor

    _require(not config.model_path, "--model_path and --remove_from_config exclude each other")
    file = _config_file(config)
    assert file is not None
    if config_editor.remove(file, config.model_name):
        print(f"Config updated: {file}")
    else:
        names = ", ".join(config_editor.names(file)) or "no models"
        print(f"{config.model_name} is not in {file}, which has {names}")


COMMANDS: dict[str, Callable[[Config], None]] = {
    "pull": _pull,
    "list_models": _list,
    "configure": _configure,
    "add_to_config": _add,
    "remove_from_config": _remove,
}
"""Options that are commands."""


def _config_file(config: Config) -> Path | None:
    """Returns the file to edit: that of the command, of --config_path, or of the repository."""
    given = config.add_to_config or config.remove_from_config
    named = config.config_path if given.lower() in ("true", "1") else given
    if not named:
        return Path(config.model_repository_path) / config_file.NAME if config.model_repository_path else None
    return config_file.location(named)
