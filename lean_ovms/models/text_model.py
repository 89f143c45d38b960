"""One loaded model: a prompt in, a running generation out. Where text meets engine; knows no HTTP, no JSON bodies.

`await model.start(...)` renders, submits and waits until the engine has accepted or refused, so every 4xx and 503
happens before a stream's 200.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ..config import Config
from ..engine.client.engine import Engine, ReplyStream
from ..engine.client.lazy_engine import LazyEngine
from ..errors import BadRequest, ModelNotFound, StartError, Unavailable, too_many_characters
from ..observability.logging import safe
from ..observability.metrics import Metrics, TokenTimer
from ..observability.records import GenerationRecord, RequestRecord, current
from ..repository.model_dir import ModelDir
from ..repository.model_dir import read as read_model_dir
from ..text.decode.detokenizer import Detokenizer
from ..types import ChatPrompt, EngineStats, ModelInfo, Output, Prompt, SamplingParams, TokenPrompt
from ..util.concurrency import Offload
from ..util.in_flight import InFlight
from .adapters import AdapterSet
from .generation import Generation

if TYPE_CHECKING:
    from .chat_format import ChatFormat

log = logging.getLogger("lean_ovms.models.text_model")

PROMPT_TAIL = 400
"""Characters of the prompt's end that a parser may look at, to see whether reasoning is already open."""
MAX_LOGGED = 20_000
"""Characters of a prompt in the log, where prompts are logged at all."""
MOST_ENCODED = 1 << 20
"""Characters to tokenize at least allowed in one request; for models of a long context four for each token."""
SPARE_TOKENS = 8
"""Room that an assisted pipeline wants for tokens it may have to take back."""


def _dialect() -> type[ChatFormat]:
    """A third of all that the front end imports, jinja2 among it: read while the engine loads, after listening."""
    from .chat_format import ChatFormat

    return ChatFormat


class Model:
    """A model by name, with its engine child. Once retired it serves no new requests: its heir does, if it has one.

    config: the options of this model. parent: the model that it is an adapter of, or "". loras: its own adapters.
    failure: why the last attempt to load it, or what should replace it, failed.
    """

    def __init__(self, config: Config, engine: Engine | LazyEngine | None = None, parent: str = "") -> None:
        self.config = config
        self.parent = parent
        self.name = config.served_name
        self.created = int(time.time())
        self.directory = ModelDir()
        self.engine = engine or Engine(replace(config, lora_modules=""))
        self.metrics = Metrics()
        self.failure: StartError | None = None
        self._uses = InFlight()
        self._draining = False
        self._successor: Model | None = None
        self.aside = Offload(config.max_body_bytes)
        self._most_characters = 0
        self.dialect: ChatFormat | None = None
        self.loras: AdapterSet[Model] = AdapterSet(config, self.engine, self._adapter)

    async def load(self) -> None:
        """Read the directory, start the engine and learn what only it knows. Raises StartError."""
        try:
            await self._load()
            await self.loras.load()
        except StartError as error:
            self.failure = error
            await self.engine.stop()
            raise

    async def _load(self) -> None:
        if not self.config.fake_engine:
            self.directory = await asyncio.to_thread(
                read_model_dir,
                self.config.model_dir,
                generation_config=self.config.generation_config_path,
                task=self.config.task,
            )
        info, dialect = await asyncio.gather(self.engine.start(), asyncio.to_thread(_dialect))
        self.dialect = dialect(self.config, self.directory, info, self.engine.vocabulary)
        self._most_characters = info.context_length * self.engine.vocabulary.longest
        if self.dialect.template.problem:
            log.warning("%s serves no chat: %s", self.name, self.dialect.template.problem)

    async def stop(self) -> None:
        """Stop the engine child, and those of adapters; idempotent."""
        await self.loras.stop()
        await self.engine.stop()

    async def drain(self, successor: Model | None = None) -> None:
        """Leave new requests to heir, let the running ones finish, then stop."""
        self._draining, self._successor = True, successor
        await self.loras.drain(successor.loras.models if successor is not None else {})
        await self._uses.over()
        await self.stop()

    @property
    def with_adapters(self) -> list[Model]:
        """The model and its adapters."""
        return [self, *self.loras.models.values()]

    def _adapter(self, config: Config, engine: LazyEngine) -> Model:
        model = Model(config, engine, parent=self.name)
        model.metrics, model.aside = self.metrics, self.aside
        return model

    def _serving(self) -> Model:
        """This one, or the one that took its place while a request was on its way. Raises RequestError."""
        model = self
        while model._successor is not None:
            model = model._successor
        if model._draining:
            raise ModelNotFound(f"The model {safe(self.name)!r} is no longer served", param="model")
        if model.dialect is None:
            if model.failure is not None:
                raise Unavailable(f"The model could not be loaded. {model.failure.reason}", code="model_not_loaded")
            raise model.engine.unavailable()
        return model

    @property
    def state(self) -> str:
        """The engine's, but "failed" for a model that could not be loaded, and "loading" until all is known of it."""
        if self.dialect is not None:
            return self.engine.state
        return "failed" if self.failure is not None else "loading"

    @property
    def ready(self) -> bool:
        """Whether requests are served now."""
        return self.state == "ready"

    def require_ready(self) -> Model:
        """The model that serves now what is asked of this one. Raises RequestError, with the reason if none does."""
        serving = self._serving()
        if not serving.ready:
            raise serving.engine.unavailable()
        return serving

    @property
    def image_tokens(self) -> list[str] | None:
        """What the model itself writes for an image; None if it reads text only. Raises RequestError if not ready."""
        info = self.require_ready().info
        return info.image_tokens if info.vision else None

    @property
    def info(self) -> ModelInfo:
        """What the engine said about the model, once it is loaded."""
        return self.engine.info

    async def render(self, prompt: ChatPrompt) -> str:
        """The text the model would see; what takes long is done beside the loop. Raises RequestError."""
        return await self._serving().known_dialect.render(prompt, self.aside)

    def shows(self, prompt: ChatPrompt, text: str) -> bool:
        """Whether the rendering of a short prompt of ours has this text. Raises RequestError."""
        return text in self._serving().known_dialect.template.render(prompt)

    @property
    def known_dialect(self) -> ChatFormat:
        """How it is spoken to. Raises RequestError while that is not known."""
        if self.dialect is None:
            raise self.engine.unavailable()
        return self.dialect

    async def encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        """Token ids of each text. Raises RequestError."""
        serving = self._serving()
        most = max(MOST_ENCODED, 4 * serving.info.context_length)
        if sum(map(len, texts)) > most:
            raise BadRequest(f"more than {most} characters to tokenize", code="context_length_exceeded")
        with serving._uses:
            return await serving.engine.encode(texts, add_special_tokens)

    async def count(self, prompt: ChatPrompt) -> int:
        """Tokens of a prompt, those of its images included. Raises RequestError."""
        text, serving = await self.render(prompt), self._serving()
        if not prompt.images:
            [tokens] = await serving.encode([text], prompt.add_special_tokens)
            return len(tokens)
        with serving._uses:  # the engine counts while it accepts a request; the request itself is given up
            reply = await serving.engine.submit(
                text,
                add_special_tokens=prompt.add_special_tokens,
                truncate=None,
                want_tokens=False,
                sampling=SamplingParams(max_tokens=1),
                images=prompt.images,
            )
            reply.close()
            return reply.prompt_tokens

    async def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """The text of these ids, by the model's own detokenizer. Raises RequestError."""
        serving = self._serving()
        with serving._uses:
            return await serving.engine.decode(tokens, skip_special_tokens)

    def token_strings(self, tokens: list[int]) -> list[str]:
        """Each token's own text; a part of a character shows as U+FFFD."""
        detokenizer = Detokenizer(self.engine.vocabulary, skip_special_tokens=False)
        return [detokenizer.piece(token).decode("utf-8", "replace") for token in tokens]

    async def stats(self) -> EngineStats:
        """The engine's accounts."""
        return await self.engine.stats()

    async def start(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        output: Output,
        *,
        truncate: int | None = None,
        echo: bool = False,
    ) -> Generation:
        """A running generation. Raises RequestError when the prompt or the engine refuses it.

        truncate: keep only so many last prompt tokens; -1: as many as fit. echo: the generation knows the prompt's
        ids (prompt_ids) once started.
        """
        serving = self._serving()
        if serving is not self:
            return await serving.start(prompt, sampling, output, truncate=truncate, echo=echo)
        began = time.monotonic()
        with self._uses:
            generation = await self._started(prompt, sampling, output, truncate=truncate, echo=echo)
            self._uses.begin()  # until it is closed
        if self.config.request_timeout_s:
            generation.end_after(self.config.request_timeout_s, began)
        return generation

    async def _started(
        self, prompt: Prompt, sampling: SamplingParams, output: Output, *, truncate: int | None, echo: bool
    ) -> Generation:
        asked, note = time.monotonic(), current.get()
        words, special = await self._words(prompt, truncate)
        if self.config.log_prompts:
            log.info("prompt of %s: %s", note.request_id if note else "-", safe(str(words), MAX_LOGGED))
        images = prompt.images if isinstance(prompt, ChatPrompt) else ()
        tail = words[-PROMPT_TAIL:] if isinstance(words, str) else ""

        async def submit(tag: str) -> ReplyStream:
            return await self.engine.submit(
                words,
                add_special_tokens=special,
                truncate=self._room(sampling) if truncate == -1 else truncate,
                want_tokens=echo,
                sampling=sampling,
                constraint=tag,
                images=images,
                timeout_s=self.config.request_timeout_s,
            )

        dialect, vocabulary = self.known_dialect, self.engine.vocabulary
        reply, notices = await dialect.imposed(output, tail, submit, self.aside)
        if notices:
            self.metrics.not_imposed(self.name)
        choices = [dialect.choice(i, output, sampling, tail, vocabulary) for i in range(sampling.n)]
        generation = Generation(self.engine, reply, choices, partial(self._ended, note))
        generation.asked, generation.pace, generation.notices = asked, self.metrics.pace(), notices
        return generation

    def _ended(self, note: RequestRecord | None, course: GenerationRecord, pace: TokenTimer | None) -> None:
        self._uses.end()
        if note is not None:
            note.courses.append(course)
            note.error = note.error or course.error
        self.metrics.generation(self.name, course, pace)

    def _room(self, sampling: SamplingParams) -> int:
        """Most prompt tokens that leave room for the answer asked for."""
        room = min(self.info.context_length, self.info.kv_blocks * self.info.block_size)
        return max(1, room - min(sampling.max_tokens or 1, room // 2) - SPARE_TOKENS)

    async def _words(self, prompt: Prompt, truncate: int | None) -> tuple[str | list[int], bool]:
        """The prompt's text or ids. Raises RequestError."""
        if isinstance(prompt, TokenPrompt):
            return prompt.tokens, False
        if not isinstance(prompt, ChatPrompt):
            return self._cut(prompt.text, truncate), prompt.add_special_tokens
        if truncate is None:
            self._cut_check(prompt.characters)
        return self._cut(await self.render(prompt), truncate), prompt.add_special_tokens

    def _cut(self, text: str, truncate: int | None) -> str:
        """Text that may fit the context: the engine would come to the same, but after it went through the pipe."""
        if truncate is not None:
            return text[-self._most_characters :]
        self._cut_check(len(text))
        return text

    def _cut_check(self, characters: int) -> None:
        if characters > self._most_characters:
            most = self.info.context_length
            raise too_many_characters(characters, most)
