"""What openvino_genai's pipelines have in common: their model, its tokenizer, and how a request is given to them."""

from __future__ import annotations

from functools import partial
from typing import Any

from ...config import EngineConfig
from ...errors import BadRequest
from ...repository.gguf import is_gguf
from ...types import SamplingParams
from ..errors import last_line
from ..generation.pipeline import LongTextEncoder
from ..loading import model_info, vocabulary
from ..loading.settings import PipelineSettings
from ..loading.text_encoder import TextEncoder
from . import generation_config, grammar_compiler
from .guard.pipeline import ImageTokenCounter, PipelineRequest

GREEDY = SamplingParams(temperature=0.0)


class GenAiPipeline:
    """The part of a pipeline.Pipeline that does not depend on how requests are computed."""

    recoverable = True
    image_token_counter: ImageTokenCounter | None = None
    _tokenizer: Any
    _eos = -1
    """The model's main end token, -1 for none."""
    _speculative = ""
    """The same as in ModelInfo."""

    def describe(self, config: EngineConfig, settings: PipelineSettings, blocks: int, defaults: Any) -> None:
        """Sets what is known of a loaded model. blocks: of its cache. defaults: the pipeline's GenerationConfig."""
        self.step_tokens = settings.step_tokens
        self.info = model_info.describe(config, settings, blocks, self._tokenizer, defaults)
        self.vocabulary = vocabulary.build(config.model_dir, self._tokenizer)
        ask = partial(model_info.encode_cut if is_gguf(config.model_dir) else model_info.encode, self._tokenizer)
        self._encode = TextEncoder(config.model_dir, ask, self.vocabulary.pieces)
        self.long_text_encoder: LongTextEncoder | None = self._encode
        self.grammars = grammar_compiler.grammars(config, self._tokenizer)

    def check(self, request: PipelineRequest) -> None:
        try:
            self._config(request).validate()
        except (RuntimeError, TypeError, ValueError) as error:
            raise BadRequest(last_line(error)) from error

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self._encode(text, add_special_tokens)

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return model_info.decode(self._tokenizer, tokens, skip_special_tokens)

    def _config(self, request: PipelineRequest) -> Any:
        if request.native is None:
            request.native = generation_config.build(request, self._eos, self._speculative)
        return request.native

    def _short_config(self, max_tokens: int) -> Any:
        """Returns a greedy request's GenerationConfig, to be used while loading."""
        return self._config(PipelineRequest(tokens=[], sampling=GREEDY, max_tokens=max_tokens))
