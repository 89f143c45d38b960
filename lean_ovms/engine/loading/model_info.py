"""Describes the model of an openvino_genai pipeline as a ModelInfo, and tokenizes with its tokenizer."""

from __future__ import annotations

from typing import Any

import openvino as ov
import openvino_genai as genai

from ...config import EngineConfig
from ...errors import NOT_UNICODE, BadRequest
from ...types.engine import ModelInfo
from .settings import PipelineSettings, kv_precisions


def describe(config: EngineConfig, settings: PipelineSettings, blocks: int, tokenizer: Any, defaults: Any) -> ModelInfo:
    """Returns the properties of the model for the front end.

    Args:
        config: The engine's configuration.
        settings: The settings of its pipeline.
        blocks: The number of blocks in the pipeline's KV cache.
        tokenizer: The tokenizer of openvino_genai.
        defaults: The pipeline's default GenerationConfig.
    """
    eos = {int(i) for i in defaults.stop_token_ids} | {int(defaults.eos_token_id), int(tokenizer.get_eos_token_id())}
    return ModelInfo(
        vocab_size=settings.vocab_size or len(tokenizer.get_vocab()),
        context_length=settings.context,
        kv_blocks=blocks,
        block_size=settings.block_size,
        kv_precision="/".join(dict.fromkeys(kv_precisions(config, settings.properties))),
        eos_token_ids=sorted(i for i in eos if i >= 0),
        pad_token_id=max(0, int(tokenizer.get_pad_token_id())),
        bos_token=tokenizer.get_bos_token(),
        eos_token=tokenizer.get_eos_token(),
        chat_template=tokenizer.get_original_chat_template(),
        speculative=settings.speculative,
        prefix_caching=settings.prefix_caching,
        versions={"openvino": ov.get_version(), "openvino_genai": genai.__version__},
    )


def encode(tokenizer: Any, text: str, add_special_tokens: bool) -> list[int]:
    """Returns the token ids of a text. Raises BadRequest for a text with unpaired surrogates."""
    try:
        inputs = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    except TypeError as error:  # the binding takes only strings that UTF-8 can express
        raise BadRequest(NOT_UNICODE) from error
    ids: list[int] = inputs.input_ids.data.reshape(-1).tolist()
    return ids
