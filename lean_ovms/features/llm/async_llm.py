"""AsyncLLM: models in a program with an event loop.

A call is handled as a request of the server: its body is checked by the fields of the endpoint, and computed by the
endpoint's functions. Only the HTTP response is not written.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import warnings
from asyncio import Lock, to_thread
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from ...api.fields import UINT32_MAX, FieldSet
from ...api.generation.sampling import SAMPLING
from ...api.response import model_name
from ...api.services import Services
from ...cli.keywords import of_keywords
from ...config import Config
from ...errors import BadRequest, StartError
from ...models.generation import DeltaStream, Generation
from ...models.text_model import TextModel
from ...server.opened import opened
from ...types import Json
from ..chat.generation import Defaults, GenerationBody, build_sampling
from ..chat.request import ALL_FIELDS as CHAT_FIELDS
from ..chat.request import parse_chat
from ..completions import request as completion_request
from .options import in_python, python_errors, python_options, with_keywords
from .outputs import (
    AudioTranscript,
    BeamSearchOutput,
    BeamSearchSequence,
    ClassificationOutput,
    ClassificationRequestOutput,
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
    SpeechOutput,
    Started,
)
from .params import SamplingParams, check_names, for_chat
from .requests import BeamSearchParams, LoRARequest, PoolingParams, as_given
from .tokenizer import AsyncTokenizer

Prompt = str | list[int] | Mapping[str, Any]
"""A text, token ids, or vLLM's objects {"prompt": TEXT} and {"prompt_token_ids": IDS}."""
Text = str | list[int]
Adapter = LoRARequest | None
Audio = str | PathLike[str] | bytes
"""An audio file: its path, or its bytes."""
T = TypeVar("T")
NO_LIMIT = 1 << 40
ARGUMENTS = frozenset(("sampling_params", "use_tqdm", "lora_request"))
"""Arguments of the methods that are no fields, but may be misspelt like one."""


async def _sequence(found: RequestOutput, output: CompletionOutput, tokenizer: AsyncTokenizer) -> BeamSearchSequence:
    """Returns a text of a beam search together with its prompt, as vLLM does. Raises RequestError."""
    tokens = [*found.prompt_token_ids, *output.token_ids]
    return BeamSearchSequence(
        tokens=tokens,
        text=await tokenizer.decode(tokens),
        logprobs=[place or {} for place in output.logprobs or ()],
        cum_logprob=output.cumulative_logprob or 0.0,
        finish_reason=output.finish_reason,
        stop_reason=output.stop_reason,
    )


class AsyncLLM:
    """A model for the tasks of one event loop: `async with AsyncLLM(model) as llm`.

    Any number of calls may run at once, and the engine batches them. Cancelling a task, or closing a stream, cancels
    its request. Errors are those of LLM, and a TypeError for an unknown field. The fields of a method are those of its
    endpoint, by name: tools for chat, dimensions for embed, language for transcribe, voice for speak, and so on, and
    model if several models are served.
    """

    def __init__(
        self, model: str | PathLike[str] = "", *, config: Config | None = None, seed: int | None = None, **options: Any
    ) -> None:
        """Makes an engine; the arguments are those of LLM. Raises StartError."""
        if config is not None and (model or options):
            raise TypeError("give either a Config or options, not both")
        with python_options():
            config = config or of_keywords(os.fspath(model), **with_keywords(options))
        # The only client waits, so no requests are rejected because of others, and models stay loaded.
        self.config = config.replace(
            max_queued_requests=NO_LIMIT,
            max_queued_requests_per_client=NO_LIMIT,
            max_queued_tokens_per_client=NO_LIMIT,
            file_system_poll_wait_seconds=0,
        )
        self._seeds = None if seed is None else itertools.count(seed)
        self._ids = map(str, itertools.count())
        self._stack = contextlib.AsyncExitStack()
        self._services: Services | None = None
        self._adapters = Lock()

    def pull(self) -> None:
        """Downloads the model from a hub, unless it is there. It blocks. Raises StartError."""
        from ..deployment.desired import ServedModels

        with python_options():
            self.config = ServedModels().available(self.config)

    async def __aenter__(self) -> AsyncLLM:
        """Loads the model. Raises StartError."""
        await to_thread(self.pull)
        with python_options():
            self._services = (await self._stack.enter_async_context(opened(self.config))).services
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancels running calls and stops the engine. Idempotent."""
        self._services = None
        await self._stack.aclose()

    # --- text

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        lora_request: Adapter = None,
        **fields: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yields the answers to a prompt, each time with all of their text so far.

        Args:
            prompt: A text, token ids, or an object with a text as `prompt`, ids as `prompt_token_ids`, or both.
            sampling_params: The sampling parameters; None for the defaults of SamplingParams.
            lora_request: The adapter to use; None for the model without an adapter.
            **fields: Further fields of the completions endpoint.
        """
        return self._stream(partial(self.start, prompt, sampling_params, lora_request, **fields))

    def chat(
        self,
        messages: list[Json],
        sampling_params: SamplingParams | None = None,
        *,
        lora_request: Adapter = None,
        **fields: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yields the next message of a conversation, each time with all of its text so far."""
        return self._stream(partial(self.start_chat, messages, sampling_params, lora_request, **fields))

    async def beam_search(
        self, prompt: Prompt, params: BeamSearchParams, *, lora_request: Adapter = None, **fields: Any
    ) -> BeamSearchOutput:
        """Returns the likeliest continuations of a prompt."""
        found = await self.complete(self.start(prompt, SamplingParams(**params.as_fields()), lora_request, **fields))
        tokenizer = await self.get_tokenizer()
        with python_errors():
            sequences = [await _sequence(found, output, tokenizer) for output in found.outputs]
        return BeamSearchOutput(sequences)

    async def get_tokenizer(self) -> AsyncTokenizer:
        """Returns the tokenizer of the only model, whose methods are awaited."""
        with python_errors():
            return AsyncTokenizer(await self.services.when_known(self.default_model))

    async def get_default_sampling_params(self) -> SamplingParams:
        """Returns the sampling parameters of a request that sets none: the model's and the options' defaults."""
        with python_errors():
            model = await self.services.when_known(self.default_model)
            defaults = Defaults(model.directory.generation_config)
            found = build_sampling(SAMPLING.defaults, defaults, model.config)
        names = (
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
        )
        return SamplingParams(**{name: getattr(found, name) for name in names})

    def default_model(self) -> TextModel:
        """Returns the only text model. Raises RequestError."""
        name = self.services.registry.default_of(TextModel)
        return self.services.registry.get(model_name({"model": name or None})).require_task(TextModel)

    async def _adapter_of(self, request: Adapter) -> Json:
        """Returns the field that selects an adapter, and loads the adapter unless it is loaded. Raises RequestError."""
        if request is None:
            return {}
        registry = self.services.registry
        async with self._adapters:
            if request.lora_path and (request.load_inplace or request.lora_name not in registry.names):
                model = registry.get(request.base_model_name) if request.base_model_name else self.default_model()
                try:
                    with await model.hold():
                        await model.adapters.add(request.lora_name, request.lora_path)
                except StartError as error:
                    raise BadRequest(
                        f"the adapter {request.lora_name} cannot be loaded: {in_python(str(error))}"
                    ) from error
        return {"model": request.lora_name}

    @staticmethod
    async def complete(started: Awaitable[Started]) -> RequestOutput:
        """Waits for the end of a generation, and returns its output."""
        with python_errors():
            return await (await started).complete()

    @staticmethod
    async def _stream(start: Callable[[], Awaitable[Started]]) -> AsyncGenerator[RequestOutput, None]:
        with python_errors():
            async with contextlib.aclosing((await start()).stream()) as outputs:
                async for output in outputs:
                    yield output

    async def start(
        self, prompt: Prompt, sampling_params: SamplingParams | None, lora_request: Adapter = None, **fields: Any
    ) -> Started:
        """Starts a completion. Raises RequestError."""
        fields |= await self._adapter_of(lora_request)
        text = prompt if isinstance(prompt, str) else None
        if isinstance(prompt, Mapping):
            check_names(prompt, frozenset(("prompt", "prompt_token_ids")), "a prompt")
            text, prompt = prompt.get("prompt"), prompt.get("prompt_token_ids") or prompt.get("prompt", "")
        given = {**vars(sampling_params or SamplingParams()), "prompt": prompt}
        default = completion_request.DEFAULT_MAX_TOKENS
        completion = await self.read(
            partial(completion_request.parse_completion, default_max_tokens=default),
            completion_request.ALL_FIELDS,
            given,
            fields,
        )
        completion, [generation] = await completion_request.start(completion)
        return self._running(generation, completion.generation, generation, text)

    async def start_chat(
        self, messages: list[Json], sampling_params: SamplingParams | None, lora_request: Adapter = None, **fields: Any
    ) -> Started:
        """Starts an answer to a conversation. Raises RequestError."""
        fields |= await self._adapter_of(lora_request)
        given = {**for_chat(vars(sampling_params or SamplingParams())), "messages": messages}
        chat = await self.read(parse_chat, CHAT_FIELDS, given, fields)
        generation = await chat.generation.start(chat.prompt, echo=True)
        return self._running(generation, chat.generation, chat.generation.deltas(generation), generation.prompt)

    def _running(self, generation: Generation, body: GenerationBody, deltas: DeltaStream, text: str | None) -> Started:
        for notice in (*body.notices, *generation.warnings):
            warnings.warn(notice, stacklevel=2)
        return Started(
            next(self._ids), generation, deltas, text, body.sampling, scored=body.logprobs.prompt is not None
        )

    # --- vectors, scores, classes

    async def embed(self, text: Text, **fields: Any) -> EmbeddingRequestOutput:
        """Returns the vector of a text."""
        vector: list[float] = await self._by_feature("embed", text, fields)
        return PoolingRequestOutput(next(self._ids), EmbeddingOutput(vector))

    async def score(
        self, data_1: str | list[str], data_2: str | list[str], **fields: Any
    ) -> list[ScoringRequestOutput]:
        """Returns the scores of pairs of texts: of one text with one or several, or of two lists pair by pair."""
        scores: list[float] = await self._by_feature("score", (data_1, data_2), fields)
        return [PoolingRequestOutput(next(self._ids), ScoringOutput(value)) for value in scores]

    async def classify(self, text: Text, **fields: Any) -> ClassificationRequestOutput:
        """Returns the probabilities of the model's labels for a text."""
        probs, label = await self._by_feature("classify", text, fields)
        return PoolingRequestOutput(next(self._ids), ClassificationOutput(probs, label))

    async def encode(
        self, text: Text, pooling_params: PoolingParams | None = None, *, pooling_task: str | None = None, **fields: Any
    ) -> PoolingRequestOutput[PoolingOutput]:
        """Returns the output of a pooling model for a text.

        Args:
            text: The text, or its token ids.
            pooling_params: Further fields, as an object.
            pooling_task: "embed", "token_embed", "classify" or "token_classify"; None for the model's default.
            **fields: Further fields of /pooling.
        """
        fields = {"task": pooling_task, "pooling_params": pooling_params, **fields}
        return PoolingRequestOutput(next(self._ids), PoolingOutput(await self._by_feature("encode", text, fields)))

    # --- speech

    async def transcribe(self, audio: Audio, **fields: Any) -> AudioTranscript:
        """Transcribes an audio file, with times if timestamp_granularities asks for them."""
        data = audio if isinstance(audio, bytes) else await to_thread(Path(audio).read_bytes)
        found: AudioTranscript = await self._by_feature("transcribe", data, fields)
        return found

    async def speak(self, text: str, **fields: Any) -> SpeechOutput:
        """Speaks a text, and returns it as an audio file."""
        return SpeechOutput(*await self._by_feature("speak", text, fields))

    @property
    def services(self) -> Services:
        """Returns the services of the app. Raises RuntimeError before the model is loaded and after `close`."""
        if self._services is None:
            raise RuntimeError("the model is not open")
        return self._services

    async def _by_feature(self, method: str, given: Any, fields: Json) -> Any:
        """Calls the function of a feature that does the work of a method, and returns its result. Raises ValueError."""
        if (params := fields.pop("pooling_params", None)) is not None:
            fields = {**vars(params), **{name: value for name, value in fields.items() if value is not None}}
        with python_errors():
            return await self.services.config.composition.method(method)(self, given, fields)

    async def read(self, parse: Callable[[Json, Services], T], known: FieldSet, given: Json, fields: Json) -> T:
        """Parses a body, after loading the model if that has never been loaded.

        Args:
            parse: Parses the body; its second argument is the services.
            known: The fields of the endpoint.
            given: The values that the method sets itself.
            fields: The caller's fields, which override these; None counts as not set.

        Raises:
            RequestError: The body is not valid.
            TypeError: A field is unknown.
        """
        fields = {name: as_given(value) for name, value in fields.items() if value is not None}
        check_names(fields, known.names, "the method", ARGUMENTS)
        body = {**given, **fields}
        if "return_token_ids" in known.places:
            body["return_token_ids"] = True
            if self._seeds is not None:
                body.setdefault("seed", next(self._seeds) % (UINT32_MAX + 1))
        services = self.services
        return await services.when_known(lambda: parse(body, services))
