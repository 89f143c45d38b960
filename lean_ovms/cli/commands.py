"""What a command line asks for: a command that ends (pull, list, edit), or serving, perhaps of a model pulled before.

Results go to stdout, as OVMS prints them; how it goes, and why not, to stderr. Imports nothing heavy before it is
needed.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from .. import __version__
from ..config import PER_MODEL, Config
from ..engine.client import prestart
from ..errors import StartError
from ..observability import logging as log
from ..repository import model_dir
from ..repository.graph import FILE as GRAPH_FILE

logger = logging.getLogger("lean_ovms")

DONE, FAILED, WRONG, NEVER_SERVED = 0, 1, 2, 3
"""Exit statuses. FAILED: a command was not carried out, or pulling a model to serve failed for a reason that may pass
(the network, a busy hub): a supervisor may try again. NEVER_SERVED: it should not."""

CONFIG_FILE = "config.json"
PLACES = ("model_name", "model_path")


class WrongOptions(StartError):
    """Options that do not go together."""


class Stopped(BaseException):
    """A signal came. No error, so nothing on the way takes it for one."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.status = 128 + number


def run(config: Config) -> int:
    """Do what the options ask for; the exit status."""
    log.setup(config.log_level, config.log_format)
    try:
        asked = [name for name in COMMANDS if getattr(config, name)]
        _check(config, asked)
        with _stoppable():
            if asked:
                COMMANDS[asked[0]](config)
                return _told()
            if config.source_model:
                config = _pulled_before_serving(config)
    except BrokenPipeError:  # whoever reads the list has enough
        if config.source_model:
            raise  # it may as well be the hub's
        return _told()
    except Stopped as stop:
        return _say("stopped; the same command goes on from here", stop.status)
    except WrongOptions as error:
        return _say(error, WRONG)
    except CannotStart as error:
        return _say(f"cannot start: {error}", error.status)
    except StartError as error:
        return _say(error, FAILED)
    if not config.fake_engine:
        prestart.prestart()
    try:
        from ..server.run import run as serve

        return serve(config)
    finally:
        prestart.discard()


class CannotStart(StartError):
    """What should be served could not be pulled."""

    def __init__(self, error: StartError) -> None:
        super().__init__(str(error))
        self.status = FAILED if getattr(error, "temporary", False) else NEVER_SERVED


def _pulled_before_serving(config: Config) -> Config:
    try:
        return pulled(config)
    except StartError as error:
        raise CannotStart(error) from None


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGINT and SIGTERM end what is done in here, also for the first process of a container, whose signals have no
    effect unless they are handled. Serving has handlers of its own."""

    def stop(number: int, frame: object) -> None:
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _told() -> int:
    """Whether stdout took the result. A reader that has enough (head) is no error; a full disk is."""
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python tries again, and says so, at its end
        return DONE if isinstance(error, BrokenPipeError) else _say(f"stdout: {error.strerror}", FAILED)
    return DONE


def _say(what: object, status: int) -> int:
    print(f"lean_ovms: {what}", file=sys.stderr)
    return status


def _check(config: Config, asked: list[str]) -> None:
    """Raise WrongOptions for what does not go together, as OVMS does."""
    if len(asked) > 1:
        raise WrongOptions(f"--{asked[0]} and --{asked[1]} exclude each other")
    command = asked[0] if asked else ""
    if config.source_model and (config.model_path or (config.config_path and command != "pull")):
        other = "model_path" if config.model_path else "config_path"
        raise WrongOptions(f"--source_model and --{other} exclude each other")
    if config.source_model and command and command != "pull":
        raise WrongOptions(f"--source_model and --{command} exclude each other")
    if command == "pull" or config.source_model:
        _need(config.source_model or config.model_name, "--pull needs --source_model")
        _need(config.model_repository_path, "pulling needs --model_repository_path (or OVMS_MODEL_REPOSITORY_PATH)")
    elif command == "list_models":
        _need(config.model_repository_path, "--list_models needs --model_repository_path")
    elif command == "configure":
        _need(config.model_path, "--configure needs --model_path")
        _need(not config.model_name, "--configure and --model_name exclude each other: a graph holds no name")
    elif command:
        _need(config.model_name, f"--{command} needs --model_name")
        _need(_config_file(config) is not None, f"--{command} needs --config_path")
    for name in ("gguf_filename", "weight_format", "extra_quantization_params", "draft_source_model"):
        allowed = config.source_model or command in (("pull", "configure") if name == "gguf_filename" else ("pull",))
        _need(not getattr(config, name) or allowed, f"--{name} needs --source_model")


def _need(given: object, otherwise: str) -> None:
    if not given:
        raise WrongOptions(otherwise)


# --- pulling


def pulled(config: Config) -> Config:
    """Options that serve source_model from the repository, where it is from now on. Raises StartError."""
    from ..hub.pull import PullRequest, check_name, pull

    source = check_name(config.source_model or config.model_name)
    repository = Path(config.model_repository_path)
    target = repository / source
    order = PullRequest(
        source=source,
        repository=repository,
        target=target,
        gguf=config.gguf_filename,
        overwrite=config.overwrite_models,
        weight_format=config.weight_format,
        extra=config.extra_quantization_params,
    )
    pull(order, _hub)
    draft = ""
    if config.draft_source_model:
        name = check_name(config.draft_source_model)
        draft = name.replace("/", "-")
        pull(replace(order, source=name, target=target / draft, gguf="", weight_format="", extra=""), _hub)
    return _configured(config, target, draft, name=config.model_name or source)


def _hub() -> Any:
    """The hub of the environment. OVMS's names for how often to try again are understood."""
    from ..hub.client import Hub, Patience

    patience = Patience()
    try:
        patience = Patience(
            attempts=int(os.environ.get("GIT_LFS_RESUME_ATTEMPTS") or patience.attempts),
            interval_s=float(os.environ.get("GIT_LFS_RESUME_INTERVAL_SECONDS") or patience.interval_s),
        )
    except ValueError:
        raise StartError("GIT_LFS_RESUME_ATTEMPTS and GIT_LFS_RESUME_INTERVAL_SECONDS must be numbers") from None
    return Hub(os.environ.get("HF_ENDPOINT", ""), patience, agent=f"lean_ovms/{__version__}")


def _configured(config: Config, directory: Path, draft: str, name: str) -> Config:
    """Options that serve directory by the graph that is written into it from these."""
    from ..repository import atomic_file, graph_writer

    gguf = config.gguf_filename
    if config.draft_model_path:
        draft = str(Path(config.draft_model_path).absolute())
    text = graph_writer.text(config, f"./{gguf}", draft, __version__)
    path = directory / GRAPH_FILE
    try:
        if path.exists() and path.read_text("utf-8") != text:
            shutil.copyfile(path, path.with_suffix(".pbtxt.bak"))
            logger.info("%s is written anew from the options given; what it was is in %s.bak", path, path.name)
        atomic_file.write(path, text)
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"{path} cannot be written: {error}") from None
    rest = {row.name: row.default for row in fields(config) if row.metadata["group"] == "repository"}
    served = {"model_path": str(directory), "model_name": name, "task": ""}
    return replace(config, **{**rest, **graph_writer.defaulted(config), **served})


# --- commands


def _pull(config: Config) -> None:
    served = pulled(config)
    print(f"Model: {config.source_model or config.model_name} downloaded to: {served.model_path}")
    print(f"Graph: {GRAPH_FILE} created in: {served.model_path}")


def _list(config: Config) -> None:
    from ..repository.listing import servable

    for path in servable(Path(config.model_repository_path)):
        print(path)


def _configure(config: Config) -> None:
    path = Path(config.model_path)
    if path.is_file() and path.suffix == ".gguf":
        config = replace(config, gguf_filename=path.name)
        path = path.parent
    elif config.gguf_filename:
        if not (path / config.gguf_filename).is_file():
            raise StartError(f"there is no {path / config.gguf_filename}")
    else:
        model_dir.check(path)
    _configured(config, path, "", "")
    print(f"Graph: {GRAPH_FILE} created in: {path}")


def _add(config: Config) -> None:
    from ..repository import config_editor

    file, path = _config_file(config), config.model_path
    assert file is not None
    if not path:
        _need(config.model_repository_path, "--add_to_config needs --model_path or --model_repository_path")
        path = _seen_from(file.parent, Path(config.model_repository_path) / config.model_name)
    if not (file.parent / path).exists():
        print(f"lean_ovms: there is nothing at {file.parent / path} yet", file=sys.stderr)
    changed = config_editor.add(file, config.model_name, path, _own_options(config))
    print(f"Config updated: {file}" if changed else f"{config.model_name} is in {file} already")


def _remove(config: Config) -> None:
    from ..repository import config_editor

    _need(not config.model_path, "--model_path and --remove_from_config exclude each other")
    file = _config_file(config)
    assert file is not None
    if config_editor.remove(file, config.model_name):
        print(f"Config updated: {file}")
    else:
        there = ", ".join(config_editor.names(file)) or "no models"
        print(f"{config.model_name} is not in {file}, which has {there}")


COMMANDS: dict[str, Callable[[Config], None]] = {
    "pull": _pull,
    "list_models": _list,
    "configure": _configure,
    "add_to_config": _add,
    "remove_from_config": _remove,
}
"""Options that are commands."""


def _config_file(config: Config) -> Path | None:
    """The file that a command is about: named by the command, by --config_path, or the one of the repository."""
    given = config.add_to_config or config.remove_from_config
    named = config.config_path if given.lower() in ("true", "1") else given
    if not named:
        return Path(config.model_repository_path) / CONFIG_FILE if config.model_repository_path else None
    path = Path(named)
    return path / CONFIG_FILE if path.is_dir() else path


def _seen_from(directory: Path, path: Path) -> str:
    """path as a config file in directory should have it: relative if it is below, so that both may move together."""
    whole, base = path.absolute(), directory.absolute()
    return str(whole.relative_to(base)) if whole.is_relative_to(base) else str(whole)


def _own_options(config: Config) -> dict[str, Any]:
    """The model's own options that differ from the defaults; JSON texts as objects, as OVMS writes them."""
    found: dict[str, Any] = {}
    for row in fields(config):
        value = getattr(config, row.name)
        if row.metadata["group"] in PER_MODEL and row.name not in PLACES and value != row.default:
            found[row.name] = _as_object(value) if row.name.endswith("_config") else value
    return found


def _as_object(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
