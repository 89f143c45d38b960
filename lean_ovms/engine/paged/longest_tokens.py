"""Text to tokens by the longest pieces, as a guess: a model may write the same text with others."""

from __future__ import annotations

from collections.abc import Sequence


class Tokens:
    """A vocabulary in the form that llguidance reads. It tokenizes by the longest pieces; no mask depends on that."""

    def __init__(self, pieces: Sequence[bytes], eos: Sequence[int]) -> None:
        self.tokens = list(pieces)
        self.eos_token_id = eos[0]
        self.bos_token_id = None
        self.special_token_ids = list(eos)
        ends = set(eos)
        self._ids = {piece: i for i, piece in enumerate(pieces) if piece and i not in ends}
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: bytes | str) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        ids: list[int] = []
        at = 0
        while at < len(data):
            for size in range(min(self._longest, len(data) - at), 0, -1):
                token = self._ids.get(data[at : at + size])
                if token is not None:
                    ids.append(token)
                    at += size
                    break
            else:
                raise ValueError("a byte that no token has")
        return ids
