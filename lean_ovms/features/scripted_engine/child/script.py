"""Reads what the scripted engine answers, and how it behaves.

The answer to a prompt is the last <|user|> message (the whole prompt if there is none), starting at a character that
the seed chooses, and then <eos>; generation.fake_tokenizer has the vocabulary.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ....config import EngineConfig
from ....engine.generation import fake_tokenizer as words
from ....errors import StartError
from ....types import SamplingParams
from ....types.engine import ModelInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The behaviour of the scripted engine; for --fake_engine these are the keys of --plugin_config."""

    context: int = 8192
    """Tokens of a prompt and its answer at most."""
    blocks: int = 4096
    """Blocks of the KV cache."""
    block_size: int = 32
    """Tokens of a block."""
    step_tokens: int = 256
    """Tokens that a step computes at most."""
    step_s: float = 0.0
    """Seconds that a step takes."""
    answer: str = ""
    """The text of every answer, instead of the prompt's own."""
    speculative: str = ""
    """What the model is said to draft tokens with (ModelInfo.speculative); requests get draft tokens then."""
    prefix_caching: bool = False
    """Whether what is computed of a prompt is kept for others."""
    recoverable: bool = True
    """Whether a step that failed ends one request only, and not the engine."""


def from_config(config: EngineConfig) -> Script:
    """Returns the script of the options. Raises StartError for a --plugin_config that is none."""
    script = Script(
        context=config.max_model_len or Script().context,
        step_tokens=config.max_num_batched_tokens or Script().step_tokens,
        prefix_caching=config.enable_prefix_caching,
    )
    try:
        given = json.loads(config.plugin_config or "{}")
        for name, value in given.items():
            kind = type(getattr(script, name))
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise TypeError(f"{name} is not of type {kind.__name__}")
        return replace(script, **given)
    except (ValueError, TypeError, AttributeError) as error:
        raise StartError(f"--plugin_config does not fit the fake engine: {error}") from None


def model_info(script: Script) -> ModelInfo:
    """Returns the ModelInfo of a model that behaves as a script says."""
    return ModelInfo(
        vocab_size=words.VOCAB_SIZE,
        context_length=script.context,
        kv_blocks=script.blocks,
        block_size=script.block_size,
        eos_token_ids=[words.EOS],
        bos_token=words.SPECIAL[1],
        eos_token=words.SPECIAL[0],
        chat_template=words.TEMPLATE,
        speculative=script.speculative,
        prefix_caching=script.prefix_caching,
        versions={"scripted": "1"},
    )


def answer(
    text: str,
    prompt: Sequence[int],
    sampling: SamplingParams,
    *,
    seed: int,
    stops: Collection[int],
    min_tokens: int,
    max_tokens: int,
) -> list[int]:
    """Returns the tokens of an answer: the text over and over, up to a stop or max_tokens.

    Args:
        text: What is answered, or "" for the last message of the prompt.
        prompt: Its token ids.
        sampling: The parameters of the request; of its temperature matters only whether there is one.
        seed: Chooses the character at which the text starts, when there is a temperature.
        stops: Every id that ends the answer.
        min_tokens: The answer does not end before it has so many tokens.
        max_tokens: The answer has so many tokens at most.

    Returns:
        The ids, with the stop at which they end.
    """
    if not text:
        start = max((i for i, token in enumerate(prompt) if token == words.USER), default=-1)
        text = bytes(t for t in prompt[start + 1 :] if 0 <= t < 256).decode("utf-8", "replace") or "?"
    if sampling.temperature > 0 and sampling.beams == 1:
        start = random.Random(seed).randrange(len(text))
        text = text[start:] + text[:start]
    ids: list[int] = []
    for token in itertools.cycle([*text.encode(), words.EOS]):
        if len(ids) == max_tokens:
            break
        may_end = not sampling.ignore_eos and len(ids) + 1 >= min_tokens
        if token != words.EOS or may_end:
            ids.append(token)
        if may_end and token in stops:
            break
    return ids
