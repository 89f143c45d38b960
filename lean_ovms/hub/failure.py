"""Why a pull did not succeed, for the person who asked for it."""

from __future__ import annotations

from ..errors import StartError


class PullError(StartError):
    """A pull that failed. temporary: the same command may succeed later (network, a busy hub, a full disk)."""

    def __init__(self, message: str, *, temporary: bool = False) -> None:
        super().__init__(message)
        self.temporary = temporary
