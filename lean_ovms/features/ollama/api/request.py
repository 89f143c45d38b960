"""Parses the bodies of /api/chat and /api/generate to requests for generating, or for loading or unloading."""

from __future__ import annotations

from dataclasses import dataclass

from ....api.fields import FieldSet, Values, read
from ....api.generation import common_fields
from ....api.generation.common_fields import KEEP_ALIVE
from ....api.response import warning_headers
from ....api.services import Services
from ....errors import TOO_LONG, BadRequest, counted
from ....models.generation import Generation
from ....models.model import Model
from ....models.text_model import TextModel
from ....types import ChatPrompt, Json, Prompt, TextPrompt
from ...chat.generation import BodyReader, GenerationBody, errors_as_sent, read_offer
from ...chat.logprobs import LogprobsRequest
from ...chat.request import read_messages
from ...completions.fim import filled_in
from ..fields import AS_CHAT, CHAT, GENERATE, LIMIT, template_variables, translated
from . import names
from .conversation import to_messages, user_message

ANSWER_SHARE = 8
"""The divisor of the context length for the tokens reserved for the answer when older messages are left out."""


@dataclass(frozen=True, slots=True)
class LoadModelRequest:
    """A request without a prompt, which loads its model, or unloads it if keep_alive is 0."""

    chat: bool
    """Whether it was sent to /api/chat."""
    name: str
    """The name of the model as the client wrote it."""
    model: Model
    """The model."""
    keep_alive: float | None
    """The seconds that the model stays in memory without requests; None for the configured time."""

    async def run(self) -> tuple[str, list[str]]:
        """Loads or unloads the model. Returns Ollama's done_reason, and warnings. Raises RequestError."""
        model, residence = self.model, self.model.residence
        if self.keep_alive != 0:
            with await model.hold():
                return "load", model.keep_loaded(self.keep_alive)
        warnings = model.keep_loaded(0)
        if warnings or residence is None:
            return "load", warnings
        await residence.unload()
        return "unload", []


@dataclass(slots=True, kw_only=True)
class OllamaRequest:
    """A request for text."""

    chat: bool
    """Whether it was sent to /api/chat."""
    values: Values
    """The values of its fields. `model` is as the client wrote it."""
    generation: GenerationBody
    """The request, without its prompt."""
    prompt: Prompt
    """The prompt."""
    warnings: list[str]
    """Warnings about options of the request."""

    @property
    def with_context(self) -> bool:
        """Whether the last object has the token ids of the prompt and the answer."""
        return not (self.chat or self.values["raw"])

    def headers(self, generation: Generation) -> list[tuple[str, str]]:
        """Returns the Warning headers of the answer."""
        return self.generation.headers + warning_headers(self.warnings + generation.warnings)

    async def start(self) -> Generation:
        """Starts the generation. Raises RequestError."""
        if self.values.get("suffix") and not self.values["raw"]:
            await self._fill_in()
        elif self.values.get("context"):
            await self._continue_context()
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
        said = counted(left_out, "message was", "messages were")
        self.warnings.append(f"{said} left out, since the conversation is longer than the context")
        return await self.generation.start(shorter)

    async def _fill_in(self) -> None:
        """Changes the prompt to one for the text between the client's prompt and suffix. Raises RequestError."""
        values = self.values
        try:
            found = await filled_in(self.generation, [TextPrompt(values["prompt"])], values["suffix"])
        except BadRequest:
            raise BadRequest(f'"{values["model"]}" does not support insert', param="suffix") from None
        self.generation, [self.prompt] = found

    async def _continue_context(self) -> None:
        """Inserts the text of earlier turns before the prompt. Raises RequestError."""
        model, prompt = self.generation.model, self.prompt
        before = await model.decode(self.values["context"], False, "context")
        text = await model.render(prompt) if isinstance(prompt, ChatPrompt) else self.values["prompt"]
        self.prompt = TextPrompt(before + text, add_special_tokens=False)

    def _named(self, error: BadRequest) -> BadRequest:
        """Returns an error whose param is the client's field; in chat an image is a part of the content."""
        message, is_image, _ = (error.param or "").partition(".content[")
        if is_image:
            error.param = f"{message}.images" if self.chat else "images"
        return error

    async def _shortened(self, prompt: ChatPrompt) -> ChatPrompt:
        """Returns the conversation without the oldest messages that do not fit; system messages and the last stay."""
        messages = prompt.messages
        system = [place for place, message in enumerate(messages) if message["role"] == "system"]

        def without(count: int) -> ChatPrompt:
            kept = [messages[place] for place in system if place < count]
            return prompt.with_messages(kept + messages[count:])

        low, high = 0, len(messages) - 1  # the fewest and the most messages to leave out
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if await self._fits(without(middle)) else (middle + 1, high)
        while low < len(messages) - 1 and _is_reply(messages[low]):
            low += 1
        return without(low)

    async def _fits(self, prompt: ChatPrompt) -> bool:
        model = self.generation.model
        context = model.info.context_length
        if prompt.num_chars > context * model.vocabulary.longest:
            return False  # no need to render it
        room = min(self.generation.sampling.max_tokens or context // ANSWER_SHARE, context // 2)
        try:
            return await self.generation.count(prompt) <= context - room
        except BadRequest as error:
            if error.code != TOO_LONG:
                raise
            return False


def _is_reply(message: Json) -> bool:
    """Returns whether a message answers the one before it, which many chat templates refuse as the first message."""
    return message["role"] == "tool" or (message["role"] == "assistant" and not message.get("tool_calls"))


def parse_chat(body: Json, services: Services) -> OllamaRequest | LoadModelRequest:
    """Parses a body of /api/chat. Raises RequestError."""
    values, served = _read(CHAT, body, services)
    if not values["messages"]:
        return _load(values, served, services, chat=True)
    reader, warnings = _reader(CHAT, values, served, body, services)
    if values["tools"] and not reader.model.parser_names[0]:
        raise BadRequest(f'"{values["model"]}" does not support tools', param="tools")
    offer = read_offer(values["tools"], None, None)
    messages = read_messages(to_messages(values["messages"]), services.config.composition)
    with errors_as_sent(LIMIT):
        generation = reader.generation(_form(values), offer=offer, logprobs=_logprobs(values))
    prompt = ChatPrompt(
        messages=messages,
        tools=offer.tools,
        template_kwargs=template_variables(values["think"]),
        continue_final_message=messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls"),
    )
    return OllamaRequest(chat=True, values=values, generation=generation, prompt=prompt, warnings=warnings)


def parse_generate(body: Json, services: Services) -> OllamaRequest | LoadModelRequest:
    """Parses a body of /api/generate. Raises RequestError."""
    values, served = _read(GENERATE, body, services)
    if not values["prompt"]:
        return _load(values, served, services, chat=False)
    if values["template"]:
        raise BadRequest("template is not supported; the model's chat template is used", param="template")
    if values["raw"] and (values["system"] or values["context"]):
        raise BadRequest("raw mode does not support template, system, or context", param="raw")
    reader, warnings = _reader(GENERATE, values, served, body, services)
    plain = values["raw"] or values["suffix"] or reader.model.chat_format.template.problem
    if (plain or values["context"]) and values["images"]:
        raise BadRequest("images cannot be combined with raw, context or suffix", param="images")
    with errors_as_sent(LIMIT):
        generation = reader.generation(_form(values), logprobs=_logprobs(values), parsed=not plain)
    prompt: Prompt = TextPrompt(values["prompt"])
    if not plain:
        system = [{"role": "system", "content": values["system"]}] if values["system"] else []
        messages = read_messages(
            [*system, user_message(values["prompt"], values["images"])], services.config.composition
        )
        prompt = ChatPrompt(messages=messages, template_kwargs=template_variables(values["think"]))
    return OllamaRequest(chat=False, values=values, generation=generation, prompt=prompt, warnings=warnings)


def _read(fields: FieldSet, body: Json, services: Services) -> tuple[Values, str]:
    """Returns the values of the fields, and the name under which the model is served. Raises RequestError."""
    values = read(fields, body)
    served = names.find(values, services.registry, TextModel)
    return {**values, "model": values["model"] or served}, served


def _load(values: Values, served: str, services: Services, *, chat: bool) -> LoadModelRequest:
    """Parses a body without a prompt. Its other fields are checked nevertheless. Raises RequestError."""
    read(AS_CHAT, translated(values, served, None)[0])
    read_offer(values.get("tools"), None, None)
    model, keep_alive = services.registry.get(served), values[KEEP_ALIVE.name]
    if keep_alive != 0:
        model.require_task(TextModel)  # any model can be unloaded, as in Ollama
    return LoadModelRequest(chat, values["model"], model, keep_alive)


def _reader(
    fields: FieldSet, values: Values, served: str, body: Json, services: Services
) -> tuple[BodyReader, list[str]]:
    """Returns a reader of the body with OpenAI's field names, and warnings. Raises RequestError.

    Args:
        fields: The fields of Ollama's endpoint.
        values: The values of the fields.
        served: The name under which the model is served.
        body: The body as it was sent.
        services: The services of the server.
    """
    given, warnings = translated(values, served, body.get(KEEP_ALIVE.name))
    warnings += common_fields.warnings(fields, body)
    reader = BodyReader(AS_CHAT, given, services)
    if values["think"] and not reader.model.parser_names[1]:
        raise BadRequest(f'"{values["model"]}" does not support thinking', param="think")
    if (num_ctx := (values["options"] or {}).get("num_ctx")) is not None:
        context = reader.model.info.context_length
        if num_ctx != context:
            warnings.append(f"options.num_ctx has no effect: the context length is {context} tokens")
    return reader, warnings


def _form(values: Values) -> Values:
    """Returns the constraint on the answer under the name that its field has in Ollama's API, for errors."""
    return {"format": values["format"]}


def _logprobs(values: Values) -> LogprobsRequest:
    chosen = values["logprobs"]
    return LogprobsRequest(chosen=chosen, top=values["top_logprobs"] if chosen else 0)
