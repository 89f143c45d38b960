"""Remove spaces before punctuation from a stream, as some models' detokenizers do.

openvino_tokenizers' clean_up_tokenization_spaces, which models exported with older versions have (Llama 3, Phi 2,
StarCoder), is one regular expression over the whole text: " ." becomes ".", " n't" becomes "n't". Doing the same here
saves these models a decode in the engine for each step. Knows no tokens.
"""

from __future__ import annotations

import re

from ...types.engine import CLEAN_UP

MATCH = re.compile(CLEAN_UP)

_PARTIAL = re.compile(r" (?:'[rv]?|n'?)?\Z")


class CleanUp:
    """The filter for one text: it holds back a space at the end, and what may follow it in a match."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending = ""

    def feed(self, text: str) -> str:
        """Returns the text that cannot change any more."""
        if not self._pending and " " not in text:
            return text
        text = self._pending + text
        done: list[str] = []
        at = 0
        for match in MATCH.finditer(text):
            done += text[at : match.start()], match[0].strip(" ")
            at = match.end()
        partial = _PARTIAL.search(text, at)
        end = partial.start() if partial else len(text)
        self._pending = text[end:]
        return "".join(done) + text[at:end]

    def flush(self) -> str:
        """Returns the text held back, at the end."""
        pending, self._pending = self._pending, ""
        return pending
