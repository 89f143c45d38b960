"""The parts that all pipelines of openvino_genai share: the model, its tokenizer, and the form of requests."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import openvino_genai as genai

from ....config import EngineConfig
from ....engine.generation.backend import LongTextEncoder
from ....engine.generation.request_validator import GREEDY_BELOW, MAX_SEED
from ....engine.loading import vocabulary
from ....engine.loading.settings import PipelineSettings, describe
from ....engine.loading.text_encoder import JsonTokenizer, TextEncoder, exported_ids
from ....engine.paged.parts import NoGrammars
from ....errors import BadRequest, last_line
from ....manifest import GENAI_GRAMMARS
from ....repository import model_file
from ....types import SamplingParams
from .guard.pipeline import ImageTokenCounter, PipelineRequest

MOST_TOKENS = 8192
"""The tokens of a text that the tokenizer returns."""
_BREAK = re.compile(r"\S\n\S")


def encode_cut(tokenizer: Any, text: str, add_special_tokens: bool) -> list[int]:
    """Encodes a text with a tokenizer that silently drops all but the last 8192 tokens.

    Longer texts are tokenized in parts. A part ends after a line break between two characters that are not blank, where
    the pre-tokenizers of all these models split anyway. Raises BadRequest for a text without such places.
    """
    ids = exported_ids(tokenizer, text, add_special_tokens)
    if len(ids) < MOST_TOKENS:
        return ids
    breaks = [found.end() - 1 for found in _BREAK.finditer(text)]
    if not breaks:
        raise BadRequest(f"this model cannot tokenize texts with {MOST_TOKENS} tokens or more without a line break")
    middle = min(breaks, key=lambda place: abs(place - len(text) // 2))
    head, tail = text[:middle], text[middle:]
    return encode_cut(tokenizer, head, add_special_tokens) + encode_cut(tokenizer, tail, False)


GREEDY = SamplingParams(temperature=0.0)
WARM_LENGTHS = (8, 40, 250)
"""The lengths in tokens of the prompts that are computed while a model is loaded."""


class GenAiPipeline:
    """The base of the pipelines: everything that does not depend on how requests are computed."""

    recoverable = True
    image_token_counter: ImageTokenCounter | None = None
    _tokenizer: Any
    _eos = -1
    """The model's main end token; -1 if it has none."""
    _speculative = ""
    """How the model drafts tokens: "draft", "prompt_lookup", "mtp", "eagle3", or "" if it does not."""
    grammars: Any
    """The grammar compiler of the pipeline, with the `native` form of grammars."""

    def describe(self, config: EngineConfig, settings: PipelineSettings, blocks: int, defaults: Any) -> None:
        """Sets the attributes of a loaded model: its description, vocabulary, encoder and grammars.

        Args:
            config: The options of the engine.
            settings: The settings of the pipeline, of which the most tokens of a step are used.
            blocks: The number of blocks in its KV cache.
            defaults: The pipeline's own GenerationConfig.
        """
        self.step_tokens, ends = settings.step_tokens, {*defaults.stop_token_ids, defaults.eos_token_id}
        self.info = describe(config, settings, blocks, self._tokenizer, ends)
        library = JsonTokenizer.read(config.model_dir)
        self.vocabulary = vocabulary.build(config.model_dir, self._tokenizer, library)
        ask = partial(encode_cut if model_file.is_one(config.model_dir) else exported_ids, self._tokenizer)
        self._encode = TextEncoder(config.model_dir, ask, self.vocabulary.pieces, library)
        self.long_text_encoder: LongTextEncoder | None = self._encode
        new_grammars = config.part(GENAI_GRAMMARS)
        self.grammars = NoGrammars() if new_grammars is None else new_grammars(config, self._tokenizer)

    def check(self, request: PipelineRequest) -> None:
        try:
            self._config(request).validate()
        except (RuntimeError, TypeError, ValueError) as error:
            raise BadRequest(last_line(error)) from error

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self._encode(text, add_special_tokens)

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens))

    def _config(self, request: PipelineRequest) -> Any:
        config = generation_config(request, self._eos, self._speculative)
        if request.constraint:
            config.structured_output_config = self.grammars.native(request.constraint)
        return config

    def _short_config(self, max_tokens: int) -> Any:
        """Returns the GenerationConfig of a greedy request, for warming up."""
        return self._config(PipelineRequest(tokens=[], sampling=GREEDY, max_tokens=max_tokens))


def generation_config(request: PipelineRequest, eos: int, speculative: str) -> Any:
    """Returns the GenerationConfig of a request without its grammar.

    It is built field by field from values that the front end has checked, and nothing else that a client sent reaches
    the binding. Fields such as stop_strings, num_beam_groups, tree_depth and adapters are never set, and n is never
    more than 1, since GenAI handles these wrongly or crashes.

    Args:
        request: The request.
        eos: The model's main end token; -1 if it has none.
        speculative: How the model drafts tokens: "draft", "prompt_lookup", "mtp", "eagle3", or "" if it does not.
    """
    sampling = request.sampling
    config = genai.GenerationConfig()
    if eos >= 0:
        config.set_eos_token_id(eos)
    # In GenAI a request's stop ids replace the model's list, so `stops` contains both.
    config.stop_token_ids = set(request.stops) | ({eos} if eos >= 0 else set())
    config.ignore_eos = sampling.ignore_eos
    config.max_new_tokens = request.max_tokens
    config.min_new_tokens = request.min_tokens
    config.logprobs = 1 if sampling.logprobs or request.echo else 0
    config.echo = request.echo
    if sampling.beams > 1:
        config.num_beams = sampling.beams
        config.num_return_sequences = sampling.n
        config.length_penalty = sampling.length_penalty
    else:
        _set_sampling(config, request)
    _set_assistant(config, request, speculative)
    return config


def _set_sampling(config: Any, request: PipelineRequest) -> None:
    sampling = request.sampling
    config.repetition_penalty = sampling.repetition_penalty
    config.presence_penalty = sampling.presence_penalty
    config.frequency_penalty = sampling.frequency_penalty
    if sampling.temperature <= GREEDY_BELOW:
        return
    config.do_sample = True
    config.rng_seed = request.seed & MAX_SEED
    config.temperature = sampling.temperature
    config.top_p = sampling.top_p
    config.min_p = sampling.min_p
    if sampling.top_k:
        config.top_k = sampling.top_k


def _set_assistant(config: Any, request: PipelineRequest, speculative: str) -> None:
    """Sets the draft parameters: each request of a speculative pipeline needs them; other pipelines would hang."""
    sampling = request.sampling
    if speculative == "draft" and sampling.assistant_confidence_threshold:
        config.assistant_confidence_threshold = sampling.assistant_confidence_threshold
    elif speculative:
        config.num_assistant_tokens = sampling.num_assistant_tokens
    if speculative == "prompt_lookup":
        config.max_ngram_size = sampling.max_ngram_size
