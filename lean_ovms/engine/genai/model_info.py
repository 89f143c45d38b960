"""What every pipeline of openvino_genai says of itself once it is loaded, and its tokenizer behind two verbs."""

from __future__ import annotations

import logging
import re
from typing import Any

import openvino as ov
import openvino_genai as genai

from ...config import Config
from ...errors import BadRequest
from ...repository import model_config
from ...types import ModelInfo
from ..errors import last_line
from ..generation.grammar_checker import ProcessGrammarChecker, Settings
from ..generation.pipeline import Grammars
from .grammar_compiler import GrammarCompiler, in_token_text, logits_width
from .settings import Plan

log = logging.getLogger(__name__)

ATTENTION = ("full_attention", "sliding_attention")
GGUF_TOKENS = 8192
_BREAK = re.compile(r"\S\n\S")


def describe(config: Config, plan: Plan, blocks: int, tokenizer: Any, defaults: Any) -> ModelInfo:
    """blocks: of the KV cache, as built. defaults: the pipeline's own GenerationConfig."""
    eos = {int(i) for i in defaults.stop_token_ids} | {int(defaults.eos_token_id), int(tokenizer.get_eos_token_id())}
    return ModelInfo(
        vocab_size=plan.vocab_size or len(tokenizer.get_vocab()),
        context_length=plan.context,
        kv_blocks=blocks,
        block_size=plan.block_size,
        eos_token_ids=sorted(i for i in eos if i >= 0),
        pad_token_id=max(0, int(tokenizer.get_pad_token_id())),
        bos_token=tokenizer.get_bos_token(),
        eos_token=tokenizer.get_eos_token(),
        chat_template=tokenizer.get_original_chat_template(),
        speculative=plan.speculative,
        prefix_caching=plan.prefix_caching,
        reports_cached_tokens=_tells_cached(config, plan),
        versions={"openvino": ov.get_version(), "openvino_genai": genai.__version__},
        sentencepiece=in_token_text(config.model_dir),
    )


def _tells_cached(config: Config, plan: Plan) -> bool:
    """Plain caching of whole blocks: nothing is evicted from within texts, no state is kept beside keys and values."""
    if not plan.prefix_caching or plan.speculative or config.cache_eviction_config:
        return False
    kinds = model_config.read(config.model_dir).get("layer_types") or []
    return isinstance(kinds, list) and all(kind in ATTENTION for kind in kinds)


def grammars(config: Config, tokenizer: Any) -> Grammars | None:
    """What compiles grammars for the pipelines of this tokenizer, None if nothing can."""
    try:
        width = logits_width(config.model_dir)
        compiler = GrammarCompiler(tokenizer, width)
    except (RuntimeError, TypeError, ValueError, OSError) as error:
        log.warning("no structured output with this model: %s", last_line(error))
        return None
    settings = Settings(
        model_dir=str(config.model_dir),
        width=width,
        timeout_s=config.grammar_timeout_s,
        memory_bytes=config.grammar_memory_mb << 20,
    )
    return Grammars(compiler, ProcessGrammarChecker(settings))


def encode(tokenizer: Any, text: str, add_special_tokens: bool) -> list[int]:
    """contract.Pipeline.encode."""
    try:
        inputs = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    except TypeError as error:  # the binding takes strings that UTF-8 can express, and nothing else
        raise BadRequest("the text is not valid Unicode (lone surrogates)") from error
    ids: list[int] = inputs.input_ids.data.reshape(-1).tolist()
    return ids


def encode_cut(tokenizer: Any, text: str, add_special_tokens: bool) -> list[int]:
    """The same for a tokenizer from a GGUF file, which silently drops all but the last 8192 tokens.

    Longer texts are tokenized in parts, which end after a line break between two characters that are not blank: there
    the pre-tokenizers of all these models split anyway. Raises BadRequest for a text without such places.
    """
    ids = encode(tokenizer, text, add_special_tokens)
    if len(ids) < GGUF_TOKENS:
        return ids
    breaks = [found.end() - 1 for found in _BREAK.finditer(text)]
    if not breaks:
        raise BadRequest(f"{GGUF_TOKENS} tokens or more without a line break cannot be tokenized with this model")
    middle = min(breaks, key=lambda place: abs(place - len(text) // 2))
    head, tail = text[:middle], text[middle:]
    return encode_cut(tokenizer, head, add_special_tokens) + encode_cut(tokenizer, tail, False)


def decode(tokenizer: Any, tokens: list[int], skip_special_tokens: bool) -> str:
    """contract.Pipeline.decode."""
    return str(tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens))
