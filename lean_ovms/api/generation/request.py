"""What chat, completions and responses read alike, and how what they have read is started.

An endpoint brings its rows and its prompt; sampling, tools, the form of the answer and the stream are read here. Each
step raises RequestError, so an endpoint says by the order of its calls which of several errors a client gets to hear.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import BadRequest
from ...media.images.loader import ImageLoader
from ...models.generation import DeltaStream, Generation
from ...models.text_model import TextModel
from ...observability.records import current_record
from ...types import ChatPrompt, Json, OutputConstraint, OutputParams, Prompt, SamplingParams
from ..app import App
from ..fields import FieldSet, read
from ..response import model_name, notices
from . import alternatives, unsupported
from .images import load_images
from .messages import read_tools
from .sampling import Defaults, Limits, build_output, build_sampling
from .single_call import SingleCallStream
from .structured_output import ToolRule, read_guide, with_tools


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A generating request, but for its prompt.

    one_call: it ends before a second tool call. headers: those that tell what is not honoured.
    """

    model: TextModel
    gallery: ImageLoader
    sampling: SamplingParams
    output: OutputParams
    stream: bool
    one_call: bool
    truncate: int | None
    headers: list[tuple[str, str]]

    async def start(self, prompt: Prompt, *, echo: bool = False) -> Generation:
        """The running generation. Raises RequestError. echo: it knows the prompt's ids."""
        if isinstance(prompt, ChatPrompt):
            prompt = await load_images(prompt, self.model, self.gallery)
        return await self.model.start(prompt, self.sampling, self.output, truncate=self.truncate, echo=echo)

    async def count(self, prompt: ChatPrompt) -> int:
        """Tokens of a prompt. Raises RequestError."""
        return await self.model.count(await load_images(prompt, self.model, self.gallery))

    def source(self, generation: Generation) -> DeltaStream:
        """What is told of a generation."""
        return SingleCallStream(generation, self.sampling.n) if self.one_call else generation


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """The tools that are left after tool_choice, and what it demands."""

    tools: list[Json]
    rule: ToolRule


SHARED_CACHE = "cache_salt is not honoured: the engine's prefix cache is one for all (--enable_prefix_caching false)"
"""GenAI finds cached blocks by their tokens alone, and no request can be kept out of its cache."""
NO_TOOLS = ToolOffer([], ToolRule(offered=False, required=False, parallel=True, strict=False))


class RequestParser:
    """A body on its way to an Order. values: of every row, by name."""

    def __init__(self, rows: FieldSet, body: Json, app: App) -> None:
        self.values = read(rows, body)
        self.model = app.registry.get(model_name(self.values), TextModel)
        self.config = self.model.config
        self._rows, self._body = rows, body
        if record := current_record.get():
            record.stream = self.values["stream"]
        self._gallery = app.image_loader
        self._defaults = Defaults(self.model.directory.generation_config)
        self._limits = Limits(max_tokens=self.config.max_tokens_limit, sequences=self.config.best_of_limit)

    def limited(self, name: str) -> int | None:
        """A field that bounds what is generated, below this server's limit."""
        asked: int | None = self.values[name]
        if asked is not None and self._limits.max_tokens and asked > self._limits.max_tokens:
            raise BadRequest(f"{name} exceeds limit of this server: {self._limits.max_tokens}", param=name)
        return asked

    def offer(self, tools: object) -> ToolOffer:
        """tools as the client gave them, after tool_choice and parallel_tool_calls."""
        if tools is None and self.values["tool_choice"] is None:
            return NO_TOOLS
        left, choice = read_tools(tools, self.values["tool_choice"])
        return ToolOffer(left, ToolRule.read(left, choice, self.values["parallel_tool_calls"]))

    def sampling(self, *, logprobs: bool) -> SamplingParams:
        """How tokens are picked."""
        return build_sampling(self.values, self._defaults, self._limits, logprobs=logprobs)

    def guide(self) -> tuple[OutputConstraint | None, list[str]]:
        """The form of the answer as the fields of formats.py say it, and what of it is not imposed."""
        return read_guide(self.values, self.config)

    def order(
        self,
        sampling: SamplingParams,
        guide: tuple[OutputConstraint | None, list[str]],
        offer: ToolOffer = NO_TOOLS,
        *,
        parse: bool = False,
    ) -> GenerationRequest:
        """The whole. parse: the answer's text may hold reasoning and calls."""
        values, (form, dropped) = self.values, guide
        unknown = alternatives.unknown(values, sampling)
        output = build_output(
            values,
            self._defaults,
            stream=values["stream"],
            parse=parse,
            tools=offer.tools,
            guide=with_tools(form, offer.rule, self.config, sampling),
        )
        shared = [SHARED_CACHE] if values["cache_salt"] and self.config.enable_prefix_caching else []
        return GenerationRequest(
            model=self.model,
            gallery=self._gallery,
            sampling=sampling,
            output=output,
            stream=values["stream"],
            one_call=offer.rule.offered and not offer.rule.parallel,
            truncate=values["truncate_prompt_tokens"],
            headers=notices(unsupported.told(self._rows, self._body) + unknown + shared + dropped),
        )
