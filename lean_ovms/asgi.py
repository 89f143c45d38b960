"""The public name of features/asgi, the server as an ASGI application: `uvicorn lean_ovms.asgi:app`."""

from .features.asgi.host import *  # noqa: F403 - its names are those of the feature
