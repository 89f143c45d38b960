"""GET /server_info: version, and the start-up options that are not defaults. (vLLM has the path, with its own options.)

The key and other private options are never in it, and absolute paths are cut to their last part.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from ... import __version__
from ...config import Config
from ...types import Json, Request, Response
from ..app import App
from ..response import json
from ..router import Route, RouteDoc

PATH = re.compile(r"(?<![\w.:/])(?:/[^/\s\"'=]*)+/(?=[^/\s\"'=])")
"""The directories of an absolute path."""


async def handle(request: Request, app: App) -> Response:
    return json({"version": __version__, "options": changed_options(app.config)})


def changed_options(config: Config) -> Json:
    """Public options by name whose values are not the default."""
    found = {row.name: getattr(config, row.name) for row in fields(config) if not row.metadata["private"]}
    defaults = {row.name: row.default for row in fields(config)}
    return {name: _shortened(value) for name, value in found.items() if value != defaults[name]}


def _shortened(value: Any) -> Any:
    return PATH.sub("…/", value) if isinstance(value, str) else value


ROUTES = [
    Route("GET", "/server_info", handle, doc=RouteDoc(summary="Version and changed options", answer="ServerInfo")),
]
