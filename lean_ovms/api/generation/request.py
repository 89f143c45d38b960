"""The body of chat, completions and responses as one GenerationRequest, and how it is started.

`parse` reads what these endpoints share; a RequestSchema says what one of them reads besides. The order of the checks
in `parse` decides which of several errors a client gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ...config import Config
from ...errors import BadRequest
from ...media.images.loader import ImageLoader
from ...models.generation import DeltaStream, Generation
from ...models.start_all import check_common, check_total, start_all
from ...models.text_model import TextModel
from ...observability.records import current_record
from ...types import ChatPrompt, Json, OutputParams, Prompt, SamplingParams, TokenPrompt
from ..fields import FieldSet, read
from ..response import warning_headers
from ..services import Services
from . import alternatives, unsupported
from .common_fields import stream_options
from .images import load_images
from .llama_cpp_fields import parsed
from .sampling import Defaults, Limits, build_output, build_sampling
from .single_call import SingleCallStream
from .structured_output import add_tool_rule, read_constraint
from .tools import read_offer

MOST_BYTES = 4
"""Of a character: so many tokens at most."""
MESSAGE_BYTES = 256
"""Of what a template writes around a message."""
SHARED_CACHE = (
    "cache_salt is not honoured: the engine's prefix cache is one for all (--enable_prefix_caching false, or "
    "--pipeline_type PAGED)"
)
"""GenAI finds cached blocks by their tokens alone, and no request can be kept out of its cache."""


@dataclass(slots=True, kw_only=True)
class GenerationRequest:
    """A request to generate text, but for its prompt. Not changed once it is built.

    values: every field of the body by name, defaults included. tools: those that the model may call. one_call: the
    generation ends before a second tool call. truncate: prompt tokens kept, -1 for as many as fit, without those of
    truncation_side. headers: Warning headers for what is not honoured.
    """

    values: Json
    model: TextModel
    image_loader: ImageLoader
    sampling: SamplingParams
    output: OutputParams
    stream: bool
    stream_options: dict[str, bool]
    tools: list[Json]
    one_call: bool
    truncate: int | None
    truncation_side: str
    priority: int
    headers: list[tuple[str, str]]

    async def start(self, prompt: Prompt, *, echo: bool = False) -> Generation:
        """The running generation. echo: it keeps the prompt's ids. Raises RequestError."""
        if isinstance(prompt, ChatPrompt):
            prompt = await load_images(prompt, self.model, self.image_loader)
        return await self.model.start(
            prompt,
            self.sampling,
            self.output,
            truncate=self.truncate,
            truncation_side=self.truncation_side,
            echo=echo,
            priority=self.priority,
        )

    async def start_all(self, prompts: Iterable[Prompt], *, echo: bool = False) -> list[Generation]:
        """A generation for each prompt, or none. Raises RequestError."""
        most = self.model.config.max_queued_tokens_per_client
        if self.truncate is None and isinstance(prompts, Sequence) and len(prompts) > 1:
            check_total(sum(len(prompt.tokens) for prompt in prompts if isinstance(prompt, TokenPrompt)), most)
            if isinstance(prompts[0], ChatPrompt) and prompts[0].shared_chars:
                return await self._start_conversations(prompts[0], prompts[1:], most, echo=echo)
        return await start_all(prompts, partial(self.start, echo=echo), most)

    async def _start_conversations(
        self, first: ChatPrompt, others: Sequence[Prompt], most: int, *, echo: bool
    ) -> list[Generation]:
        """Each has the same tools: the tokens of the first one say whether there are too many, before more are made."""
        generation = await self.start(first, echo=echo)
        try:
            own = MOST_BYTES * (first.num_chars + first.other_chars - first.shared_chars)
            own += MESSAGE_BYTES * (1 + len(first.messages))
            check_common(generation.prompt_tokens, own, 1 + len(others), most)
            left = most - generation.prompt_tokens
            return [generation, *await start_all(others, partial(self.start, echo=echo), left)]
        except BaseException:
            await generation.aclose()
            raise

    async def count(self, prompt: ChatPrompt) -> int:
        """Tokens of a prompt. Raises RequestError."""
        return await self.model.count(await load_images(prompt, self.model, self.image_loader))

    def deltas(self, generation: Generation) -> DeltaStream:
        """The deltas of a started generation, up to the end of the first tool call if one_call is set."""
        return SingleCallStream(generation, self.sampling.n) if self.one_call else generation


Check = Callable[[Json, TextModel], None]


def no_check(values: Json, model: TextModel) -> None:
    """An endpoint without checks of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSchema:
    """What one endpoint reads of a body.

    before_tools, after_tools: its own checks, at these places of the order; they raise BadRequest, and may write what
    this endpoint calls by another name into the values of max_tokens, logprobs and text.format. max_tokens: its own
    name of that field. default_max_tokens: where neither the request, an option nor generation_config.json has one; 0:
    as many as fit. parse_output: reasoning and tool calls are parsed out of the generated text.
    """

    fields: FieldSet
    before_tools: Check = no_check
    after_tools: Check = no_check
    max_tokens: str = "max_tokens"
    default_max_tokens: int = 0
    parse_output: bool = True


def parse(body: Json, schema: RequestSchema, services: Services) -> GenerationRequest:
    """The whole body. Raises RequestError."""
    values = read(schema.fields, body)
    model = services.default_model(values)
    if record := current_record.get():
        record.stream = values["stream"]
    if services.config.return_tokens_as_token_ids:
        values["return_tokens_as_token_ids"] = True
    config, defaults = model.config, Defaults(model.directory.generation_config)
    if values.get("n_predict") is None:  # llama.cpp's -1 asks for as many as fit
        defaults.numbers.setdefault("max_new_tokens", schema.default_max_tokens)
    limits = Limits.of(config)
    place = schema.fields.places.get("stream_options")
    options = {} if place is None else stream_options(schema.fields[place], values)
    if services.config.enable_force_include_usage and "include_usage" in options:
        options["include_usage"] = True
    schema.before_tools(values, model)
    capabilities = model.capabilities
    unsupported.drop(values, capabilities)
    offer = read_offer(values)
    schema.after_tools(values, model)
    sampling = build_sampling(values, defaults, limits)
    if sampling.max_tokens == 0:
        given = schema.max_tokens if values[schema.max_tokens] is not None else "max_tokens"
        raise BadRequest("max_tokens value should be greater than 0", param=given)
    constraint, dropped = read_constraint(values, config)
    known = "alternatives" in capabilities
    vocab = model.info.vocab_size if model.known else 0
    sampling, unknown = alternatives.read(values, sampling, known=known, limit=config.max_logprobs, vocab=vocab)
    shared = []
    if values["cache_salt"] and config.enable_prefix_caching:
        if "cache_salt" in capabilities:
            sampling = replace(sampling, cache_salt=values["cache_salt"])
        else:
            shared = [SHARED_CACHE]
    output = build_output(
        values,
        defaults,
        stream=values["stream"],
        parse=schema.parse_output,
        tools=offer.tools,
        constraint=add_tool_rule(constraint, offer.rule, config, sampling, combines="beam_control" in capabilities),
    )
    return GenerationRequest(
        values=values,
        model=model,
        image_loader=services.image_loader,
        sampling=sampling,
        output=parsed(output, values),
        stream=values["stream"],
        stream_options=options,
        tools=offer.tools,
        one_call=offer.rule.offered and not offer.rule.parallel,
        truncate=values["truncate_prompt_tokens"],
        truncation_side=values["truncation_side"],
        priority=values["priority"],
        headers=warning_headers(
            unsupported.warnings(schema.fields, body, capabilities)
            + (unknown + shared + dropped)
            + model.keep_loaded(values.get("keep_alive"))
        ),
    )


def check_sequences(prompts: int, sampling: SamplingParams, config: Config, param: str = "prompt") -> None:
    """Raises BadRequest for more sequences, or more of their log probabilities, than one request may have."""
    alternatives.check_many(replace(sampling, n=prompts * sampling.n), "logprobs", stream=False)
    each, limit = max(sampling.n, sampling.beams), config.max_sequences_per_request
    if prompts * each > limit:
        why = f"{prompts} prompts of {each} sequences each: this server takes {limit} sequences in one request"
        raise BadRequest(why, param="best_of" if sampling.beams > sampling.n else "n" if each > 1 else param)
