"""Models with a tokenizer and a chat template, and models that generate text: from a prompt to a running generation.

`await model.start(...)` renders and submits the prompt, and waits until the engine has accepted or refused it, so that
every 4xx or 503 error occurs before a stream's status 200. Independent of HTTP and JSON bodies.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import listed
from ..config.options import MODEL
from ..errors import BadRequest, WrongOptions, too_many_characters
from ..observability.logging import safe
from ..observability.records import (
    GenerationRecord,
    RequestRecord,
    TokenTimer,
    current_client,
    current_record,
    own_salt,
)
from ..repository import model_config, model_file
from ..text.decode.detokenizer import Detokenizer, decode_slices
from ..types import ChatPrompt, Json, OutputParams, Prompt, SamplingParams, TokenPrompt
from ..types.engine import EngineRequest, ModelInfo
from ..util import files
from .generation import Generation
from .model import Model

if TYPE_CHECKING:
    from ..manifest import HelperRow
    from ..types.audio import VoiceInfo
    from .chat_format import ChatFormat

log = logging.getLogger("lean_ovms.models.text_model")

TOKEN_BYTES = 40
"""The estimated memory of a token id and its text, in bytes."""
INLINE_DECODE = 4096 * TOKEN_BYTES
"""The memory in bytes of ids and their text that are decoded on the event loop; it takes 0.4 ms."""
MIN_ENCODE_LIMIT = 1 << 20
"""The number of characters that any request may have tokenized. Models with a long context allow four per token."""
PROMPT_TAIL = 400
"""The number of characters at the end of a prompt that a parser reads to see whether reasoning has begun."""
MAX_LOGGED = 20_000
"""The most characters of a prompt that are logged, if prompts are logged at all."""
SPARE_TOKENS = 8
"""The tokens of context that speculative decoding reserves for draft tokens that may be rejected."""
MAX_OTHER_CHARS = 1 << 20
"""The characters of tools and the like from which they must fit into the context themselves, before rendering."""


class TokenModel(Model):
    """A model with a tokenizer. Each method that serves a request resolves the model once, with `hold`."""

    _chat_format: ChatFormat | None = None

    @property
    def joins_texts(self) -> bool:
        """Whether it reads pairs of texts, so that a single one gets no special tokens. Raises RequestError."""
        return False

    def _import(self) -> None:
        """Imports jinja2 and others while the engine loads, a third of the front end's imports."""
        from . import chat_format  # noqa: F401

    def _prepare(self, info: ModelInfo) -> None:
        from .chat_format import ChatFormat

        self._chat_format = ChatFormat(self.config, self.directory, info, self._vocabulary)

    @property
    def chat_format(self) -> ChatFormat:
        """The model's chat template and parsers. Raises RequestError until they are available."""
        if self._chat_format is None:
            self.serving()
            raise self.engine.unavailable()
        return self._chat_format

    async def render(self, prompt: ChatPrompt) -> str:
        """Returns a prompt rendered with the chat template; long work is offloaded. Raises RequestError."""
        with await self.hold(engine=False) as model:
            return await model._render(prompt)

    async def _render(self, prompt: ChatPrompt) -> str:
        return await self.chat_format.render(prompt, self.offload)

    async def token_ids(self, prompt: Prompt) -> list[int]:
        """Returns the token ids of a prompt without images, not truncated. Raises RequestError."""
        with await self.hold(engine=False) as model:
            return await model._token_ids(prompt)

    async def _token_ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, TokenPrompt):
            return prompt.tokens
        text = await self._render(prompt) if isinstance(prompt, ChatPrompt) else prompt.text
        [tokens] = await self._encode([text], prompt.add_special_tokens)
        return tokens

    async def encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        """Returns the token ids of each text. Raises RequestError."""
        with await self.hold(engine=False) as model:
            return await model._encode(texts, add_special_tokens)

    async def _encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        limit = max(MIN_ENCODE_LIMIT, 4 * self.info.context_length)
        if sum(map(len, texts)) > limit:
            raise BadRequest(f"the texts to tokenize have more than {limit} characters", code="context_length_exceeded")
        return await self.tokenizer.encode(texts, add_special_tokens, current_client())

    async def decode(self, tokens: list[int], skip_special_tokens: bool, param: str = "tokens") -> str:
        """Returns the text of token ids from the model's own detokenizer.

        Args:
            tokens: The token ids.
            skip_special_tokens: Whether special tokens are left out of the text.
            param: The field of the request that has the ids, for errors.

        Raises:
            RequestError: An id is not one of the model's, or the model fails.
        """
        try:
            with await self.hold(engine=False) as model:
                return await model._decode(tokens, skip_special_tokens)
        except BadRequest as error:
            if error.param == "tokens":  # the engine's name of the field
                error.message, error.param = error.message.replace("tokens", param, 1), param
            raise

    async def _decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        """Returns the text of token ids, with the vocabulary if that is exact and has them.

        The engine decodes between two steps, and would block all its requests for 0.1 s with 250,000 ids.
        """
        size = len(self.vocabulary.pieces)
        if not self.vocabulary.exact or min(tokens, default=0) < 0 or max(tokens, default=0) >= size:
            return await self.tokenizer.decode(tokens, skip_special_tokens)
        work = partial(decode_slices, tokens, Detokenizer(self.vocabulary, skip_special_tokens))
        return await self.offload.run(len(tokens) * TOKEN_BYTES, work, inline_below=INLINE_DECODE)

    def token_bytes(self, tokens: list[int]) -> list[bytes]:
        """Returns the UTF-8 bytes of each token, which may be a part of a character. Raises RequestError."""
        detokenizer = Detokenizer(self.serving().vocabulary, skip_special_tokens=False)
        return [detokenizer.piece(token) for token in tokens]

    def token_strings(self, tokens: list[int]) -> list[str]:
        """Returns the text of each token; a part of a character becomes U+FFFD. Raises RequestError."""
        return [piece.decode("utf-8", "replace") for piece in self.token_bytes(tokens)]


class TextModel(TokenModel):
    """A model that generates text. Each method that serves a request resolves the model once, with `hold`."""

    task = "text generation"
    endpoints: tuple[str, ...] = ("/v1/chat/completions", "/v1/completions")
    routed_as = "chat"

    _max_prompt_chars = 0
    _precision = ""

    def _check_options(self) -> None:
        super()._check_options()
        for row in listed(self.config.without):
            if row.metadata["path"] == MODEL and (path := self.config.value(row.name)):
                self.config.composition.require_format(Path(path))
                _check_model(row.name, Path(path))
        if length := self.config.max_model_len:
            limit = model_config.context_length(model_config.read(self.config.model_dir))
            if 0 < limit < length:
                raise WrongOptions(f"--max_model_len {length} exceeds the model's context length of {limit} tokens")
        if self.config.chat_template:
            from ..repository.model_dir import ModelDir
            from ..text.template.chat_template import ChatTemplate

            ChatTemplate.load(ModelDir(), override=self.config.chat_template)

    @property
    def reported(self) -> Json:
        """The properties that the engine of a loaded model has reported, with its voices if it speaks its answers."""
        return {**super().reported, **({} if self.voices is None else {"voices": asdict(self.voices)})}

    @property
    def summary(self) -> str:
        info = self.info
        kind = f" in {info.kv_precision}" if info.kv_precision else ""
        size = info.kv_blocks * info.block_size
        cache = f"KV cache for {size} tokens{kind}" if size else "no KV cache of its own"
        own = f"weights in {self._precision}, " if self._precision else ""
        tool, reasoning = self.parser_names
        parsers = f"tool parser {tool or 'none'}, reasoning parser {reasoning or 'none'}"
        return f"{self.task}, context of {info.context_length} tokens, {own}{cache}, {parsers}"

    def _import(self) -> None:
        super()._import()
        if not self.config.without_model:
            self._precision = model_config.precision(self.config.model_dir)

    def _prepare(self, info: ModelInfo) -> None:
        super()._prepare(info)
        self._max_prompt_chars = info.context_length * self._vocabulary.longest
        self.endpoints, self.routed_as = type(self).endpoints, type(self).routed_as  # other files may have a template
        if info.vision:
            self.endpoints = ("/v1/chat/completions",)
        if problem := self.chat_format.template.problem:
            self.endpoints, self.routed_as = ("/v1/completions",), ""
            log.warning("%s does not serve chats: %s", self.name, problem)

    @property
    def template_source(self) -> str:
        """The source of the chat template, read from the model's files until it is loaded; "" if there is none."""
        if self._chat_format is not None:
            return self._chat_format.template.source
        directory = self.directory
        return directory.chat_template or directory.fallback_template or directory.tool_template

    @property
    def parser_names(self) -> tuple[str | None, str | None]:
        """The names of the tool and the reasoning parser, by the model's files as long as it is not loaded."""
        if self._chat_format is not None:
            answers = self._chat_format.answers
        else:
            from .chat_format import answer_format

            answers = answer_format(self.config, self.template_source, self.directory.tool_template)
        return answers.tool_parser, answers.reasoning_parser

    @property
    def image_tokens(self) -> list[str] | None:
        """The texts that stand for images; None if the model reads text only. Raises RequestError if not ready."""
        serving = self.require_ready()
        info = (serving if serving.known else self.serving()).info
        return info.image_tokens if info.vision else None

    @property
    def input_modalities(self) -> tuple[str, ...]:
        """The modalities that it reads, detected from its files until it is loaded."""
        path = self.directory.path
        files = path is not None and (path / model_config.LANGUAGE_MODEL).is_file()
        images = self.info.vision if self.known else files
        video = self.known and self.info.video
        own = (*["image"] * images, *["video"] * video, *["audio"] * self.takes_audio)
        read = {name for row in self.config.composition.contents.values() for name in row.modalities}
        helped = (row.reads for row in self._helpers if row.reads)
        return tuple(dict.fromkeys(("text", *(name for name in own if name in read), *helped)))

    @property
    def takes_audio(self) -> bool:
        """Whether it reads audio itself."""
        return self.known and self.info.audio

    @property
    def output_modalities(self) -> tuple[str, ...]:
        helped = (row.writes for row in self._helpers if row.writes)
        return tuple(dict.fromkeys(("text", *["audio"] * (self.voices is not None), *helped)))

    @property
    def _helpers(self) -> list[HelperRow]:
        """The helper models that the options name."""
        return [row for row in self.config.composition.helpers if self.config.value(row.option)]

    @property
    def voices(self) -> VoiceInfo | None:
        """The voices in which the model itself speaks its answers; None if it does not speak."""
        return self.info.voices if self.known else None

    @property
    def capabilities(self) -> Collection[str]:
        """The capabilities of the engine (ModelInfo.capabilities); empty until they are known, before any request."""
        return self.info.capabilities if self.known else ()

    async def count(self, prompt: ChatPrompt) -> int:
        """Returns the number of tokens of a prompt, including those of images. Raises RequestError."""
        with await self.hold() as model:
            if prompt.images or prompt.audio:
                return await model._count_with_images(await model._render(prompt), prompt)
            return len(await model._token_ids(prompt))

    async def _count_with_images(self, text: str, prompt: ChatPrompt) -> int:
        """Returns a prompt's number of tokens with images by submitting it, and cancelling it when it is accepted."""
        request = EngineRequest(
            prompt=text,
            sampling=SamplingParams(max_tokens=1),
            add_special_tokens=prompt.add_special_tokens,
            images=prompt.images,
            audio=prompt.audio,
            **_origin(current_record.get()),
        )
        reply = await self.engine.submit(request)
        reply.cancel()
        return reply.prompt_tokens

    # --- generation

    async def start(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        output: OutputParams,
        *,
        truncate: int | None = None,
        truncation_side: str = "left",
        echo: bool = False,
        priority: int = 0,
        loading: bool = False,
    ) -> Generation:
        """Starts a generation and returns it once the engine has accepted it.

        Args:
            prompt: The prompt.
            sampling: The sampling parameters of the request.
            output: The output parameters of the request.
            truncate: The number of prompt tokens to keep, -1 for as many as fit; None to keep all.
            truncation_side: The end of the prompt at which tokens are cut off, "left" or "right".
            echo: Whether the generation keeps the prompt's text and token ids.
            priority: The priority; lower values start first.
            loading: Whether the call is a part of loading the model, or the caller holds the model. If so, there is no
                time limit.

        Raises:
            RequestError: The prompt is not valid, or the engine refuses it.
        """
        with nullcontext(self) if loading else await self.hold() as model:
            timeout_s = 0.0 if loading else model.config.request_timeout_s
            requested_at, record = time.monotonic(), current_record.get()
            text, add_special_tokens = await model._prompt_input(prompt, truncate, truncation_side)
            if model.config.log_prompts:
                log.info("prompt of request %s: %s", record.request_id if record else "-", safe(str(text), MAX_LOGGED))
            tail = text[-PROMPT_TAIL:] if isinstance(text, str) else ""
            combines = "beam_control" in model.info.capabilities
            structured = model.chat_format.structured_output(output, sampling, tail, model.offload, combines=combines)
            sampling, without_effect = model.chat_format.with_thinking(sampling, tail)
            if record is not None:
                record.sampling = sampling
            if not loading and "cache_salt" in model.info.capabilities:
                salt = own_salt(sampling.cache_salt)
                sampling = sampling if salt == sampling.cache_salt else replace(sampling, cache_salt=salt)
            request = EngineRequest(
                prompt=text,
                sampling=sampling,
                add_special_tokens=add_special_tokens,
                truncate=model.max_prompt_tokens(sampling) if truncate == -1 else truncate,
                truncation_side=truncation_side,
                want_tokens=echo,
                images=prompt.images if isinstance(prompt, ChatPrompt) else (),
                audio=prompt.audio if isinstance(prompt, ChatPrompt) else (),
                timeout_s=timeout_s,
                priority=priority,
                adapter=model.adapters.applied(model.adapter, sampling.lora),
                **_origin(record),
            )
            accepted = model.engine.submit(request) if structured is None else structured.submit(model.engine, request)
            reply = await accepted
            try:  # not before it is accepted: for many choices they cost more than a refusal
                decoders = model.chat_format.decoders(output, sampling, tail, model.vocabulary)
            except BaseException:
                reply.cancel()
                raise
            generation = Generation(
                model.engine,
                reply,
                decoders,
                partial(model._generation_closed, record),
                requested_at=requested_at,
                token_timer=model.metrics.token_timer(),
                warnings=without_effect + (structured.warnings if structured is not None else []),
                progress=sampling.report_progress,
                prompt=text if echo and isinstance(text, str) else "",
            )
            if structured is not None:
                structured.accepted(model.metrics, model.name)
            model.retain()  # until it is closed
            if timeout_s:
                generation.end_after(timeout_s)
            return generation

    def _generation_closed(
        self, record: RequestRecord | None, generation: GenerationRecord, timer: TokenTimer | None
    ) -> None:
        self.release()
        if record is not None:
            record.add(generation)
            record.error = record.error or generation.error
        self.metrics.generation_finished(self.name, generation, timer)

    @property
    def max_tokens(self) -> int:
        """The most tokens of a prompt and its answer together."""
        return min(self.info.context_length, self.info.kv_blocks * self.info.block_size)

    def max_prompt_tokens(self, sampling: SamplingParams) -> int:
        """Returns the most prompt tokens that leave room for the tokens to generate."""
        context = self.max_tokens
        return max(1, context - min(sampling.max_tokens or 1, context // 2) - SPARE_TOKENS)

    async def _prompt_input(self, prompt: Prompt, truncate: int | None, side: str) -> tuple[str | list[int], bool]:
        """Returns a prompt's text or token ids, and whether special tokens are added. Raises RequestError.

        Args:
            prompt: The prompt.
            truncate: The number of prompt tokens to keep, -1 for as many as fit; None to keep all.
            side: The end of the prompt at which tokens are cut off, "left" or "right".
        """
        if isinstance(prompt, TokenPrompt):
            return prompt.tokens, False
        if not isinstance(prompt, ChatPrompt):
            return self._shortened(prompt.text, truncate, side), prompt.add_special_tokens
        if truncate is None:
            self._check_length(prompt.num_chars)
            if prompt.other_chars > MAX_OTHER_CHARS:
                self._check_length(prompt.other_chars)
        return self._shortened(await self._render(prompt), truncate, side), prompt.add_special_tokens

    def _shortened(self, text: str, truncate: int | None, side: str) -> str:
        """Cuts a text to a length that may fit into the context.

        The engine would do the same, but only after the whole text was sent to it.

        Args:
            text: The text.
            truncate: The number of prompt tokens to keep, -1 for as many as fit; None to keep all.
            side: The end of the prompt at which tokens are cut off, "left" or "right".
        """
        if truncate is not None:
            return text[: self._max_prompt_chars] if side == "right" else text[-self._max_prompt_chars :]
        self._check_length(len(text))
        return text

    def _check_length(self, num_chars: int) -> None:
        if num_chars > self._max_prompt_chars:
            raise too_many_characters(num_chars, self.info.context_length)


def _origin(record: RequestRecord | None) -> dict[str, Any]:
    """Returns the fields of a Submit that say who sends it: the client, and the number of the HTTP request."""
    return {"client": record.client, "group": record.number} if record is not None else {}


def _check_model(option: str, path: Path) -> None:
    """Raises WrongOptions unless an option's path is a directory with a network, or a model file."""
    wrong = f"--{option} {path}"
    try:
        if not files.exists(path):
            raise WrongOptions(f"{wrong}: {model_file.absent(path)}")
        if path.is_dir() and not (path / model_config.TEXT_NETWORKS[0]).is_file():
            raise WrongOptions(f"{wrong} has no {model_config.TEXT_NETWORKS[0]}")
    except OSError as error:
        raise WrongOptions(f"{wrong} cannot be read: {error.strerror}") from None
