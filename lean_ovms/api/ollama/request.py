"""Requests to generate text in Ollama's API, on their way to a generation; and those that load or unload a model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...errors import TOO_LONG, BadRequest, NotFound
from ...models.generation import Generation
from ...models.model import Model
from ...models.text_model import TextModel
from ...types import ChatPrompt, Json, OutputParams, Prompt, TextPrompt
from ..fields import FieldSet, Values, read
from ..generation.common_fields import KEEP_ALIVE
from ..generation.fim import filling_of
from ..generation.logprobs_request import LogprobsRequest
from ..generation.messages import map_developer_role, read_messages
from ..generation.request import BodyReader, GenerationBody
from ..generation.sampling import PARSED
from ..generation.token_fields import token_ids
from ..generation.tools import read_offer
from ..response import warning_headers
from ..services import Services
from . import names
from .conversation import to_messages, user_message
from .fields import AS_CHAT, CHAT, GENERATE, template_variables, translated

ROOM = 8
"""The part of the context, one in so many, that an answer has when older messages are left out for it."""


@dataclass(frozen=True, slots=True)
class LoadModelRequest:
    """A request without a prompt: its model is loaded, or with keep_alive 0 unloaded. name: as the client wrote it."""

    name: str
    model: Model
    keep_alive: float | None


@dataclass(slots=True, kw_only=True)
class OllamaRequest:
    """A request for text. chat: in messages. name: of the model, as the client wrote it. warnings: of its options."""

    chat: bool
    name: str
    values: Values
    generation: GenerationBody
    prompt: Prompt
    warnings: list[str]

    @property
    def with_context(self) -> bool:
        """Whether the answer ends with its token ids and those of the prompt."""
        return not (self.chat or self.values["raw"])

    async def start(self) -> Generation:
        """The running generation. Raises RequestError."""
        try:
            return await self.generation.start(self.prompt, echo=self.with_context)
        except BadRequest as error:
            if error.code != TOO_LONG or not (self.chat and self.values["truncate"]):
                raise self._named(error) from None
            assert isinstance(self.prompt, ChatPrompt)
            shorter = await self._shortened(self.prompt)
            if len(shorter.messages) == len(self.prompt.messages):
                raise
        left_out = len(self.prompt.messages) - len(shorter.messages)
        self.warnings.append(f"{left_out} messages were left out: the conversation is longer than the context")
        return await self.generation.start(shorter)

    def _named(self, error: BadRequest) -> BadRequest:
        """An error with the client's field as param: in chat an image is a part of the content."""
        message, is_image, _ = (error.param or "").partition(".content[")
        if is_image:
            error.param = f"{message}.images" if self.chat else "images"
        return error

    async def _shortened(self, prompt: ChatPrompt) -> ChatPrompt:
        """The conversation without as many of its oldest messages as it must lose to fit. System messages and the last
        one stay."""
        messages = prompt.messages
        system = [place for place, message in enumerate(messages) if message["role"] == "system"]

        def without(count: int) -> ChatPrompt:
            kept = [messages[place] for place in system if place < count]
            return prompt.with_messages(kept + messages[count:])

        low, high = 0, len(messages) - 1  # so many at least, and at most
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if await self._fits(without(middle)) else (middle + 1, high)
        while low < len(messages) - 1 and _answers(messages[low]):
            low += 1  # what it answers is left out
        return without(low)

    async def _fits(self, prompt: ChatPrompt) -> bool:
        model = self.generation.model
        context = model.info.context_length
        if prompt.num_chars > context * model.vocabulary.longest:
            return False  # without rendering it
        room = min(self.generation.sampling.max_tokens or context // ROOM, context // 2)
        try:
            return await self.generation.count(prompt) <= context - room
        except BadRequest as error:
            if error.code != TOO_LONG:
                raise
            return False


def _answers(message: Json) -> bool:
    """Whether a message answers the one before it: many chat templates refuse it as the first."""
    return message["role"] == "tool" or (message["role"] == "assistant" and not message.get("tool_calls"))


def parse_chat(body: Json, services: Services) -> OllamaRequest | LoadModelRequest:
    """Raises RequestError."""
    values, name = _named(CHAT, body, services)
    if not values["messages"]:
        return _load(values, name, services)
    reader, warnings = _reader(values, name, body, services)
    tools, calling = reader.model.parser_names[0], values["tools"]
    if calling and not tools:
        raise BadRequest(f'"{values["model"] or name}" does not support tools', param="tools")
    offer = read_offer(calling, None, True)
    messages = map_developer_role(read_messages(to_messages(values["messages"])), reader.model)
    generation = reader.generation(offer=offer, logprobs=_logprobs(values))
    prefill = messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls")
    prompt = ChatPrompt(
        messages=messages,
        tools=offer.tools,
        template_kwargs=template_variables(values["think"]),
        add_generation_prompt=not prefill,
        continue_final_message=prefill,
    )
    return OllamaRequest(
        chat=True,
        name=values["model"] or name,
        values=values,
        generation=generation,
        prompt=prompt,
        warnings=warnings,
    )


def parse_generate(body: Json, services: Services) -> OllamaRequest | LoadModelRequest:
    """A request whose prompt is completed by `with_prompt`. Raises RequestError."""
    values, name = _named(GENERATE, body, services)
    if not values["prompt"]:
        return _load(values, name, services)
    if values["template"]:
        raise BadRequest("template is not supported: the chat template is the model's", param="template")
    if values["raw"] and (values["system"] or values["context"]):
        raise BadRequest("raw mode does not support template, system, or context", param="raw")
    reader, warnings = _reader(values, name, body, services)
    plain = values["raw"] or values["suffix"] or reader.model.chat_format.template.problem
    if (plain or values["context"]) and values["images"]:
        raise BadRequest("images need a prompt for the chat template, without context and suffix", param="images")
    generation = reader.generation(logprobs=_logprobs(values), parsing=OutputParams() if plain else PARSED)
    prompt: Prompt = TextPrompt(values["prompt"])
    if not plain:
        system = [{"role": "system", "content": values["system"]}] if values["system"] else []
        messages = read_messages([*system, user_message(values["prompt"], values["images"])])
        prompt = ChatPrompt(messages=messages, template_kwargs=template_variables(values["think"]))
    return OllamaRequest(
        chat=False,
        name=values["model"] or name,
        values=values,
        generation=generation,
        prompt=prompt,
        warnings=warnings,
    )


async def with_prompt(asked: OllamaRequest) -> OllamaRequest:
    """The request of `generate` with what comes after its prompt (suffix), or came before it (context). Raises
    RequestError."""
    values, model = asked.values, asked.generation.model
    if values["suffix"] and not values["raw"]:
        return await _filling(asked, values["prompt"], values["suffix"])
    if values["context"]:
        assert not values["images"]
        before = await model.decode(token_ids(values["context"], "context"), False)
        text = await model.render(asked.prompt) if isinstance(asked.prompt, ChatPrompt) else values["prompt"]
        return replace(asked, prompt=TextPrompt(before + text, add_special_tokens=False))
    return asked


async def _filling(asked: OllamaRequest, before: str, behind: str) -> OllamaRequest:
    try:
        filling = await filling_of(asked.generation.model)
    except NotFound:
        raise BadRequest(f'"{asked.name}" does not support insert', param="suffix") from None
    text = filling.notation.prompt(before, behind, [])
    return replace(asked, generation=asked.generation.ending_at(filling.ends), prompt=TextPrompt(text))


def _named(fields: FieldSet, body: Json, services: Services) -> tuple[Values, str]:
    """The fields of a body, and the name under which its model is served. Raises RequestError."""
    values = read(fields, body)
    return values, names.find(values, services.registry, TextModel)


def _load(values: Values, name: str, services: Services) -> LoadModelRequest:
    """A request without a prompt; what else it has is checked all the same. Raises RequestError."""
    read(AS_CHAT, translated(values, name, None)[0])
    read_offer(values.get("tools"), None, True)
    model, keep_alive = services.registry.get(name), values[KEEP_ALIVE.name]
    if keep_alive != 0:
        model.require_task(TextModel)  # any model may be unloaded, as in Ollama
    return LoadModelRequest(values["model"] or name, model, keep_alive)


def _reader(values: Values, name: str, body: Json, services: Services) -> tuple[BodyReader, list[str]]:
    """The body in the words of chat, and warnings. Raises RequestError."""
    given, warnings = translated(values, name, body.get(KEEP_ALIVE.name))
    reader = BodyReader(AS_CHAT, given, services)
    if values["think"] and not reader.model.parser_names[1]:
        raise BadRequest(f'"{values["model"] or name}" does not support thinking', param="think")
    if (asked := (values["options"] or {}).get("num_ctx")) is not None:
        context = reader.model.info.context_length
        if asked != context:
            warnings.append(f"options.num_ctx has no effect: the context has {context} tokens")
    return reader, warnings


def _logprobs(values: Values) -> LogprobsRequest:
    chosen = values["logprobs"]
    return LogprobsRequest(chosen=chosen, top=values["top_logprobs"] if chosen else 0)


def headers(asked: OllamaRequest, generation: Generation) -> list[tuple[str, str]]:
    """The Warning headers of an answer."""
    return asked.generation.headers + warning_headers(asked.warnings + generation.warnings)


async def load(asked: LoadModelRequest) -> tuple[str, list[str]]:
    """Loads or unloads a model. Returns Ollama's done_reason, and warnings. Raises RequestError."""
    model, cache = asked.model, asked.model.model_cache
    if asked.keep_alive != 0:
        with await model.hold():
            return "load", model.keep_loaded(asked.keep_alive)
    warnings = model.keep_loaded(0)
    if warnings or cache is None:
        return "load", warnings
    await cache.unload(model)
    return "unload", []
