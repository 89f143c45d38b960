"""A network that is compiled in a thread when there is work for it; until then another one does that work."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future

from ..errors import last_line
from ..loading.in_thread import in_thread
from .infer_runner import InferRequestPool

log = logging.getLogger(__name__)


class LazyCompiledModel:
    """A network that is compiled when it is needed. compile_network: raises RuntimeError, after which there is never
    such a network. after: calls of `needed` before it is compiled."""

    def __init__(self, name: str, compile_network: Callable[[], InferRequestPool], after: int = 1) -> None:
        self._name = name
        self._compile = compile_network
        self._left = after
        self._requests: Future[InferRequestPool | None] | None = None

    def needed(self) -> None:
        """Notes that there is work for the network."""
        self._left -= 1
        if self._left == 0:
            self._requests = in_thread("compile", self._compiled)

    def get(self, timeout_s: float = 0.0) -> InferRequestPool | None:
        """Returns the network's infer requests; None as long as it is not compiled. timeout_s: to wait for that."""
        if self._requests is None or not (timeout_s or self._requests.done()):
            return None
        return self._requests.result(timeout_s)

    def _compiled(self) -> InferRequestPool | None:
        try:
            return self._compile()
        except RuntimeError as error:
            log.warning("no network for %s: %s", self._name, last_line(error))
            return None
