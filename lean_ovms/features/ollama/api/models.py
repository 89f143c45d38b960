"""GET /api/version, /api/tags and /api/ps, and POST /api/show: the server and its models in Ollama's form.

GET / on --ollama_port returns Ollama's text, by which some clients recognize a server.
https://docs.ollama.com/api/tags. No model is loaded for this: before its first load its files are read instead of what
its engine reports. A digest is made of the names, sizes and times of a model's files, not of their content.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson

from ....api.fields import Field, FieldSet, RouteDoc, read, whole
from ....api.generation.common_fields import MODEL
from ....api.response import json
from ....api.services import Services
from ....errors import NotFound
from ....models.model import Model
from ....models.text_model import TextModel
from ....types import Json, Request, Response
from ...chat.generation import Defaults
from ...completions.fim import NOTATIONS
from ...pooling.model import PoolingModel
from ...pooling.types import VECTORS
from ..fields import SAMPLERS
from . import names
from .answer import timestamp
from .body import parse_body
from .weights import WeightsSummary, weights_of

VERSION = "0.33.0"
"""The version of Ollama whose API is served; clients compare it with the oldest one that they support."""
FOR_EVER_S = 36500 * 86400.0
"""The remaining time, in seconds, of a model that stays in memory."""
WITH_SUFFIX = "{# .Suffix #}"
"""A comment at the end of the template of a model that can fill in text; Continue looks for .Suffix there."""
FIELDS = FieldSet((
    MODEL,
    names.NAME,
    Field("verbose", "bool", "accepted without effect: there are no lists of tensors"),
    *(Field(name, "string", "accepted without effect") for name in ("system", "template")),
    Field("options", "object", "accepted without effect"),
))  # fmt: skip
PARAMETERS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
}


@RouteDoc("A greeting that Ollama's clients expect, on --ollama_port", answer="text/plain")
async def handle_root(request: Request, services: Services) -> Response:
    return Response(200, [("Content-Type", "text/plain; charset=utf-8")], b"Ollama is running")


@RouteDoc("The version of Ollama whose API is served")
async def handle_version(request: Request, services: Services) -> Response:
    return json({"version": VERSION})


@RouteDoc("The served models, in Ollama's form")
async def handle_tags(request: Request, services: Services) -> Response:
    listed = [(name, model) for name, model in services.registry.names.items() if model.listed]
    return json({"models": [await _listed(name, model) for name, model in listed]})


@RouteDoc("The models in memory, in Ollama's form")
async def handle_ps(request: Request, services: Services) -> Response:
    loaded = [model for model in services.registry.served if model.loaded and not model.parent]
    return json({"models": [await _loaded(model) for model in loaded]})


@RouteDoc("One model, in Ollama's form", body=FIELDS)
async def handle_show(request: Request, services: Services) -> Response:
    name = await parse_body(request, services, lambda body, _: names.find(read(FIELDS, body), services.registry))
    model = services.registry.get(name)
    if not model.listed:
        raise NotFound(f"model '{name}' not found: it could not be loaded", param="model")
    return json(await _shown(name, model))


def _row(name: str, model: Model, weights: WeightsSummary) -> Json:
    """Returns the members that a model has in every list."""
    tagged = names.tagged(name)
    row = {"name": tagged, "model": tagged, "size": weights.bytes, "digest": weights.digest}
    return {**row, "details": _details(model, weights)}


async def _listed(name: str, model: Model) -> Json:
    weights = await weights_of(model)
    modified = timestamp(weights.modified or model.created)
    return {**_row(name, model, weights), "modified_at": modified, "capabilities": await capabilities(model)}


async def _loaded(model: Model) -> Json:
    left = model.residence.seconds_left if model.residence is not None else None
    weights = await weights_of(model)
    return {
        **_row(model.name, model, weights),
        "expires_at": timestamp(time.time() + (FOR_EVER_S if left is None else left)),
        "size_vram": weights.bytes if "GPU" in model.config.target_device else 0,
        "context_length": model.context_length,
    }


async def _shown(name: str, model: Model) -> Json:
    weights, can = await weights_of(model), await capabilities(model)
    details = _details(model, weights)
    family = details["family"] or "unknown"
    info: Json = {
        "general.architecture": family,
        "general.basename": name,
        "general.parameter_count": weights.parameters,
        f"{family}.context_length": model.context_length,
    }
    if "embedding_length" in details:
        info[f"{family}.embedding_length"] = details["embedding_length"]
    template = model.template_source if isinstance(model, TextModel) else ""
    return {
        "modelfile": f"# Served by lean_ovms; a Modelfile has no effect.\nFROM {name}\n",
        "parameters": _parameters(model),
        "template": template + WITH_SUFFIX * ("insert" in can),
        "details": details,
        "model_info": info,
        "capabilities": can,
        "modified_at": timestamp(weights.modified or model.created),
    }


def _details(model: Model, weights: WeightsSummary) -> Json:
    family = model.directory.config.get("model_type") or weights.family
    family = family if isinstance(family, str) else ""
    width = model.own_pooling.dimensions if isinstance(model, PoolingModel) and model.known else 0
    return {
        "parent_model": model.parent,
        "format": "gguf" if model.config.model_dir.suffix == ".gguf" else "openvino",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": human(weights.parameters),
        "quantization_level": weights.precision.upper(),
        **({"context_length": model.context_length} if model.context_length else {}),
        **({"embedding_length": width} if width else {}),
    }


async def capabilities(model: Model) -> list[str]:
    """Returns the capabilities of a model in Ollama's words."""
    if isinstance(model, PoolingModel):
        embeds = not model.known or model.own_pooling.kind in VECTORS
        return ["embedding"] if embeds and model.config.task in ("", "embeddings") else []
    if not isinstance(model, TextModel):
        return []
    # In a thread, because a model that is not loaded imports modules for this.
    tools, reasoning = await asyncio.to_thread(lambda: model.parser_names)
    found = {"tools": tools, "insert": _fills_in(model), "vision": "image" in model.input_modalities}
    return ["completion", *(name for name, has in {**found, "thinking": reasoning}.items() if has)]


def _fills_in(model: TextModel) -> bool:
    """Returns whether the files of the tokenizer have the tokens of a fill-in notation."""
    added = model.directory.tokenizer.get("added_tokens_decoder") or {}
    known = {token.get("content") for token in added.values() if isinstance(token, dict)}
    return any(known >= {one.prefix, one.suffix, one.middle} for one in NOTATIONS)


def _parameters(model: Model) -> str:
    """Returns the context length and the sampling defaults, one per line, in the form that clients parse."""
    if not isinstance(model, TextModel):
        return ""
    defaults = Defaults(model.directory.generation_config)
    lines: list[tuple[str, Any]] = [("num_ctx", model.context_length)] if model.context_length else []
    lines += [(ollama, defaults.number(name)) for name, ollama in PARAMETERS.items()]
    lines += [(name, value) for name in SAMPLERS if type(value := defaults.values.get(name)) in (int, float)]
    lines += [("stop", stop) for stop in defaults.stop]
    return "\n".join(f"{name:<30} {orjson.dumps(whole(value)).decode()}" for name, value in lines)


def human(count: int) -> str:
    """Returns a number of parameters as Ollama writes it: 7.6B, 494.03M; "" for 0."""
    for unit, size, digits in (("B", 10**9, 1), ("M", 10**6, 2), ("K", 10**3, 0)):
        if count >= size:
            return f"{count / size:.{digits}f}{unit}"
    return str(count or "")
