"""POST …/load_lora_adapter and …/unload_lora_adapter, with --allow_runtime_lora.

https://docs.vllm.ai/en/stable/features/lora.html#dynamically-serving-lora-adapters: requests and responses are vLLM's.
`model` names the base model if several are served; `alpha` is as in --lora_modules.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from weakref import WeakKeyDictionary

from ...api.fields import Field, FieldSet, RouteDoc, Values, read
from ...api.generation.common_fields import MODEL
from ...api.services import Services
from ...errors import BadRequest, ModelNotFound, NotFound, StartError
from ...models.model import Model, ModelRegistry
from ...observability.logging import safe
from ...types import Json, Request, Response
from .feature import LoraOptions
from .modules import OPTION, wrong_name, wrong_path

NOT_ALLOWED = "Clients may not load adapters on this server; start it with --allow_runtime_lora"
BOTH = "Both 'lora_name' and 'lora_path' must be provided."
NAME = Field("lora_name", "string", "name of the adapter", required=True, wrong=BOTH, schema={"minLength": 1})
FIELDS = FieldSet((
    replace(MODEL, help="name of the base model; optional if only one is served"),
    NAME,
    Field("lora_path", "string", "path of the adapter on the server", required=True, wrong=BOTH,
        schema={"minLength": 1}),
    Field("alpha", "number", "scale of the adapter, as in --lora_modules", wrong="alpha is not a number"),
    Field("load_inplace", "bool", "replace a loaded adapter of the same name"),
))  # fmt: skip
UNLOAD_FIELDS = FieldSet((NAME,))
LOCKS = WeakKeyDictionary[ModelRegistry, asyncio.Lock]()
"""Lets requests add adapters one after the other, so that two of them cannot take one name."""


@RouteDoc("Load a LoRA adapter; needs --allow_runtime_lora", body=FIELDS, answer="text/plain")
async def handle_load(request: Request, services: Services) -> Response:
    values = await services.parse_body(request, partial(_read, FIELDS))
    name, path = _required(values, "lora_name"), _required(values, "lora_path")
    for param, problem in (("lora_name", wrong_name(name)), ("lora_path", wrong_path(path))):
        if problem:
            raise BadRequest(f"The adapter cannot be loaded: {problem}", param=param)
    model = _base_model(services, values["model"])
    with await model.hold():
        async with LOCKS.setdefault(services.registry, asyncio.Lock()):
            replaces = name in model.adapters.models and values["load_inplace"]
            if not replaces and name in services.registry.names:
                raise BadRequest(f"The lora adapter {safe(name)!r} has already been loaded.", param="lora_name")
            try:
                await model.adapters.add(name, path, values["alpha"])
            except StartError as error:
                problem = str(error).removeprefix(OPTION)  # the client has set no option
                raise BadRequest(f"The adapter cannot be loaded: {problem}", param="lora_path") from error
    return _text_response(f"Success: LoRA adapter {name!r} added successfully.")


@RouteDoc("Unload a LoRA adapter", body=UNLOAD_FIELDS, answer="text/plain")
async def handle_unload(request: Request, services: Services) -> Response:
    name = _required(await services.parse_body(request, partial(_read, UNLOAD_FIELDS)), "lora_name")
    model = next((m for m in services.registry.models.values() if name in m.adapters.models), None)
    if model is None:
        raise ModelNotFound(f"The lora adapter {safe(name)!r} cannot be found.", param="lora_name")
    model.adapters.remove(name)
    return _text_response(f"Success: LoRA adapter {name!r} removed successfully.")


def _base_model(services: Services, named: str | None) -> Model:
    """Returns an adapter's base model: the named or first one. Raises NotFound if clients may not load adapters."""
    model = services.registry.get(named) if named is not None else next(iter(services.registry.models.values()), None)
    if model is None or not model.config.of(LoraOptions).allow_runtime_lora:
        raise NotFound(NOT_ALLOWED)
    return model


def _read(fields: FieldSet, body: Json, services: Services) -> Values:
    if not any(model.config.of(LoraOptions).allow_runtime_lora for model in services.registry.models.values()):
        raise NotFound(NOT_ALLOWED)
    return read(fields, body)


def _required(values: Values, name: str) -> str:
    if not values[name]:
        raise BadRequest(BOTH, param=name)
    return str(values[name])


def _text_response(text: str) -> Response:
    return Response(200, [("Content-Type", "text/plain; charset=utf-8")], text.encode())
