"""Spaces before punctuation taken out of a stream: what some models' detokenizers do at their very end.

openvino_tokenizers' clean_up_tokenization_spaces, which models exported with older versions have (Llama 3, Phi 2,
StarCoder), is one regular expression over the whole text: " ." becomes ".", " n't" becomes "n't". Doing the same here
spares these models a decode in the engine for each step. It must not know tokens.
"""

from __future__ import annotations

import re

from ...types import CLEAN_UP

MATCH = re.compile(CLEAN_UP)

_PARTIAL = re.compile(r" (?:'[rv]?|n'?)?\Z")


class CleanUp:
    """The filter for one text: it holds a space at the end, and what may follow it in a match, nothing else."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """What cannot change any more."""
        if not self._held and " " not in text:
            return text
        text = self._held + text
        done: list[str] = []
        at = 0
        for match in MATCH.finditer(text):
            done += text[at : match.start()], match[0].strip(" ")
            at = match.end()
        partial = _PARTIAL.search(text, at)
        end = partial.start() if partial else len(text)
        self._held = text[end:]
        return "".join(done) + text[at:end]

    def flush(self) -> str:
        """What was held, at the end of the text."""
        held, self._held = self._held, ""
        return held
