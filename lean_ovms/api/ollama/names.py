"""Names of models as Ollama's clients write them: with and without the tag ":latest" or the hub, in any case."""

from __future__ import annotations

from ...errors import BadRequest, ModelNotFound
from ...models.model import Model
from ...models.registry import ModelRegistry
from ...observability.logging import safe
from ..fields import Field, Values

LATEST = ":latest"
HUBS = ("hf.co/", "huggingface.co/")
NAME = Field(name="name", kind="string", help="another name of model")


def tagged(name: str) -> str:
    """The name with a tag: Ollama's lists have no name without one."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST


def without_hub(name: str) -> str:
    """The name of a model at its hub."""
    return next((name.removeprefix(hub) for hub in HUBS if name.startswith(hub)), name)


def find(values: Values, registry: ModelRegistry, default: type[Model] | None = None) -> str:
    """The name under which the model of a body is served. default: the only model of this class may go unnamed.

    Raises RequestError.
    """
    asked: str = values["model"] or values.get("name") or (registry.default_of(default) if default else "")
    if not asked:
        raise BadRequest("model is required", param="model")
    names = registry.names
    if asked in names:
        return asked
    wanted = tagged(without_hub(asked)).lower()
    found = next((name for name in names if tagged(name).lower() == wanted), "")
    if not found:
        known = ", ".join(names)
        raise ModelNotFound(f"model '{safe(asked)}' not found; served: {known}", param="model")
    return found
