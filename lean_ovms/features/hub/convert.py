"""Converts checkpoints of other frameworks with the tools of optimum-intel, if they are installed.

The tools run in separate processes, since they import torch and patch it, which must not affect the server.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from ...composition import compose
from ...repository.model_config import TOKENIZERS
from ...repository.model_dir import missing_in
from .client import PullError

log = logging.getLogger("lean_ovms.hub")

DEFAULT_WEIGHTS = "int8"
"""The default weight format, as in OVMS: half the size of fp16, with hardly a loss."""


def available() -> bool:
    """Returns whether optimum-cli is installed."""
    return find_program("optimum-cli") is not None


def convert(repo: str, directory: Path, weight_format: str, extra: str, *, task: str = "") -> None:
    """Exports a model of the hub to OpenVINO's format with optimum-cli.

    Code in the repository runs only if `extra` contains --trust-remote-code, which OVMS always sets.

    Args:
        repo: The name of the model, organisation/name.
        directory: The directory for the files, which must not exist.
        weight_format: The format of the weights, such as "int4"; "" for int8.
        extra: Further arguments of optimum-cli, quoted as for a shell.
        task: The task of the model by its name in this server; "" if optimum-cli detects it.

    Raises:
        PullError: The arguments cannot be read, or the export fails.
    """
    try:
        more = shlex.split(extra)
    except ValueError as error:
        raise PullError(f"--extra_quantization_params {extra!r}: {error}") from None
    if (name := compose().task(task).exported_as) and "--task" not in more:
        more = ["--task", name, *more]
    weights = ["--weight-format", weight_format or DEFAULT_WEIGHTS]
    _run("optimum-cli", ["export", "openvino", "--model", repo, *weights, *more, str(directory)])
    lacking = missing_in(directory, task) if directory.is_dir() else []
    if any(name in lacking for name in TOKENIZERS) and find_program("convert_tokenizer"):
        _run("convert_tokenizer", [repo, "--with-detokenizer", "-o", str(directory)])


def make_tokenizers(directory: Path) -> None:
    """Converts the tokenizer.json of a model to OpenVINO's tokenizers. Raises PullError."""
    try:
        with TemporaryDirectory(dir=directory, prefix=".tokenizers-") as made:
            _run("convert_tokenizer", [str(directory), "--with-detokenizer", "-o", made])
            for file in sorted(Path(made).iterdir()):
                os.replace(file, directory / file.name)
    except OSError as error:
        raise PullError(f"{directory} has no tokenizers, and they cannot be created: {error.strerror}") from None


def _run(name: str, arguments: list[str]) -> None:
    tool = find_program(name)
    assert tool is not None
    log.info("%s %s", name, shlex.join(arguments))
    try:
        done = subprocess.run([tool, *arguments], stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), check=False)  # noqa: S603
    except OSError as error:
        raise PullError(f"{name} cannot be run: {error.strerror}") from None
    if done.returncode:
        raise PullError(f"{name} could not convert the model (exit status {done.returncode}); its output is above")


def find_program(name: str) -> str | None:
    """Returns the path of a program in this Python environment, even if that is not activated, or on PATH, or None."""
    sibling = Path(sys.executable).with_name(name)
    return str(sibling) if sibling.exists() else shutil.which(name)
