"""Former place of `lean_ovms.embed.setup_logging`; goes with the next release."""

import warnings

from .observability.logging import setup

__all__ = ["setup"]

warnings.warn("lean_ovms.log.setup is now lean_ovms.embed.setup_logging", DeprecationWarning, stacklevel=2)
