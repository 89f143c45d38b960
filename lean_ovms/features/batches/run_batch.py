"""`lean-ovms run-batch -i FILE -o FILE [MODEL]`: answers the requests of a file, as vLLM's command does."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import orjson

from ...api.app import App
from ...cli.arguments import own, parse
from ...cli.commands import CommandParser, parser
from ...config import Config
from ...errors import BadRequest, CommandFailed, ExitStatus, StartError, counted
from ...manifest import API_KEYS
from ...observability import logging as log
from ...server.opened import opened
from ...types import Json
from ...util.files import open_regular
from ..deployment.desired import ServedModels
from .lines import ENDPOINTS, answer, read_line, read_lines, row

URLS = (*ENDPOINTS, "/v1/score", "/score", "/v1/rerank", "/rerank", "/v2/rerank", "/v1/classify", "/v1/pooling")
NOTES = """Each line of the input is a request in the format of OpenAI's batches: custom_id, method, url, body. The
output has one line for each, in the same order. All other options are those of the server, such as
--cache_size."""
CLIENT = "run-batch"
NO_EFFECT = ("response_role", "output_tmp_dir")


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs the command, and returns its exit status. Raises StartError or CommandFailed."""
    files, words, options = own(_arguments(), argv)
    config = _without_keys(parse(["serve", *words, *options], environ)).replace(access_log=False)
    if os.path.realpath(files.input_file) == os.path.realpath(files.output_file):
        raise StartError("the output file must not be the input file")
    log.setup(config.log_level, config.log_format, config.log_path)
    try:
        with open_regular(files.input_file) as source, Path(files.output_file).open("wb") as target:
            answers, errors = asyncio.run(_run(ServedModels().available(config), source, target))
    except OSError as error:
        if error.filename:  # it names a file only if that cannot be opened
            raise StartError(f"{error.filename}: {error.strerror}") from None
        raise CommandFailed(f"{files.output_file}: {error.strerror}") from None
    except StartError as error:
        raise CommandFailed(str(error)) from None
    print(f"{files.output_file}: {counted(answers, 'answer')}, {counted(errors, 'error')}", file=sys.stderr)
    return ExitStatus.OK


def _arguments() -> CommandParser:
    result = parser("run-batch", NOTES)
    result.add_argument("-i", "--input_file", required=True, metavar="FILE", help="file with the requests")
    result.add_argument(
        "-o",
        "--output_file",
        required=True,
        metavar="FILE",
        help="file for the answers; an existing file is overwritten",
    )
    for name in NO_EFFECT:
        result.add_argument(f"--{name}", metavar="X", help="accepted without effect, for vLLM's command line")
    return result


async def _run(config: Config, source: BinaryIO, target: BinaryIO) -> tuple[int, int]:
    """Writes an outcome for each line of the source. Returns the number of answers and the number of errors."""
    counts = [0, 0]
    running: deque[asyncio.Task[tuple[Json, bool]]] = deque()

    async def write() -> None:
        outcome, failed = await running.popleft()
        counts[failed] += 1
        target.write(orjson.dumps(outcome, option=orjson.OPT_APPEND_NEWLINE))
        target.flush()  # so that what was answered stays, and is seen, if the command is stopped

    async with opened(config) as app:
        for _, raw in read_lines(source):
            running.append(asyncio.create_task(_outcome(app, raw)))
            if len(running) == config.max_num_seqs:
                await write()
        while running:
            await write()
    return counts[0], counts[1]


async def _outcome(app: App, raw: bytes) -> tuple[Json, bool]:
    try:
        return await answer(app.handle, read_line(raw, URLS), CLIENT, app.config.composition.error_forms)
    except BadRequest as error:
        return row(None, error={"code": error.code, "message": error.message}), True


def _without_keys(config: Config) -> Config:
    """Returns a copy of these options without API keys."""
    row = config.composition.parts.get(API_KEYS)
    return config.replace(api_key="", **dict.fromkeys(row.options if row is not None else (), ""))
