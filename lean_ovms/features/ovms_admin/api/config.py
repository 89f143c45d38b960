"""GET /v1/config and POST /v1/config/reload: the states of all models, and reloading the configuration.

The states and codes are TensorFlow Serving's, as in OVMS, whose graphs always have version 1.
https://github.com/openvinotoolkit/model_server/blob/main/docs/model_server_rest_api_tfs.md
"""

from __future__ import annotations

from ....api.fields import RouteDoc
from ....api.response import json
from ....api.services import Services
from ....errors import RequestError, StartError, sleeping
from ....models.model import Model
from ....observability.records import may_use
from ....types import Json, Request, Response

NOT_IN_MEMORY = {
    "unloaded": "Not in memory; the next request loads the model.",
    "unloading": "Being unloaded; the next request loads the model again.",
}
"""The messages of models that are not in memory, but AVAILABLE, like OVMS's idle servables."""


class ReloadFailed(RequestError):
    """Status 500: the configuration cannot be read, or one of its models cannot be loaded."""

    status = 500
    kind = "server_error"
    code = "reload_failed"


@RouteDoc("The state of every model")
async def handle(request: Request, services: Services) -> Response:
    return json(describe(services))


@RouteDoc("Reload the configuration")
async def handle_reload(request: Request, services: Services) -> Response:
    try:
        await services.keys.reload()
        if services.manager is not None:
            await services.manager.reload()
    except StartError as error:
        raise ReloadFailed(
            f"Reloading config file failed. Check server logs for more info. ({error.reason})"
        ) from error
    return json(describe(services))


def describe(services: Services) -> Json:
    """Returns the state of each model by name, including unloaded models."""
    states = {name: _status(state, "OK", "OK") for name, state in services.registry.unloaded.items() if may_use(name)}
    return {model.name: _state(model) for model in services.registry.served} | states


def _state(model: Model) -> Json:
    state = "AVAILABLE" if model.ready and model.state != "loading" else "LOADING"
    if model.failure is not None:
        why = "The model could not be loaded." if not model.ready else "Its replacement could not be loaded."
        return _status(state, "FAILED_PRECONDITION", f"{why} {model.failure.reason}")
    if model.state == "failed":
        return _status(state, "UNKNOWN", "The engine stopped and could not be restarted; the server keeps trying.")
    if model.state == "sleeping":
        return _status("UNLOADING", "UNAVAILABLE", sleeping().message)
    return _status(state, "OK", NOT_IN_MEMORY.get(model.state, "OK"))


def _status(state: str, code: str, message: str) -> Json:
    status = {"error_code": code, "error_message": message}
    return {"model_version_status": [{"version": "1", "state": state, "status": status}]}
