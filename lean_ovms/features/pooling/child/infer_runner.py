"""Runs forward passes, either one for which the calling thread waits, or several at once, each in a thread of its own.

Some networks are compiled in a thread when there is work for them. Until one is ready, another network does its work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import numpy as np

from ....engine.generation.worker_thread import in_thread
from ....errors import last_line
from . import pooling_graph
from .pooler import Array, Batch

log = logging.getLogger(__name__)


class InferRequestPool:
    """A pool of the OpenVINO infer requests of one compiled network."""

    def __init__(self, compiled: Any, count: int) -> None:
        self.count = count
        self._inputs = [one.get_any_name() for one in compiled.inputs]
        self._free = [compiled.create_infer_request() for _ in range(count)]
        self.stateful = bool(self._free[0].query_state())

    def start(self, batch: Batch) -> Any:
        """Starts computing a batch, and returns its infer request. At most `count` run at once. Raises RuntimeError."""
        request = self._free.pop()
        if self.stateful:
            request.reset_state()  # otherwise the next result would be wrong without any error
        try:
            # The dictionary holds the arrays, and the request holds the dictionary until it is started again.
            request.start_async({name: _input(name, batch) for name in self._inputs}, share_inputs=True)
        except BaseException:
            self._free.append(request)
            raise
        return request

    def wait(self, request: Any) -> Array:
        """Waits for an infer request, puts it back into the pool, and returns its output. Raises RuntimeError."""
        try:
            request.wait()
            return np.array(request.get_output_tensor(0).data, np.float32)
        finally:
            self._free.append(request)


def _input(name: str, batch: Batch) -> Array:
    if name in batch.more:
        return batch.more[name]
    match name:
        case "input_ids":
            return batch.ids
        case "attention_mask":
            return batch.mask
        case pooling_graph.POOLED_TOKENS:
            return batch.mask if batch.pooled is None else batch.pooled
        case "token_type_ids":
            return batch.types
        case "beam_idx":
            return np.arange(len(batch.ids), dtype=np.int32)
        case _:
            return np.ascontiguousarray(np.broadcast_to(np.arange(batch.ids.shape[1]), batch.ids.shape))


class LazyCompiledModel:
    """A network that is compiled in a thread once there has been enough work for it."""

    def __init__(self, name: str, compile_network: Callable[[], InferRequestPool], after: int = 1) -> None:
        """Keeps the function that compiles the network.

        Args:
            name: The name of the network in the log.
            compile_network: Compiles the network. If it raises RuntimeError, the network is never available.
            after: The number of calls of `needed` at which compilation begins.
        """
        self._name = name
        self._compile = compile_network
        self._left = after
        self._requests: Future[InferRequestPool | None] | None = None

    def needed(self) -> None:
        """Notes that there is work for the network, whose compilation begins after enough of these calls."""
        self._left -= 1
        if self._left == 0:
            self._requests = in_thread("compile", self._compiled)

    def get(self) -> InferRequestPool | None:
        """Returns the network's infer requests; None if it is not compiled yet, or cannot be."""
        return self._requests.result() if self._requests is not None and self._requests.done() else None

    def _compiled(self) -> InferRequestPool | None:
        try:
            return self._compile()
        except RuntimeError as error:
            log.warning("no separate network for %s: %s", self._name, last_line(error))
            return None


class InferRunner:
    """Runs forward passes, either one in the calling thread or several in threads of their own."""

    def __init__(self) -> None:
        self._own: tuple[Batch, InferRequestPool, Any] | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._finished: SimpleQueue[tuple[Batch, Array | RuntimeError]] = SimpleQueue()

    def start(self, batch: Batch, requests: InferRequestPool) -> None:
        """Starts a forward pass if no other runs. `wait` needs no thread for it (0.1 ms). Raises RuntimeError."""
        assert self._own is None
        self._own = batch, requests, requests.start(batch)

    def start_in_thread(self, batch: Batch, requests: InferRequestPool) -> None:
        """Starts one of several passes that run at once, in a thread of its own."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(requests.count, "pass")
        self._threads.submit(self._compute, batch, requests)

    def wait(self) -> tuple[Batch, Array | RuntimeError]:
        """Waits until a pass has ended, and returns its batch with its output or error. At least one must run."""
        if self._own is None:
            return self._finished.get()
        (batch, requests, request), self._own = self._own, None
        try:
            return batch, requests.wait(request)
        except RuntimeError as error:
            return batch, error

    def _compute(self, batch: Batch, requests: InferRequestPool) -> None:
        output: Array | RuntimeError
        try:
            output = requests.wait(requests.start(batch))
        except RuntimeError as error:
            output = error
        except Exception as error:  # any error; the batch must end
            output = RuntimeError(f"{type(error).__name__}: {error}")
        self._finished.put((batch, output))
