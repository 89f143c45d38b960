"""Runs the engine process on an inherited end of a socket pair: python -m lean_ovms.engine.worker <fd>.

Exit status: 0 if the front end closed the pipe, 2 for wrong usage, 3 if the model cannot be loaded (LoadFailed was
sent), 4 if the engine broke and could not be repaired. It always ends with os._exit, since GenAI's destructors may
crash after a failed step.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import sys
import threading

from ...composition import keep_only, records_of
from ...config import EngineConfig
from ...config.options import read_object
from ...errors import EngineLost, StartError, last_line
from ...manifest import named
from ...observability import logging as logs
from ...repository import model_file
from ...util import resources
from ...util.child_process import EXIT_USAGE, LOG_FD, PREIMPORT, inherit_socket, write_lines_at_once
from ..loading import weight_pages
from ..protocol import Load, LoadFailed
from ..task import Task, Transport, Worker

log = logging.getLogger("lean_ovms.engine.worker")  # __name__ is "__main__" here, whose INFO lines nobody writes

THREADS = "INFERENCE_NUM_THREADS"
"""OpenVINO's property for the number of its threads, which also limits the threads of this program."""
EXIT_CLOSED, EXIT_NOT_LOADED, EXIT_BROKEN = 0, 3, 4


def main(argv: list[str]) -> int:
    """Runs the engine process, and returns its exit status."""
    preimport = argv[:1] == [PREIMPORT]
    # A terminal's Ctrl-C and a service manager's stop reach every process; the front end drains, then closes the pipe.
    sock = inherit_socket("lean_ovms.engine.worker", argv[1:] if preimport else argv)
    if sock is None:
        return EXIT_USAGE
    transport = Transport(sock)
    write_lines_at_once()
    resources.configure_allocator()
    log_fd = os.environ.pop(LOG_FD, "")
    if preimport:
        with contextlib.suppress(ImportError):  # loading a model reports it
            importlib.import_module("lean_ovms.engine.paged.assemble")
    try:
        return serve(transport, int(log_fd) if log_fd else None)
    except OSError:
        return EXIT_CLOSED  # the front end closed the pipe while we were writing


def serve(transport: Transport, log_fd: int | None = None) -> int:
    """Loads the model of the first frame, and serves it until the pipe is closed; returns the exit status."""
    records = transport.receive(wait=True)
    if records is None or not isinstance(records[0], Load):
        return EXIT_CLOSED if records is None else EXIT_USAGE
    command = records[0]
    try:
        keep_only(command.features)
        config = EngineConfig(**command.config)
        with contextlib.suppress(OSError):  # no reason not to serve; the file's handler reports it, and tries again
            text = logs.PRINTED if log_fd is None else ""
            logs.setup(config.log_level, config.log_format, config.log_path, log_fd, text=text)
        limit_threads(config)
        row = config.composition.task(command.task)
        gc.disable()  # a vocabulary is half a million objects, none of them garbage
        transport.know(records_of(row, *config.engine_rows))
        with weight_pages.dropping(), model_file.reading_once(config):
            loader = named(row.package, row.loader)  # numpy alone takes 0.1 s, and not all need it
            task: Task = loader(config, transport.wake)
        weight_pages.watch()
    except Exception as error:  # anything that keeps a model from loading has to reach the front end in one line
        log.debug("loading failed", exc_info=True)
        reason = str(error) if isinstance(error, StartError) else last_line(error)
        if isinstance(error, MemoryError):  # also while another error was being explained
            reason = resources.with_memory_limit("the model does not load: there is not enough memory")
        transport.send([LoadFailed(reason)])
        return EXIT_NOT_LOADED
    transport.send([task.ready()])
    gc.enable()
    gc.collect()
    gc.freeze()  # what is allocated from here on is small, and so is a collection between two steps
    threading.Thread(target=weight_pages.replace_small_pages, daemon=True).start()
    try:
        with contextlib.closing(task):
            Worker(task, transport, require_weights).run()
    except EngineLost as error:
        log.error("the engine has to stop: %s", error)
        return EXIT_BROKEN
    return EXIT_CLOSED


def limit_threads(config: EngineConfig) -> None:
    """Limits the threads of this program to the number of OpenVINO's threads. Raises StartError."""
    count = str(read_object("plugin_config", config.plugin_config).get(THREADS))
    if count.isdecimal() and int(count):  # OpenVINO says what is wrong with others
        resources.limit_cores(int(count))


def require_weights() -> None:
    """Raises EngineLost if a file of mapped weights was overwritten, so that some are new. It takes 1 us."""
    if path := weight_pages.changed_file():
        raise EngineLost(f"{path} was overwritten while it was in use")


if __name__ == "__main__":
    status = main(sys.argv[1:])
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
