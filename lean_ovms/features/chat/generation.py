"""GenerationBody, the common body of all generating endpoints apart from the prompt: how it is read and started.

The tools that the model is offered and the fields that constrain the answer's form (FORMS) become one constraint, which
the feature for structured output builds. Their rules and error texts are OVMS's and OpenAI's; request.py names the
sources.

The sampling fields become SamplingParams. Precedence: request, then the model's generation_config.json, of which
`do_sample` and `rng_seed` are not honoured, then the built-in default, as in OVMS. Temperature decides, and seeds are
random unless given, or set by an option. n without best_of samples n sequences; best_of > 1 is beam search.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, Protocol

from ...api.fields import UINT32_MAX, Values, read, read_one
from ...api.generation import common_fields
from ...api.generation.common_fields import FORMS, NOT_WITH_BEAMS, ReadableBody, overruled, stream_options
from ...api.generation.sampling import INT32_MAX, SAMPLING, GenerationFields
from ...api.response import warning_headers
from ...api.router import follows_ovms
from ...api.services import Services
from ...config import Config
from ...errors import BadRequest, counted
from ...manifest import ANSWER_RULES, named
from ...models.generation import DeltaStream, Generation
from ...models.text_model import TextModel
from ...observability.records import current_record
from ...types import ChatPrompt, Json, OutputConstraint, OutputParams, Prompt, SamplingParams, ToolOffer
from .logprobs import LogprobsRequest, check_many

NO_TOOLS = ToolOffer([])


def read_offer(tools: Any, choice: Any, parallel: bool | None) -> ToolOffer:
    """Reads the values of `tools`, `tool_choice` and `parallel_tool_calls`. Raises BadRequest."""
    if tools is None and choice is None:
        return NO_TOOLS
    from .tools import read_tools  # late, because most requests have no tools

    tools, choice = read_tools(tools, choice)
    several = False if isinstance(choice, dict) else parallel  # a named function is called once, as OpenAI does
    strict = any(tool["function"].get("strict") is True for tool in tools)
    return ToolOffer(tools, choice != "auto", several, strict)


class ReadRule(Protocol):
    """Builds the constraint on the answer of a request."""

    def __call__(
        self, asked: Json, offer: ToolOffer, config: Config, sampling: SamplingParams, *, combines: bool
    ) -> tuple[OutputConstraint | None, list[str]]:
        """Returns the constraint on the answer, None if any text is allowed, and warnings about what is not enforced.

        Args:
            asked: The values of the fields in FORMS that the client sets, by name.
            offer: The tools that may be called, and whether one must be.
            config: The model's configuration.
            sampling: The parameters of the request.
            combines: Whether the engine can combine grammars with beam search and min_tokens.

        Raises:
            BadRequest: A form is invalid or too large, or is incompatible with another form or a required call.
        """


WITHOUT = "which is off on this server"


def answer_rule(
    values: Values, offer: ToolOffer, config: Config, sampling: SamplingParams, *, combines: bool
) -> tuple[OutputConstraint | None, list[str]]:
    """Returns the constraint on the answer, None if any text is allowed, and warnings about what is not enforced.

    The feature for structured output builds it. A server without this feature refuses requests that need a constraint.

    Args:
        values: The values of the body.
        offer: The tools that may be called, and whether one must be.
        config: The model's configuration.
        sampling: The parameters of the request.
        combines: Whether the engine can combine grammars with beam search and min_tokens.

    Raises:
        BadRequest: The constraint is invalid, or the server cannot enforce it.
    """
    asked = {name: values[name] for name in FORMS if values.get(name) is not None}
    if not asked and not offer.tools:
        return None, []
    read: ReadRule | None = config.part(ANSWER_RULES)
    if read is not None:
        return read(asked, offer, config, sampling, combines=combines)
    for name, value in asked.items():
        if value != {"type": "text"}:
            raise BadRequest(f"{name} needs structured output, {WITHOUT}", param=name)
    if offer.tools and offer.required:
        raise BadRequest(f"a tool_choice that requires a call needs structured output, {WITHOUT}", param="tool_choice")
    if offer.tools and offer.strict:
        raise BadRequest(f"a strict tool needs structured output, {WITHOUT}", param="tools")
    return None, []


NOTHING: Values = MappingProxyType({})
NO_LOGPROBS = LogprobsRequest()
SHARED_CACHE = (
    "cache_salt has no effect: this pipeline shares cached prompts between all requests; start the server with "
    "--pipeline_type PAGED or --enable_prefix_caching false"
)
"""GenAI finds cached blocks by their tokens alone, so no request can be kept out of the shared cache."""


@dataclass(slots=True, kw_only=True)
class GenerationBody:
    """A request to generate text, apart from its prompt. It is not changed once it is built."""

    model: TextModel
    """The model that generates."""
    services: Services
    """The services of the server."""
    sampling: SamplingParams
    """How tokens are sampled."""
    output: OutputParams
    """How tokens become text and events."""
    logprobs: LogprobsRequest
    """The log probabilities that the client requests."""
    stream: bool
    """Whether the client requests a stream."""
    stream_options: dict[str, bool]
    """The options of stream_options, by name."""
    named_by_id: bool
    """Whether tokens in log probabilities are named by their ids."""
    tools: list[Json]
    """The tools that the model may call."""
    one_call: bool
    """Whether the generation ends before a second tool call."""
    calls_only: bool
    """Whether the generation ends at text after a tool call."""
    truncate: int | None
    """The number of prompt tokens to keep, -1 for as many as fit; None to keep all."""
    truncation_side: str
    """The end of the prompt at which tokens are cut off, "left" or "right"."""
    priority: int
    """The priority among the requests of one client. Lower values start first."""
    notices: list[str]
    """Warnings about parts of the request that have no effect, as sentences."""

    @property
    def headers(self) -> list[tuple[str, str]]:
        """A Warning header for each notice."""
        return warning_headers(self.notices)

    async def start(self, prompt: Prompt, *, echo: bool = False) -> Generation:
        """Starts generating from a prompt, whose token ids it keeps for an answer with `echo`. Raises RequestError."""
        notices: list[str] = []
        if isinstance(prompt, ChatPrompt):
            prompt, notices = await self._read_media(prompt)
        generation = await self.model.start(
            prompt,
            self.sampling,
            self.output,
            truncate=self.truncate,
            truncation_side=self.truncation_side,
            echo=echo,
            priority=self.priority,
        )
        generation.warnings += notices
        return generation

    async def count(self, prompt: ChatPrompt) -> int:
        """Returns the number of tokens of a prompt. Raises RequestError."""
        prompt, _ = await self._read_media(prompt)
        return await self.model.count(prompt)

    async def _read_media(self, prompt: ChatPrompt) -> tuple[ChatPrompt, list[str]]:
        """Reads the images and other parts of a conversation; returns the prompt with the results, and warnings."""
        if not prompt.has_parts and self.model.image_tokens is None:
            return prompt, []
        from .content import read_media  # late: few conversations have other parts than text

        return await read_media(prompt, self.model, self.services, self.sampling.cache_salt)

    def ending_at(self, tokens: Sequence[int]) -> GenerationBody:
        """Returns a copy of this request with additional tokens that end the text."""
        ends = (*self.sampling.stop_token_ids, *tokens)
        return replace(self, sampling=replace(self.sampling, stop_token_ids=ends))

    def deltas(self, generation: Generation) -> DeltaStream:
        """Returns the deltas of a started generation, which end after tool calls as one_call and calls_only say."""
        if not self.one_call and not self.calls_only:
            return generation
        from .tools import LimitedCalls

        return LimitedCalls(generation, self.sampling.n, one=self.one_call, only=self.calls_only)


@contextmanager
def errors_as_sent(names: Iterable[tuple[str, str]]) -> Iterator[None]:
    """Names fields in errors as the client does; `names` are pairs of the server's name of a field and the client's."""
    try:
        yield
    except BadRequest as error:
        param = error.param or ""
        for name, sent in names:
            if param == name or param.startswith((f"{name}.", f"{name}[")):
                error.param = sent + param.removeprefix(name)
                if error.message.startswith(param):
                    error.message = error.param + error.message.removeprefix(param)
        raise


class BodyReader:
    """Reads a request body, finds its model, and builds the GenerationBody.

    An endpoint creates it, checks and renames the fields that only this endpoint has, and calls `generation`. The order
    of the checks decides which of several errors a client gets.
    """

    __slots__ = ("_body", "_fields", "_services", "_stream_options", "model", "values")

    def __init__(
        self, fields: GenerationFields, body: Json, services: Services, *, other_clients: bool = False
    ) -> None:
        """Reads the fields of a body, and finds its model.

        Args:
            fields: The fields of the endpoint.
            body: The body of the request.
            services: The services of the server.
            other_clients: Whether clients of other APIs use the endpoint too, with additional fields.

        Raises:
            RequestError: The value of a field is wrong, or the server has no such model.
        """
        readable = ReadableBody(body=body)
        for row in services.config.composition.bodies:
            if (other_clients or row.everywhere) and not body.keys().isdisjoint(row.names):
                readable = named(row.package, row.rewrite)(readable, fields.names)
        with errors_as_sent(readable.sent_as):
            self.values = values = read(fields, readable.body)
        self.model = services.named_model(values, TextModel)
        if record := current_record.get():
            record.stream = values["stream"]
        self._fields, self._body, self._services = fields, readable, services
        place = fields.places.get("stream_options")
        self._stream_options = {} if place is None else stream_options(fields[place], values)
        if services.config.enable_force_include_usage and "include_usage" in self._stream_options:
            self._stream_options["include_usage"] = True

    def check_max_tokens(self, name: str) -> None:
        """Raises BadRequest if the value of this field exceeds the server's token limit."""
        check_max_tokens(name, self.values[name] or 0, self.model.config)

    def generation(
        self,
        renamed: Values = NOTHING,
        *,
        offer: ToolOffer = NO_TOOLS,
        logprobs: LogprobsRequest = NO_LOGPROBS,
        parsed: bool = True,
        default_max_tokens: int = 0,
        max_tokens_name: str = "max_tokens",
    ) -> GenerationBody:
        """Builds the request from the values of the body.

        Args:
            renamed: Values that have a different name or form in this API, under the names that all APIs share.
            offer: The tools that may be called, and whether one must be.
            logprobs: The log probabilities that the client requests.
            parsed: Whether reasoning and tool calls are separated from the text.
            default_max_tokens: The limit of generated tokens where neither the request, an option nor
                generation_config.json has one; 0 for as many as fit.
            max_tokens_name: The endpoint's own name of the limit, which takes precedence over max_tokens.

        Raises:
            RequestError: Values do not go together, or the model cannot do what they ask for.
        """
        values, model, stream = self.values, self.model, self.values["stream"]
        by_id = self._services.config.return_tokens_as_token_ids
        unread = self._unread()
        salt, shared = self._unused_salt()
        dropped = unread + salt
        asked = {**values, **renamed} if renamed else values
        given = {**asked, **dict.fromkeys(dropped)} if dropped else asked
        file = {name: value for name, value in model.directory.generation_config.items() if name not in dropped}
        defaults = Defaults(file, 0 if self._body.unlimited else default_max_tokens)
        with errors_as_sent(self._body.sent_as):
            sampling = build_sampling(given, defaults, model.config)
        if sampling.max_tokens == 0:
            name = "max_tokens" if values[max_tokens_name] is None else max_tokens_name
            raise BadRequest("max_tokens value should be greater than 0", param=name)
        sampling, ignored = self._adjusted(sampling)
        rule, notices = self._rule(asked, offer, sampling)
        logprobs, sampling, unknown = self._with_logprobs(logprobs, sampling, stream=stream)
        output = build_output(given, defaults, stream=stream)
        output.parse = parsed and output.skip_special_tokens
        output.parse_reasoning, output.parse_calls = self._body.parse_reasoning, self._body.parse_calls
        output.tools, output.parallel, output.constraint = tuple(offer.tools), offer.parallel, rule
        return GenerationBody(
            model=model,
            services=self._services,
            sampling=sampling,
            output=output,
            logprobs=logprobs,
            stream=stream,
            stream_options=self._stream_options,
            named_by_id=by_id or values.get("return_tokens_as_token_ids", False),
            tools=offer.tools,
            one_call=bool(offer.tools) and offer.parallel is False,
            calls_only=bool(offer.tools) and offer.required,
            truncate=given["truncate_prompt_tokens"],
            truncation_side=given["truncation_side"],
            priority=given["priority"],
            notices=common_fields.warnings(self._fields, self._body.body, unread)
            + [*self._body.notices, *ignored]
            + idle_fields(values, sampling, model.info.speculative if model.known else None, dropped)
            + (self._unseen_documents() + unknown + shared + notices)
            + model.keep_loaded(values.get("keep_alive")),
        )

    def _unread(self) -> list[str]:
        """Returns the names of the fields that the engine or the features of this server do not support."""
        capabilities, parts = self.model.capabilities, self._services.config.composition.parts
        unread = [name for name, need in self._fields.needs.items() if need not in capabilities]
        return unread + [name for name, seam in self._fields.seams.items() if seam not in parts]

    def _unseen_documents(self) -> list[str]:
        """Returns a warning if the request has documents of which the model's chat template shows nothing."""
        if not self.values.get("documents") or self.values.get("chat_template"):
            return []
        templates = self.model.template_source + self.model.directory.tool_template
        return [] if "documents" in templates else ["documents has no effect: the model's chat template shows none"]

    def _unused_salt(self) -> tuple[list[str], list[str]]:
        """Returns the name of cache_salt if it is set but has no effect, and a warning if requests share a cache."""
        cached = self.model.config.enable_prefix_caching
        if not self.values["cache_salt"] or (cached and "cache_salt" in self.model.capabilities):
            return [], []
        return ["cache_salt"], [SHARED_CACHE] * cached

    def _rule(
        self, asked: Values, offer: ToolOffer, sampling: SamplingParams
    ) -> tuple[OutputConstraint | None, list[str]]:
        """Returns the constraint on the answer, None if any text is allowed, and warnings about what is not enforced.

        Args:
            asked: The values of the fields.
            offer: The tools that may be called, and whether one must be.
            sampling: The sampling parameters.

        Raises:
            RequestError: The constraint is invalid, or does not go together with the other fields.
        """
        combines = "beam_control" in self.model.capabilities
        rule, notices = answer_rule(asked, offer, self.model.config, sampling, combines=combines)
        record = current_record.get()
        if rule is not None and (record is None or not follows_ovms(record)):
            rule = replace(rule, checked=True)
        return rule, notices

    def _with_logprobs(
        self, logprobs: LogprobsRequest, sampling: SamplingParams, *, stream: bool
    ) -> tuple[LogprobsRequest, SamplingParams, list[str]]:
        """Returns what the engine can report, the sampling parameters that ask for it, and warnings about the rest.

        Args:
            logprobs: The log probabilities that the client requests.
            sampling: The sampling parameters.
            stream: Whether the answer is streamed.

        Raises:
            BadRequest: More log probabilities are requested than are allowed.
        """
        known = "alternatives" in self.model.capabilities
        vocab = self.model.info.vocab_size if self.model.known else 0
        logprobs = logprobs.resolve(known=known, limit=self.model.config.max_logprobs, vocab=vocab)
        if reported := logprobs.sampling_fields(sampling, stream=stream, known=known):
            sampling = replace(sampling, **reported)
        return logprobs, sampling, [] if known else logprobs.unknown(sampling)

    def _adjusted(self, sampling: SamplingParams) -> tuple[SamplingParams, list[str]]:
        """Applies the fields of other APIs' clients, and the model's defaults for them. Returns warnings, too.

        Raises BadRequest if the fields do not go together with the other parameters.
        """
        adjust, defaults = self._body.adjust, self.model.directory.generation_config
        for row in self._services.config.composition.bodies if adjust is None else ():
            if row.defaults and not defaults.keys().isdisjoint(row.names):
                adjust = partial(named(row.package, row.defaults), {})
        return (sampling, []) if adjust is None else adjust(sampling, self.model.capabilities, defaults)


def check_sequences(prompts: int, sampling: SamplingParams, config: Config, param: str = "prompt") -> None:
    """Raises BadRequest if a request has too many sequences, or too many log probabilities for them."""
    check_many(sampling.top_logprobs, sampling, "logprobs", stream=False, prompts=prompts)
    each, limit = max(sampling.n, sampling.beams), config.max_sequences_per_request
    if prompts * each > limit:
        asked = f"{counted(prompts, 'prompt')} with {counted(each, 'sequence')} each"
        why = f"{asked} in one request exceed this server's limit of {counted(limit, 'sequence')}"
        raise BadRequest(why, param="best_of" if sampling.beams > sampling.n else "n" if each > 1 else param)


_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
_BUILTIN = {field.name: field.builtin for field in SAMPLING if field.builtin is not None}
_SAME = SAMPLING.names & SamplingParams.__dataclass_fields__.keys() - _BUILTIN.keys()
"""The fields with the same name in SamplingParams, except numbers that have a default."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """The defaults for one model's requests: the numbers of its generation_config.json."""

    values: Json
    """The file's values by their names."""
    max_tokens: int = 0
    """The most new tokens if the file has no such number; 0 for as many as the context holds."""

    def number(self, name: str, field: str = "") -> float:
        """Returns a number from the file, or else the built-in default, or 0.

        Raises BadRequest if the request field `field`, by default of the same name, could not have this number.
        """
        value = self.values.get(name)
        if type(value) not in (int, float):
            return _BUILTIN.get(name, 0)
        try:
            return float(read_one(SAMPLING.named(field or name), value))
        except BadRequest as error:
            raise BadRequest(
                f"the model's generation_config.json is invalid: {error.message}", param=error.param
            ) from None

    def flag(self, name: str) -> bool:
        return self.values.get(name) is True

    @property
    def stop(self) -> tuple[str, ...]:
        value = self.values.get("stop_strings") or ()
        stops = [value] if isinstance(value, str) else value
        return tuple(s for s in stops if isinstance(s, str) and s)


def build_sampling(given: Values, defaults: Defaults, config: Config) -> SamplingParams:
    """Builds SamplingParams from the values of the SAMPLING fields.

    A field with the same name in SamplingParams is passed on unchanged; if it is absent, the model's default is used.

    Args:
        given: The field values by name.
        defaults: The defaults of the model, for fields that the client does not set.
        config: The model's configuration.

    Raises:
        BadRequest: Values are incompatible, or exceed the limits of the model's configuration.
    """
    n, beams = _sequences(given, config)
    max_tokens = _max_tokens(given, defaults, config)
    min_tokens = _min_tokens(given, defaults)
    if max_tokens is not None and min_tokens > max_tokens:
        raise BadRequest(f"min_tokens {min_tokens} exceeds max_tokens {max_tokens}", param="min_tokens")
    found = {name: value for name in _SAME if (value := given[name]) is not None}
    found |= {name: defaults.number(name) if (value := given[name]) is None else float(value) for name in _BUILTIN}
    if beams > 1:
        found |= {name: _BUILTIN[name] for name in _PENALTIES}  # which the engine refuses with beams
    whole = {name: given[name] for name in ("seed", "thinking_token_budget")}
    for name, value in whole.items():
        if value is None and type(defaults.values.get(name)) is int:
            whole[name] = int(defaults.number(name))
    seed, budget = whole.values()
    if seed is None or seed == -1:  # as in vLLM, llama.cpp and Ollama
        seed = int.from_bytes(os.urandom(8), "little") % UINT32_MAX + 1
    found |= {
        "max_tokens": max_tokens,
        "min_tokens": min_tokens,
        "top_k": min(max(int(found["top_k"]), 0), INT32_MAX) if found["temperature"] > 0 and beams == 1 else 0,
        "n": n,
        "beams": beams,
        # Sequences of one request differ in their seeds, and the first equals a request with n = 1. Clients' seeds have
        # 64 bits, the engine's 32.
        "seeds": tuple((seed + i) % (UINT32_MAX + 1) for i in range(n)),
        "ignore_eos": defaults.flag("ignore_eos") if given["ignore_eos"] is None else given["ignore_eos"],
        "repetition": given["repetition_detection"],
        "report_progress": bool(given.get("return_progress") and given["stream"]),
        "thinking_token_budget": budget if budget is not None and budget >= 0 else None,
        **_assistance(given, defaults),
    }
    return SamplingParams(**found)


def build_output(given: Values, defaults: Defaults, *, stream: bool) -> OutputParams:
    """Builds OutputParams from the values of a request, whose text is not parsed.

    Args:
        given: The field values by name.
        defaults: The defaults of the model, for fields that the client does not set.
        stream: Whether the response is a stream, whose text includes stop strings by default.
    """
    include = given["include_stop_str_in_output"]
    return OutputParams(
        stop=given["stop"] or defaults.stop,
        include_stop=stream or defaults.flag("include_stop_str_in_output") if include is None else include,
        min_tokens=given["min_tokens"] or 0,
        skip_special_tokens=given["skip_special_tokens"],
    )


def _sequences(given: Values, config: Config) -> tuple[int, int]:
    n, best_of = given["n"], given["best_of"]
    for name, value in (("n", n), ("best_of", best_of)):
        if value == 0:
            raise BadRequest(f"{name} value should be greater than 0", param=name)
        if value is not None and value > config.best_of_limit:
            raise BadRequest(f"{name} exceeds limit of this server: {config.best_of_limit}", param=name)
    n = n or 1
    if best_of is None:
        return n, n if given["use_beam_search"] and n > 1 else 1
    if n > best_of:
        raise BadRequest("n value cannot be greater than best_of", param="n")
    return n, best_of


def _max_tokens(given: Values, defaults: Defaults, config: Config) -> int | None:
    requested, limit = given["max_tokens"], config.max_tokens_limit
    if requested is None:
        if not limit:
            limit = int(defaults.number("max_new_tokens", "max_tokens")) or defaults.max_tokens
        return min(limit, INT32_MAX) or None
    check_max_tokens("max_tokens", requested, config)
    return min(int(requested), limit or INT32_MAX, INT32_MAX)  # the engine counts in 32 bits; no output is that long


def check_max_tokens(name: str, value: int, config: Config) -> None:
    """Raises BadRequest if the value of a field exceeds the server's token limit, unless the server clamps it."""
    if config.max_tokens_limit and value > config.max_tokens_limit and not config.clamp_max_tokens:
        raise BadRequest(f"{name} exceeds limit of this server: {config.max_tokens_limit}", param=name)


def _min_tokens(given: Values, defaults: Defaults) -> int:
    """Returns min_tokens. Of the two names in generation_config.json, vLLM's takes precedence over transformers'."""
    if (requested := given["min_tokens"]) is None:
        name = "min_new_tokens" if defaults.values.get("min_tokens") is None else "min_tokens"
        requested = defaults.number(name, "min_tokens")
    return min(int(requested), INT32_MAX)


def _assistance(given: Values, defaults: Defaults) -> dict[str, Any]:
    if given["num_assistant_tokens"] and given["assistant_confidence_threshold"]:
        text = "num_assistant_tokens and assistant_confidence_threshold are mutually exclusive"
        raise BadRequest(text, param="assistant_confidence_threshold")
    tokens = given["num_assistant_tokens"] or 0
    threshold = given["assistant_confidence_threshold"] or 0.0
    if not tokens and not threshold:
        tokens = int(defaults.number("num_assistant_tokens"))
        threshold = 0.0 if tokens else defaults.number("assistant_confidence_threshold")
    ngram = given["max_ngram_size"] or int(defaults.number("max_ngram_size"))
    return {"num_assistant_tokens": tokens, "assistant_confidence_threshold": threshold, "max_ngram_size": ngram}


PRECEDENCE = (("max_completion_tokens", "max_tokens"),)
"""Pairs of names of the same setting. The first has precedence."""
ONLY_WITH_BEAMS = {"length_penalty": (1,), "early_stopping": (False,)}
DRAFTING = ("num_assistant_tokens", "assistant_confidence_threshold", "max_ngram_size")


def idle_fields(
    values: Values, sampling: SamplingParams, speculative: str | None, dropped: Collection[str] = ()
) -> list[str]:
    """Returns a warning for each field that is set but has no effect in this request.

    Args:
        values: The values of the fields, by the client's names.
        sampling: The sampling parameters made of these values.
        speculative: The model's kind of speculative decoding, "" if it drafts no tokens; None if that is not known yet.
        dropped: Fields that the engine does not support, about which there is another warning.
    """
    lines = list(overruled(values, PRECEDENCE))
    beams = sampling.beams > 1
    for name, nothing in (NOT_WITH_BEAMS if beams else ONLY_WITH_BEAMS).items():
        if values[name] is not None and values[name] not in nothing and name not in dropped:
            lines.append(f"{name} has no effect {'with' if beams else 'without'} beam search")
    if values["truncation_side"] != "left" and values["truncate_prompt_tokens"] is None:
        lines.append("truncation_side has no effect without truncate_prompt_tokens")
    if speculative is not None:
        lines += [f"{name} has no effect: {why}" for name, why in _unused_drafting(speculative) if values[name]]
    return lines


@lru_cache(8)
def _unused_drafting(speculative: str) -> tuple[tuple[str, str], ...]:
    """Returns the fields for draft tokens that this kind of speculative decoding ignores, each with the reason."""
    if not speculative:
        return tuple((name, "the model uses no draft tokens") for name in DRAFTING)
    if speculative == "prompt_lookup":
        return (("assistant_confidence_threshold", "the model has no draft model"),)
    return (("max_ngram_size", "draft tokens come from a draft model, not from the prompt"),)
