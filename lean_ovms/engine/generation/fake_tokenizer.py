"""The vocabulary of the scripted engine: a token is a byte of UTF-8 or one of a few special tokens."""

from __future__ import annotations

import os
import re
import signal
import time

from ...errors import NOT_UNICODE, BadRequest
from ...types.engine import Vocabulary

SPECIAL = ("<eos>", "<bos>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>")
TRICKS = ("<|raise|>", "<|hang|>", "<|die|>")
"""Texts that make the computation of a prompt fail: it raises, never returns, or kills the process."""
NAMES = SPECIAL + TRICKS
IDS = {name: 256 + place for place, name in enumerate(NAMES)}
EOS, BOS, USER = IDS["<eos>"], IDS["<bos>"], IDS["<|user|>"]
RAISE, HANG, DIE = (IDS[name] for name in TRICKS)
VOCAB_SIZE = 256 + len(NAMES)
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
PIECES = [bytes([i]) for i in range(256)] + [name.encode() for name in NAMES]
_SPLIT = re.compile("(" + "|".join(map(re.escape, NAMES)) + ")")


def fail(*, raises: bool, hangs: bool, dies: bool) -> None:
    """Raises RuntimeError, never returns, or kills the process, as a test asked for."""
    if raises:
        raise RuntimeError("the fake engine was asked to raise")
    if hangs:
        time.sleep(1e6)
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)


def vocabulary() -> Vocabulary:
    return Vocabulary(pieces=list(PIECES), special=frozenset(IDS.values()))


def encode(text: str, add_special_tokens: bool) -> list[int]:
    """Returns the token ids of a text. Raises BadRequest for unpaired surrogates."""
    tokens = [BOS] if add_special_tokens else []
    try:
        for part in _SPLIT.split(text):
            tokens += [IDS[part]] if part in IDS else part.encode()
    except UnicodeEncodeError:
        raise BadRequest(NOT_UNICODE) from None
    return tokens


def decode(tokens: list[int], skip_special_tokens: bool) -> str:
    """Returns the text of token ids. Bytes that are not valid UTF-8 become U+FFFD."""
    shown = [PIECES[t] for t in tokens if t < 256 or not skip_special_tokens]
    return b"".join(shown).decode("utf-8", "replace")
