"""Names of models as Ollama's clients write them: with or without the tag ":latest" or the hub, in any case."""

from __future__ import annotations

from ....api.fields import Field, Values
from ....errors import BadRequest, ModelNotFound
from ....models.model import Model, ModelRegistry
from ....observability.logging import safe

LATEST = ":latest"
HUBS = ("hf.co/", "huggingface.co/")
NAME = Field("name", "string", "another name of model")


def tagged(name: str) -> str:
    """Returns a name with a tag, since all names in Ollama's lists have one."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST


def without_hub(name: str) -> str:
    """Returns the name that a model has on its hub."""
    return next((name.removeprefix(hub) for hub in HUBS if name.startswith(hub)), name)


def find(values: Values, registry: ModelRegistry, default: type[Model] | None = None) -> str:
    """Returns the name under which the model of a body is served.

    Args:
        values: The fields of the body; `model` takes precedence over `name`.
        registry: The models that are served.
        default: The class of models that a body need not name if only one is served; None if it must name one.

    Raises:
        BadRequest: The body names no model.
        ModelNotFound: No model of this name is served.
    """
    wanted: str = values["model"] or values.get("name") or (registry.default_of(default) if default else "")
    if not wanted:
        raise BadRequest("model is required", param="model")
    names = registry.names
    if wanted in names:
        return wanted
    full = tagged(without_hub(wanted)).lower()
    found = next((name for name in names if tagged(name).lower() == full), "")
    if not found:
        known = ", ".join(names) or "none"
        raise ModelNotFound(f"model '{safe(wanted)}' not found; served models: {known}", param="model")
    return found
