"""GET /props of llama.cpp's server: the properties of a model.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md. model_path is the model's name, since no path
leaves this server. If there are several models and none is named, the response is that of llama.cpp's router.
"""

from __future__ import annotations

from dataclasses import replace

from ...._version import __version__
from ....api import router
from ....api.fields import UINT32_MAX, FieldSet, RouteDoc
from ....api.generation.common_fields import MODEL
from ....api.generation.sampling import SAMPLING
from ....api.queries import read_query
from ....api.response import json
from ....api.services import Services
from ....models.model import Model
from ....models.text_model import TextModel
from ....types import Json, Request, Response
from ...chat.generation import Defaults, build_sampling
from ...deployment.feature import DeploymentOptions
from ...sampler_chain import fields as sampler_chain
from .results import settings

BUILD = f"lean_ovms-{__version__}"
QUERY = FieldSet((MODEL,))


@RouteDoc("Context, default settings and chat template, in llama.cpp's form", query=QUERY, errors=(404, 503))
async def handle(request: Request, services: Services) -> Response:
    name = read_query(QUERY, request.query)["model"] or services.registry.default_of(TextModel)
    if not name:
        return json(_router(services))
    return json(await services.when_known(lambda: _props(services.registry.get(name).serving(), services)))


def _router(services: Services) -> Json:
    options = services.config.of(DeploymentOptions)
    return {
        "role": "router",
        "max_instances": options.max_loaded_models,
        "models_autoload": options.load_models == "request",
        "model_alias": "lean_ovms",
        "model_path": "none",
        "default_generation_settings": {"params": None, "n_ctx": 0},
        "build_info": BUILD,
    }


def _props(model: Model, services: Services) -> Json:
    info = model.info
    hears = info.audio if isinstance(model, TextModel) else "audio" in model.input_modalities
    template = model.chat_format.template if isinstance(model, TextModel) else None
    tokens = {} if template is None else template.special_tokens
    return {
        "default_generation_settings": {"params": _defaults(model), "n_ctx": info.context_length},
        "total_slots": model.config.max_num_seqs,
        "model_alias": model.name,
        "model_path": model.name,
        "modalities": {"vision": info.vision, "video": info.video, "audio": hears},
        "endpoint_slots": "/slots" in router.paths(services.config.composition),
        "endpoint_props": False,
        "endpoint_metrics": services.metrics.enabled,
        "ui": bool(services.config.given("web_page")),
        "chat_template": "" if template is None else template.source,
        "bos_token": tokens.get("bos_token") or info.bos_token,
        "eos_token": tokens.get("eos_token") or info.eos_token,
        "build_info": BUILD,
        "is_sleeping": not model.loaded,
    }


def _defaults(model: Model) -> Json | None:
    """Returns the settings of a request without sampling fields, or None for a model that generates no text."""
    if not isinstance(model, TextModel):
        return None
    defaults = model.directory.generation_config
    sampling = build_sampling(SAMPLING.defaults, Defaults(defaults), model.config)
    sampling, _ = sampler_chain.adjust({}, sampling, model.capabilities, defaults)
    seed = defaults.get("seed")
    return settings(sampling if type(seed) is int and seed != -1 else replace(sampling, seeds=(UINT32_MAX,)))
