"""Former place of `lean_ovms.ray_serve`."""

import warnings

from ..ray_serve import LeanOvms, application

__all__ = ["LeanOvms", "application"]

warnings.warn("lean_ovms.adapters.ray_serve is now lean_ovms.ray_serve", DeprecationWarning, stacklevel=2)
