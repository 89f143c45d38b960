"""The manifest of the endpoints about the server itself."""

from __future__ import annotations

from ...manifest import Command, Feature, Route

FEATURE = Feature(
    name="admin",
    summary="says whether the server is ready, what it is, and how busy it is",
    title="The server itself",
    essential=True,
    commands=(
        Command("healthcheck", "", "exit with status 0 if the server with these options is ready", "healthcheck:main"),
    ),
    routes=(
        Route("GET", "/health", "health:handle_health", ("", "/v1"), auth="open", vital=True),
        Route("GET", "/ping", "health:handle_ping", auth="open", vital=True),
        Route("POST", "/ping", "health:handle_ping", auth="open"),
        Route("GET", "/version", "health:handle_version", auth="open"),
        Route("GET", "/", "root:handle", auth="open"),
        Route("GET", "/server_info", "server_info:handle", auth="admin"),
    ),
)
