"""LLM: models in a program without an event loop, or in a notebook. It runs an event loop in a thread."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, wait
from os import PathLike
from typing import Any, TypeVar

from tqdm.auto import tqdm

from ...config import Config
from ...errors import counted
from ...types import Json
from .async_llm import AsyncLLM, Audio, Prompt, Text
from .outputs import (
    AudioTranscript,
    BeamSearchOutput,
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringRequestOutput,
    SpeechOutput,
)
from .params import SamplingParams
from .requests import BeamSearchParams, LoRARequest, PoolingParams
from .tokenizer import Tokenizer

T = TypeVar("T")
R = TypeVar("R")
Tqdm = bool | Callable[..., Any]
"""Whether there is a progress bar, on a terminal or in a notebook; or a function that creates one."""
Params = SamplingParams | Sequence[SamplingParams] | None
"""One for all inputs, one for each, or the defaults."""
Adapters = LoRARequest | Sequence[LoRARequest | None] | None
"""One for all inputs, one for each, or none."""
Texts = Text | Sequence[Text]
BATCHED_TOKENS = 1024
"""The default of max_num_batched_tokens here: nobody waits for the next token, and larger steps are faster."""
WAITING = 64
"""Inputs that wait for a place in the engine, so that none is free while the next one is tokenized."""
PAIRS = 32
"""Pairs of one request: a query is computed once for each."""
FILES = 4
"""Audio files, or texts to speak, at once."""
STOP_S = 10
"""Seconds that an interrupted call waits for its requests to be cancelled."""
WAKE_S = 0.1
"""Seconds after which a waiting call looks for a signal. A signal that comes just before the thread sleeps does not
wake it, so that Ctrl-C would have no effect."""


class LLM:
    """A model: `with LLM("OpenVINO/Qwen3-8B-int4-ov") as llm: llm.generate(["Hello"])`.

    The methods are those of vLLM's class. They take one input or many, which the engine batches, and return one output
    for each, in their order. They raise ValueError if an input is not valid, and RuntimeError if the engine fails;
    then, and after Ctrl-C, the other requests of the call are cancelled. Threads may share an object.
    """

    def __init__(
        self, model: str | PathLike[str] = "", *, config: Config | None = None, seed: int | None = None, **options: Any
    ) -> None:
        """Loads the model, and pulls it first if it is one of the hub.

        Args:
            model: A directory, or a model's name at the hub; "" for the options' model, or else the demo models.
            config: All options; then neither a model nor other options may be given.
            seed: The seed of the first request without one; later ones get the next numbers. None for random seeds.
            **options: Options of the command line, or of vLLM, by their names. The default of max_num_batched_tokens is
                larger than in a server.

        Raises:
            StartError: The model cannot be loaded.
            TypeError: There are a config and other options.
        """
        if config is None:
            options = {"max_num_batched_tokens": BATCHED_TOKENS, **options}
        self._llm = AsyncLLM(model, config=config, seed=seed, **options)
        self._llm.pull()  # in this thread, so that Ctrl-C interrupts it
        self._loop = _Loop()
        self._end = weakref.finalize(self, _end, self._loop, self._llm)
        try:
            self._loop.run(self._llm.__aenter__())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops the engine, as the end of the program does. Idempotent."""
        self._end()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        use_tqdm: Tqdm = True,
        lora_request: Adapters = None,
        **fields: Any,
    ) -> list[RequestOutput]:
        """Returns the answers to each prompt."""
        inputs = _with_params(_several(prompts, int), sampling_params, lora_request)
        return self._batch(inputs, lambda one: self._llm.complete(self._llm.start(*one, **fields)), use_tqdm)

    def chat(
        self,
        messages: list[Json] | Sequence[list[Json]],
        sampling_params: Params = None,
        use_tqdm: Tqdm = True,
        lora_request: Adapters = None,
        **fields: Any,
    ) -> list[RequestOutput]:
        """Returns the next message of each conversation."""
        inputs = _with_params(_several(messages, dict), sampling_params, lora_request)
        return self._batch(inputs, lambda one: self._llm.complete(self._llm.start_chat(*one, **fields)), use_tqdm)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        lora_request: Adapters = None,
        use_tqdm: Tqdm = False,
        **fields: Any,
    ) -> list[BeamSearchOutput]:
        """Returns the likeliest continuations of each prompt."""
        inputs = _with_params(_several(prompts, int), None, lora_request)
        return self._batch(
            inputs, lambda one: self._llm.beam_search(one[0], params, lora_request=one[2], **fields), use_tqdm
        )

    def get_tokenizer(self) -> Tokenizer:
        """Returns the tokenizer of the only text model."""
        return Tokenizer(self._loop.run(self._llm.get_tokenizer()), self._loop.run)

    def get_default_sampling_params(self) -> SamplingParams:
        """Returns the sampling parameters of a request that sets none: the model's and the options' defaults."""
        return self._loop.run(self._llm.get_default_sampling_params())

    def embed(self, prompts: Texts, use_tqdm: Tqdm = True, **fields: Any) -> list[EmbeddingRequestOutput]:
        """Returns the vector of each text."""
        return self._batch(_several(prompts, int), lambda one: self._llm.embed(one, **fields), use_tqdm)

    def score(
        self, data_1: str | list[str], data_2: str | list[str], use_tqdm: Tqdm = True, **fields: Any
    ) -> list[ScoringRequestOutput]:
        """Returns the scores of pairs of texts: of one text with one or several, or of two lists pair by pair."""
        left, right = _several(data_1, int), _several(data_2, int)
        if len(left) not in (1, len(right)):
            raise ValueError(
                f"there are {len(left)} first texts and {len(right)} second ones; give as many of each, or a single "
                "first text"
            )
        alone = len(left) == 1
        starts = range(0, len(right), PAIRS)
        parts = [(left if alone else left[start : start + PAIRS], right[start : start + PAIRS]) for start in starts]
        found = self._batch(parts, lambda part: self._llm.score(*part, **fields), use_tqdm)
        return [one for part in found for one in part]

    def classify(self, prompts: Texts, use_tqdm: Tqdm = True, **fields: Any) -> list[ClassificationRequestOutput]:
        """Returns the probabilities of the model's labels for each text."""
        return self._batch(_several(prompts, int), lambda one: self._llm.classify(one, **fields), use_tqdm)

    def encode(
        self,
        prompts: Texts,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        use_tqdm: Tqdm = True,
        *,
        pooling_task: str | None = None,
        **fields: Any,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Returns the output of a pooling model for each text: vectors or classes, of the text or of each token.

        Args:
            prompts: A text, token ids, or a list of these.
            pooling_params: Further fields, as an object for all texts, or a list with one for each.
            use_tqdm: Whether there is a progress bar, or a function that makes one.
            pooling_task: "embed", "token_embed", "classify" or "token_classify"; None for the model's default.
            **fields: Further fields of /pooling.
        """
        texts = _several(prompts, int)
        inputs = list(zip(texts, _each(texts, pooling_params, PoolingParams), strict=True))
        return self._batch(inputs, lambda one: self._llm.encode(*one, pooling_task=pooling_task, **fields), use_tqdm)

    def transcribe(self, audio: Audio | Sequence[Audio], use_tqdm: Tqdm = True, **fields: Any) -> list[AudioTranscript]:
        """Transcribes each audio file, with times if timestamp_granularities asks for them."""
        return self._batch(_several(audio, int), lambda one: self._llm.transcribe(one, **fields), use_tqdm, FILES)

    def speak(self, texts: str | Sequence[str], use_tqdm: Tqdm = True, **fields: Any) -> list[SpeechOutput]:
        """Speaks each text, and returns it as an audio file."""
        return self._batch(_several(texts, int), lambda one: self._llm.speak(one, **fields), use_tqdm, FILES)

    def _batch(
        self, inputs: Sequence[T], call: Callable[[T], Awaitable[R]], use_tqdm: Tqdm, at_once: int = 0
    ) -> list[R]:
        """Makes a call for each input, and shows the progress.

        Args:
            inputs: The inputs.
            call: Computes the result of one input.
            use_tqdm: Whether a progress bar is shown, or a function that makes it.
            at_once: The most calls that run at once; 0 for a few more than the engine computes at once.

        Returns:
            The results, in the order of the inputs.
        """
        bar = _bar(len(inputs), use_tqdm)
        try:
            return self._loop.run(_map(inputs, call, at_once or self._llm.config.max_num_seqs + WAITING, bar))
        finally:
            bar.close()


def _several(value: Any, element: type) -> list[Any]:
    """Returns a list of inputs; a single input, with elements of this type, becomes a list of one."""
    alone = isinstance(value, str | bytes | PathLike | Mapping) or (len(value) > 0 and isinstance(value[0], element))
    return [value] if alone else list(value)


def _with_params(
    inputs: list[T], params: Params, adapters: Adapters
) -> list[tuple[T, SamplingParams | None, LoRARequest | None]]:
    """Combines each input with its parameters and its adapter. Raises ValueError for a list of another length."""
    return list(zip(inputs, _each(inputs, params, SamplingParams), _each(inputs, adapters, LoRARequest), strict=True))


def _each(inputs: list[Any], given: Any, kind: type[T]) -> list[T | None]:
    """Returns a value for each input: the same, or those of a list. Raises ValueError for a list of another length."""
    each = [given] * len(inputs) if given is None or isinstance(given, kind) else list(given)
    if len(each) != len(inputs):
        raise ValueError(f"there are {counted(len(inputs), 'input')}, but {len(each)} {kind.__name__}")
    return each


async def _map(inputs: Sequence[T], call: Callable[[T], Awaitable[R]], at_once: int, bar: Any) -> list[R]:
    """Calls a function for each input, and returns the results. An error or a cancellation cancels all calls."""
    results: dict[int, R] = {}
    numbered = iter(enumerate(inputs))
    began, tokens = time.monotonic(), 0

    async def work() -> None:
        nonlocal tokens
        for number, one in numbered:
            try:
                results[number] = result = await call(one)
            except ValueError as error:
                raise ValueError(f"input {number}: {error}" if len(inputs) > 1 else str(error)) from error
            if isinstance(result, RequestOutput):
                tokens += sum(len(output.token_ids) for output in result.outputs)
                bar.set_postfix_str(f"{tokens / (time.monotonic() - began):.0f} tokens/s", refresh=False)
            bar.update(1)

    tasks = [asyncio.ensure_future(work()) for _ in range(min(at_once, len(inputs)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [results[number] for number in range(len(inputs))]


def _bar(total: int, use_tqdm: Tqdm) -> Any:
    """Makes a progress bar, which is visible if it is requested and there is a terminal or a notebook."""
    make = tqdm if isinstance(use_tqdm, bool) else use_tqdm
    # With None, tqdm is disabled unless there is a terminal.
    disable = not use_tqdm or (False if "ipykernel" in sys.modules else None)
    return make(total=total, desc="Processed", dynamic_ncols=True, disable=disable)


class _Loop:
    """An event loop in a thread. At the latest, the engine ends with this thread, however the program ends."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lean_ovms", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns what work returns. Interrupted (Ctrl-C), it cancels work and waits for its end."""
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("the model is closed")
        result: Future[T] = Future()
        task: asyncio.Task[T] | None = None

        def start() -> None:
            nonlocal task
            task = self._loop.create_task(work)
            task.add_done_callback(end)

        def end(task: asyncio.Task[T]) -> None:
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error is not None:
                result.set_exception(error)
            else:
                result.set_result(task.result())

        def cancel() -> None:
            if task is not None:
                task.cancel()
            else:
                work.close()
                result.cancel()

        try:  # Ctrl-C may come at any moment, even before `start` is scheduled
            self._loop.call_soon_threadsafe(start)
            while not wait([result], WAKE_S).done:
                pass
            return result.result()
        except BaseException:
            if not result.done():
                self._loop.call_soon_threadsafe(cancel)
                wait([result], STOP_S)
            raise

    def stop(self) -> None:
        """Ends the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _end(loop: _Loop, llm: AsyncLLM) -> None:
    try:
        loop.run(llm.close())
    finally:
        loop.stop()
