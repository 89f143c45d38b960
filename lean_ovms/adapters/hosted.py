"""Former place of `lean_ovms.asgi`."""

import warnings

from ..asgi import Hosted, app

__all__ = ["Hosted", "app"]

warnings.warn("lean_ovms.adapters.hosted is now lean_ovms.asgi", DeprecationWarning, stacklevel=2)
