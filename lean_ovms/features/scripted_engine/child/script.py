"""The script of the scripted engine: its answers, and its behaviour.

The answer to a prompt is its last <|user|> message (the whole prompt if there is none), beginning at a character that
the seed selects, and then <eos>. generation.fake_tokenizer has the vocabulary.
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
    """The behaviour of the scripted engine. With --fake_engine these fields are the keys of --plugin_config."""

    context: int = 8192
    """The most tokens of a prompt and its answer together."""
    blocks: int = 4096
    """The number of blocks in the KV cache."""
    block_size: int = 32
    """The number of tokens in a block."""
    step_tokens: int = 256
    """The most tokens that a step computes."""
    step_s: float = 0.0
    """The seconds that a step takes."""
    answer: str = ""
    """The text of every answer, instead of the prompt's own text."""
    speculative: str = ""
    """The reported kind of drafting (ModelInfo.speculative); if it is set, requests get draft tokens."""
    prefix_caching: bool = False
    """Whether the prefix cache is used."""
    recoverable: bool = True
    """Whether a failed step ends only one request instead of the engine."""


def from_config(config: EngineConfig) -> Script:
    """Returns the script that the options define. Raises StartError if --plugin_config is not valid."""
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
    """Returns the ModelInfo of a model that behaves as the script says."""
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
    """Returns the tokens of an answer: the text repeated until a stop token or max_tokens.

    Args:
        text: The text of the answer; "" for the last message of the prompt.
        prompt: The token ids of the prompt.
        sampling: The parameters of the request. Only whether the temperature is 0 has an effect.
        seed: Selects the character at which the text begins, unless the temperature is 0.
        stops: The ids of the stop tokens.
        min_tokens: The least number of tokens.
        max_tokens: The most tokens.

    Returns:
        The token ids, including the stop token at the end.
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
