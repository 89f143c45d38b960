"""Computes prompts before a model is ready, so that requests with the same beginning find them in the prefix cache.

--prewarm names a file of bodies for chat and completions. POST /prewarm computes one more at once, and adds it to the
file.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...api import response, schemas
from ...api.fields import FieldSet, RouteDoc, read
from ...api.generation.common_fields import MESSAGES
from ...api.services import Services
from ...config import Config
from ...errors import BadRequest, NotSupported, RequestError, StartError, WrongOptions, store_failure
from ...models.generation import collect, total_usage
from ...models.model import Model, ModelRegistry
from ...models.text_model import TextModel
from ...observability.records import current_record, scoped_salt
from ...types import Json, OutputParams, Prompt, Request, Response, SamplingParams, Usage
from ..chat import request as chat_request
from ..chat.content import refuse_media
from ..chat.generation import GenerationBody
from ..completions import request as completion_request
from . import file
from .feature import PrewarmOptions

log = logging.getLogger("lean_ovms.models")

NO_IMAGES = "prompts with images cannot be prewarmed"
FIELDS = FieldSet((
    *(field for field in chat_request.ALL_FIELDS if field.name != "messages"),
    replace(MESSAGES, help="messages of a chat"),
    replace(completion_request.ALL_FIELDS.named("prompt"), required=False,
        help="prompt of a completion, instead of messages"),
))  # fmt: skip


@RouteDoc(
    "Compute a prompt now and whenever the model is loaded, and add it to the file of --prewarm",
    body=FIELDS,
    other_clients=True,
    rules=schemas.one_of("messages", "prompt"),
    errors=(501,),
)
async def handle(request: Request, services: Services) -> Response:
    body, generation, prompts = await services.parse_body(request, lambda body, _: (body, *_parsed(body, services)))
    with await generation.model.hold() as model:
        if model.parent:
            raise BadRequest("prompts of LoRA adapters cannot be prewarmed", param="model")
        if not (_path(model.config) and model.info.prefix_caching):
            raise NotSupported("this needs a server with --prewarm and a model with a prefix cache")
        total = await _compute(model, generation, prompts, services)
        try:
            saved = await asyncio.to_thread(file.add, _path(model.config), body)
        except (OSError, WrongOptions) as error:
            log.error("%s", error)
            why = "the file of --prewarm could not be written"
            raise store_failure(error, f"{why}: the disk is full", f"{why}; the server's log says why") from None
    answer = {"object": "prewarm", "model": model.name, "saved": saved, "usage": response.usage(total)}
    return response.json(answer, generation.headers)


def preparation(services: Services, model: Model) -> Prewarmer | None:
    """Returns the prewarmer that computes the prompts of the file; None for a model that does not generate text."""
    return Prewarmer(services, model) if isinstance(model, TextModel) else None


@dataclass(frozen=True)
class Prewarmer:
    """Computes the prompts of --prewarm before a model is ready."""

    services: Services
    """The services of the server. Its registry may still have another model of this name."""
    model: TextModel
    """The model that is being loaded."""

    def check(self) -> None:
        """Checks the file as far as possible without the model. Raises WrongOptions."""
        _bodies(self.model.config)

    async def compute(self) -> None:
        """Computes the prompts. Raises StartError."""
        model = self.model
        config, began = model.config, time.monotonic()
        if not model.info.prefix_caching:
            log.warning("--prewarm has no effect: %s has no prefix cache", model.name)
            return
        bodies = await asyncio.to_thread(_bodies, config)
        registry = ModelRegistry(self.services.metrics, self.services.offload)
        registry.install(model)
        services, token = replace(self.services, registry=registry), current_record.set(None)
        usages: list[Usage] = []
        try:
            for index, body in enumerate(bodies):
                if (name := body.get("model")) and name not in config.served_names:
                    log.warning(
                        "--prewarm %s: [%d].model: skipped, since it does not name %s", _path(config), index, model.name
                    )
                    continue
                try:
                    parsed = _parsed({**body, "model": model.name}, services)
                    usages.append(await _compute(model, *parsed, services))
                except RequestError as error:
                    raise StartError(_text(config, index, error)) from None
        finally:
            current_record.reset(token)
        total = total_usage(usages)
        counts = (total.prompt_tokens, total.cached_tokens or 0, time.monotonic() - began)
        log.info("%s: prewarmed prompts of %d tokens, %d of them from the cache, in %.2f s", model.name, *counts)


def _path(config: Config) -> str:
    return config.of(PrewarmOptions).prewarm


def _bodies(config: Config) -> list[Json]:
    """Returns the bodies in the file, checked as far as possible without the model. Raises WrongOptions."""
    bodies = file.read(_path(config))
    for index, body in enumerate(bodies):
        try:
            if not isinstance(body, dict):
                raise BadRequest("it is not a JSON object")
            if _is_chat(body):
                _, _, messages = chat_request.conversation(read(chat_request.ALL_FIELDS, body), config.composition)
                refuse_media(messages, NO_IMAGES, config.composition)
            else:
                completion_request.read_prompts(read(completion_request.ALL_FIELDS, body), config)
        except RequestError as error:
            raise WrongOptions(_text(config, index, error)) from None
    return bodies


def _is_chat(body: Json) -> bool:
    """Returns whether a body is for chat, rather than completions. Raises BadRequest if it has the fields of both."""
    if body.get("messages") and body.get("prompt"):
        raise BadRequest("messages and prompt cannot be used together", param="prompt")
    return bool(body.get("messages"))


def _text(config: Config, index: int, error: RequestError) -> str:
    return f"--prewarm {_path(config)}: [{index}]{'.' if error.param else ''}{error.param or ''}: {error.message}"


def _parsed(body: Json, services: Services) -> tuple[GenerationBody, Sequence[Prompt]]:
    """Parses a body; returns the request and its prompts. Raises RequestError."""
    if _is_chat(body):
        chat = chat_request.parse_chat(body, services)
        refuse_media(chat.prompt.messages, NO_IMAGES, services.config.composition)
        return chat.generation, [chat.prompt]
    completion = completion_request.parse_completion(body, services, completion_request.DEFAULT_MAX_TOKENS)
    if completion.generation.model.info.vision:
        raise BadRequest(completion_request.NOT_WITH_VISION, param="prompt")
    return completion.generation, completion.prompts


async def _compute(
    model: TextModel, generation: GenerationBody, prompts: Sequence[Prompt], services: Services
) -> Usage:
    """Computes prompts with one token after each, in each process, and for each scope in which API keys share the
    cache.

    Returns the token counts. Raises RequestError.

    Args:
        model: The model.
        generation: The request, without its prompts.
        prompts: The prompts.
        services: The services of the server.
    """
    own, salted = generation.sampling.cache_salt, "cache_salt" in model.info.capabilities
    for process in range(model.engine.processes):
        usages = []
        for scope in services.keys.cache_scopes(model.config.served_names) if salted else ("",):
            sampling = SamplingParams(max_tokens=1, temperature=0.0, cache_salt=scoped_salt(scope, own))
            for prompt in prompts:
                with model.engine.only(process):
                    usages.append(await _prefill(model, prompt, sampling, generation))
    total = total_usage(usages)
    # The generated tokens are not used, so they are not counted.
    return Usage(total.prompt_tokens, cached_tokens=total.cached_tokens)


async def _prefill(model: TextModel, prompt: Prompt, sampling: SamplingParams, body: GenerationBody) -> Usage:
    """Computes a prompt and the tokens that `sampling` asks for, within a Hold or while the model is being loaded.

    Args:
        model: The model.
        prompt: The prompt.
        sampling: The sampling parameters.
        body: The request, which says how much of the prompt is kept.

    Returns:
        The token counts.

    Raises:
        RequestError: The engine refuses the prompt.
    """
    generation = await model.start(
        *(prompt, sampling, OutputParams()), truncate=body.truncate, truncation_side=body.truncation_side, loading=True
    )
    try:
        await collect(generation, 1)
        return generation.usage
    finally:
        await generation.aclose()
