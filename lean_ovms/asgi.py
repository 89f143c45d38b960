"""The server under an ASGI host, `uvicorn lean_ovms.asgi:app`: the public name of features/asgi."""

from .features.asgi.host import *  # noqa: F403 - its names are those of the feature
