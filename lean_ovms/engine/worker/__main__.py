"""python -m lean_ovms.engine.worker <fd>: the engine child, on its end of a socket pair that it inherited.

Exit status: 0 the front end closed the pipe, 2 wrong use, 3 the model does not load (LoadFailed was sent), 4 the engine
broke and could not be repaired. Always leaves by os._exit: GenAI's destructors may crash after a failed step.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import signal
import socket
import sys
from dataclasses import asdict

from ...config import Config
from ...errors import StartError
from ...observability import logging as logs
from ...types import Vocabulary
from ...util.child_process import die_with_parent
from ..errors import EngineLost, last_line
from ..generation import grammar_queue
from ..generation.grammar_limits import Bounds
from ..generation.grammar_queue import GrammarQueue
from ..generation.pipeline import Pipeline
from ..protocol import AHEAD, Load, LoadFailed, Ready
from .loop import Limits, Worker
from .transport import SocketLink

log = logging.getLogger(__name__)

GROWTH = 8
"""A schema's grammar may be so many times as long as the schema, whose length the front end has limited."""
CLOSED, MISUSED, NOT_LOADED, BROKEN = 0, 2, 3, 4


def main(argv: list[str]) -> int:
    """The exit status."""
    ahead = argv[:1] == [AHEAD]
    if ahead:
        argv = argv[1:]
    if len(argv) != 1 or not argv[0].isdigit():
        print("usage: python -m lean_ovms.engine.worker <fd>   (the server starts this by itself)", file=sys.stderr)
        return MISUSED
    die_with_parent()
    # A terminal's Ctrl-C and a service manager's stop reach every process; the front end drains, then closes the pipe.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    link = SocketLink(socket.socket(fileno=int(argv[0])))
    if ahead:
        with contextlib.suppress(ImportError):  # whoever loads a model will say so
            importlib.import_module("lean_ovms.engine.genai.factory")
    try:
        return serve(link)
    except OSError:
        return CLOSED  # the front end went away while we were writing


def serve(link: SocketLink) -> int:
    """Load what the first frame asks for, say so, and work until the link closes."""
    records = link.take(True)
    if records is None or not isinstance(records[0], Load):
        return CLOSED if records is None else MISUSED
    try:
        config = Config(**records[0].config)
        with contextlib.suppress(OSError):  # no reason to serve nothing; the file's handler tells, and tries again
            logs.setup(config.log_level, config.log_format, config.log_path)
        pipeline = load(config)
    except Exception as error:  # whatever keeps a model from loading has to reach the front end in one line
        log.debug("loading failed", exc_info=True)
        link.send([LoadFailed(str(error) if isinstance(error, StartError) else last_line(error))])
        return NOT_LOADED
    link.send([ready(pipeline)])
    gc.collect()
    gc.freeze()  # what lives from here on is small, and a collection between two steps too
    # A draft model that takes fewer sequences than the main one would keep the others waiting inside GenAI for ever.
    running = min(config.max_num_seqs, config.draft_max_num_seqs or config.max_num_seqs)
    limits = Limits(queued=config.max_queued_requests, running=running, sequences=config.best_of_limit)
    try:
        Worker(pipeline, link, limits, gate(config, pipeline, link)).run()
    except EngineLost as error:
        log.error("the engine is lost: %s", error)
        return BROKEN
    return CLOSED


def load(config: Config) -> Pipeline:
    """The pipeline that the options name. Raises StartError."""
    if config.fake_engine:
        from ..generation.fake_pipeline import FakePipeline

        return FakePipeline.from_config(config)
    from ..genai.factory import load as load_model

    return load_model(config)


def gate(config: Config, pipeline: Pipeline, link: SocketLink) -> GrammarQueue | None:
    """Where requests with a grammar wait until it is compiled; None if the pipeline cannot do that."""
    if pipeline.grammars is None:
        return None
    bounds = Bounds(bytes=GROWTH * config.grammar_max_bytes, nesting=config.grammar_max_nesting)
    limits = grammar_queue.Limits(bounds=bounds, compiled_bytes=config.grammar_cache_mb << 20)
    return GrammarQueue(pipeline.grammars, link.wake, limits)


def ready(pipeline: Pipeline) -> Ready:
    """What the front end needs to know of a loaded model."""
    words: Vocabulary = pipeline.vocabulary
    return Ready(
        info=asdict(pipeline.info),
        pieces=[piece.decode("latin-1") for piece in words.pieces],
        special=sorted(words.special),
        strip_leading_space=words.strip_leading_space,
        exact=words.exact,
        clean_up=words.clean_up,
    )


if __name__ == "__main__":
    status = main(sys.argv[1:])
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
