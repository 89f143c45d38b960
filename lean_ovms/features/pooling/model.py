"""The front end's side of a model that computes vectors, scores or classes. It knows no HTTP and no JSON bodies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...config import Config
from ...engine.client.interface import ModelEngine
from ...engine.protocol import FrameError, changed_fields
from ...errors import BadRequest, too_many_characters, too_slow
from ...models.model import Model, UsageRecorder
from ...models.text_model import MIN_ENCODE_LIMIT, TokenModel
from ...observability.logging import safe
from ...observability.records import current_client
from ...types import ChatPrompt, Image, Json, distinct_pixels
from ...types.engine import ModelInfo, Vocabulary
from ...util import files
from .feature import PoolingOptions
from .records import Pool, PooledPart
from .types import (
    CLASSIFY,
    EMBED,
    IMAGES_ALONE,
    IN_PROMPT,
    SCORE,
    SPARSE,
    TOKEN_CLASSIFY,
    TOKEN_EMBED,
    VECTORS,
    PooledOutput,
    PoolingInfo,
    PoolingInput,
    PoolingParams,
    TextOrTokens,
    TextWithImages,
)

FLOAT_BYTES = 4
_changed = changed_fields(PoolingParams)


def pool_record(number: int, inputs: Sequence[PoolingInput], params: PoolingParams, client: str = "") -> Pool:
    """Makes the record of a request.

    Args:
        number: The number of the request.
        inputs: The inputs, all single or all pairs. A query that all pairs share is sent once.
        params: How the inputs are encoded.
        client: The name of the client; "" if it is unknown.
    """
    queries: list[TextOrTokens] = []
    single: list[TextOrTokens] = []
    images: list[tuple[int, Image]] = []
    for at, one in enumerate(inputs):
        if isinstance(one, tuple):
            queries.append(one[0])
            single.append(one[1])
        elif isinstance(one, TextWithImages):
            images += [(at, image) for image in one.images]
            single.append(one.text)
        else:
            single.append(one)
    assert not queries or len(queries) == len(single), "inputs are all single or all pairs"
    if queries and all(query is queries[0] or query == queries[0] for query in queries):
        del queries[1:]
    return Pool(
        number,
        single,
        queries,
        _changed(params),
        client,
        [[at, image.height, image.width] for at, image in images],
        [image.param for _, image in images],
        [image.digest for _, image in images],
        distinct_pixels([image for _, image in images]),
    )


class PooledOutputs:
    """Collects the results of one request's inputs."""

    def __init__(self, count: int) -> None:
        self._outputs: list[PooledOutput | None] = [None] * count

    def add(self, record: PooledPart) -> None:
        """Adds the results of some inputs. Raises FrameError if the record does not fit the request."""
        at, row_bytes = 0, record.width * FLOAT_BYTES
        for index, tokens, rows in zip(record.indices, record.tokens, record.rows, strict=True):
            end = at + rows * row_bytes
            if not 0 <= index < len(self._outputs) or self._outputs[index] is not None or end > len(record.data):
                raise FrameError("results that do not fit their request")
            self._outputs[index] = PooledOutput(record.data[at:end], rows, record.width, tokens)
            at = end

    def all(self) -> list[PooledOutput]:
        """Returns the result of each input, in the order of the inputs. Raises FrameError if one is missing."""
        found = [output for output in self._outputs if output is not None]
        if len(found) < len(self._outputs):
            raise FrameError("a request without all its results")
        return found


TASKS = {
    "embeddings": ("embeddings", ("/v1/embeddings", "/pooling", "/rerank", "/score")),
    "rerank": ("rerank", ("/rerank", "/score", "/classify", "/pooling")),
    "classify": ("classification", ("/classify", "/pooling")),
    "token_classify": ("token classification", ("/pooling",)),
}
"""By the value of --task: its name in error messages, and the paths of its requests."""
OF_TOKENS = ("embeddings of tokens", ("/pooling", "/rerank", "/score"))
"""Task and endpoints of an embedding model that computes a vector for each token."""
SPARSELY = ("sparse embeddings", ("/pooling",))
"""Task and endpoints of an embedding model with sparse vectors, besides those of APIs that have such vectors."""
VERBS = {
    EMBED: "embeddings",
    SCORE: "rerank",
    CLASSIFY: "classification",
    TOKEN_CLASSIFY: "token classification",
    TOKEN_EMBED: OF_TOKENS[0],
    SPARSE: SPARSELY[0],
}
DEMO = Path(__file__).parent / "demo_embed"
"""The directory of the small model in the package."""


class PoolingModel(TokenModel):
    """A served model that computes vectors, scores or classes.

    A model may be replaced while it is served: each method that serves a request fetches the current one once (`hold`).
    """

    task = "embeddings, rerank or classification"
    endpoints: tuple[str, ...] = ("/v1/embeddings", "/rerank", "/score", "/classify", "/pooling")
    routed_as = "embeddings"

    def __init__(
        self, config: Config, engine: ModelEngine | Callable[[], ModelEngine] | None = None, base: Model | None = None
    ) -> None:
        super().__init__(config, engine, base)
        self.task, self.endpoints = TASKS.get(config.task, (self.task, self.endpoints))
        if config.task not in ("", "embeddings"):
            self.routed_as = ""
        self.options = config.of(PoolingOptions)
        self._measured: tuple[Vocabulary, int] | None = None
        self._own_pooling: tuple[ModelInfo, PoolingInfo] | None = None
        if config.model_dir == DEMO:  # the engine's report, which tools/make_demo_embed.py has written
            self.known_info = ModelInfo.from_json(files.read_object(DEMO / "engine_info.json"))

    def _prepare(self, info: ModelInfo) -> None:
        super()._prepare(info)
        pooling = PoolingInfo(**info.of_task)
        if pooling.kind == TOKEN_EMBED:
            (self.task, self.endpoints), self.routed_as = OF_TOKENS, ""
        elif pooling.kind == SPARSE:
            (self.task, self.endpoints), self.routed_as = SPARSELY, "sparse"
        elif pooling.kind == SCORE and pooling.outputs > 1:
            self.endpoints = ("/rerank", "/score", "/pooling")  # the names of its classes are not known

    async def _render(self, prompt: ChatPrompt) -> str:
        """Returns the text of a conversation. CLIP-like models have no template: texts are concatenated, as in vLLM."""
        if self.pooling.images != IMAGES_ALONE or prompt.template or self.chat_format.template.source:
            return await super()._render(prompt)
        return "".join(_text(message.get("content")) for message in prompt.messages)

    @property
    def input_modalities(self) -> tuple[str, ...]:
        """The kinds of input that the model takes, judged by its files until it is loaded."""
        images = bool(self.own_pooling.images if self.known else self.directory.config.get("vision_config"))
        return ("text", *["image"] * images)

    @property
    def output_modalities(self) -> tuple[str, ...]:
        """The kind of output, which is the task's name; "embeddings" and "rerank" are OpenRouter's names as well."""
        return (self.config.task,)

    @property
    def pooling(self) -> PoolingInfo:
        """The description of the model that serves requests now. Raises RequestError if none is loaded."""
        return self.serving().own_pooling

    @property
    def own_pooling(self) -> PoolingInfo:
        """The description of this very model, not of a successor that has replaced it and may be of another kind."""
        info = self.info
        if self._own_pooling is None or self._own_pooling[0] is not info:
            self._own_pooling = info, PoolingInfo(**info.of_task)
        return self._own_pooling[1]

    @property
    def joins_texts(self) -> bool:
        return self.pooling.kind == SCORE

    @property
    def reported(self) -> Json:
        return {**super().reported, "pooling": _described(self.pooling)}

    def require_kind(self, *kinds: str) -> PoolingModel:
        """Returns the model that serves requests now. Raises RequestError if it is of another kind or not loaded."""
        model = self.serving()
        if model.own_pooling.kind not in kinds:
            wanted = " or ".join(VERBS[kind] for kind in kinds)
            raise BadRequest(
                f"The model {safe(self.name)!r} is for {model.task}, not for {wanted}; use it at {model.served_under}",
                param="model",
                code="wrong_task",
            )
        return model

    async def pool(self, inputs: Sequence[PoolingInput], params: PoolingParams) -> list[PooledOutput]:
        """Computes the inputs, and returns their results in the same order. Inputs are all single or all pairs.

        If the calling asyncio task is cancelled, so is the request in the engine. Raises RequestError; `param` is the
        index of the input at fault in brackets, such as "[3]", if it is one of several.
        """
        with await self.hold() as model:
            model._check_characters(inputs, params)
            limit_s = model.config.request_timeout_s
            with model.recorded(UsageRecorder()) as usage:
                try:
                    outputs = await asyncio.wait_for(model._compute(inputs, params), limit_s or None)
                except asyncio.TimeoutError:
                    raise too_slow() from None
                usage.prompt_tokens = sum([one.tokens for one in outputs])
                return outputs

    async def _compute(self, inputs: Sequence[PoolingInput], params: PoolingParams) -> list[PooledOutput]:
        if not inputs:
            return []
        results = PooledOutputs(len(inputs))
        make = partial(pool_record, inputs=inputs, params=params, client=current_client())
        results.add(await self.engine.call(make, results.add))
        return results.all()

    def _check_characters(self, inputs: Sequence[PoolingInput], params: PoolingParams) -> None:
        """Raises BadRequest for a text with so many characters that its tokens cannot fit, before it is tokenized."""
        window, longest = self.own_pooling.window, self._longest_token()
        limit = window * longest
        if params.truncate is not None:
            limit = max(MIN_ENCODE_LIMIT, limit)
        repeated = len(params.instruction) if self.own_pooling.pair == IN_PROMPT else 0  # the prompt of a pair has it
        if repeated > limit:
            raise too_many_characters(repeated, window, "instruction")
        total = 0
        for at, one in enumerate(inputs):
            count = sum(map(_num_chars, one)) + repeated if isinstance(one, tuple) else _num_chars(one)
            if count > limit:
                raise too_many_characters(count, window, f"[{at}]")
            total += count
        self.check_total(total)

    def check_total(self, characters: int) -> None:
        """Raises BadRequest if inputs with this many characters must have more tokens than a request may have."""
        most = self.options.max_pooling_tokens
        if characters > most * self._longest_token():
            raise BadRequest(f"the inputs together have {characters} characters, too many for {most} tokens")

    def _longest_token(self) -> int:
        """Returns the most characters of a token, which are computed once, as that takes a millisecond."""
        vocabulary = self.vocabulary
        if self._measured is None or self._measured[0] is not vocabulary:
            self._measured = vocabulary, vocabulary.longest
        return self._measured[1]


def _described(info: PoolingInfo) -> Json:
    """Describes for /v1/models what a model computes, and how that was decided."""
    known: Json = {"kind": info.kind, "dimensions": info.dimensions}
    if info.kind in VECTORS:
        known["pooling"] = {"type": info.pooling, "source": info.pooling_source, "assumed": info.pooling_assumed}
        known["normalize"] = info.normalize
        known["matryoshka"] = info.matryoshka
        known["prompts"] = sorted(info.prompts)
    else:
        known["activation"] = info.activation
        known["labels"] = info.labels
    return known


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part.get("text") or "" for part in content or ())


def _num_chars(one: TextOrTokens | TextWithImages) -> int:
    text = one.text if isinstance(one, TextWithImages) else one
    return len(text) if isinstance(text, str) else 0
