"""Sealed reasoning: the text of a reasoning item as `encrypted_content`, which only the server can read.

A client that does not let the server store responses sends it back with its next turn, and the model gets the text
again: https://platform.openai.com/docs/guides/reasoning#encrypted-reasoning-items. It is a Fernet token, as OpenAI's:
encrypted and authenticated, and always larger than its text.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...errors import BadRequest, MissingExtra, WrongOptions, install_command
from ...types import Json
from ...util.files import read_bytes

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

NOT_KEYS = "it must contain keys of 32 random bytes, each in URL-safe base64 on a line of its own"
EXTRA = "sealing"
MAX_SEALED = 1 << 21
"""The most characters of encrypted content that are read, for 1.5 MB of reasoning. Longer ones would hold the
interpreter: 60 MB take 0.6 s (2026-11)."""


class Sealer:
    """Encrypts reasoning with the first key of a file, and decrypts it with any of its keys.

    Without a file it uses a random key, which lasts as long as the process.
    """

    def __init__(self, key_file: str) -> None:
        self._key_file = key_file
        self._random = base64.urlsafe_b64encode(secrets.token_bytes(32))
        self._keys: MultiFernet | None = None

    def read_keys(self) -> None:
        """Reads the key file, if there is one. Raises WrongOptions if it cannot be used."""
        if not self._key_file:
            return
        try:
            self._fernet()
        except MissingExtra:
            raise WrongOptions(f"--reasoning_key_file needs cryptography: {install_command(EXTRA)}") from None

    def sealing(self) -> Callable[[str], str]:
        """Returns the function that encrypts a text. Raises MissingExtra if cryptography is not installed."""
        keys = self._fernet()
        return lambda text: keys.encrypt(text.encode()).decode()

    def opened(self, items: list[Json], param: str) -> tuple[list[Json], list[str]]:
        """Returns the items of the field `param` with decrypted reasoning, and a warning if some cannot be decrypted.

        Such reasoning is left out instead of being an error, as agents repeat it with each further request.
        """
        found, unread, why = list[Json](), list[str](), ""
        for place, item in enumerate(items):
            if item["type"] == "reasoning" and "encrypted_content" in item:
                plain = {name: value for name, value in item.items() if name != "encrypted_content"}
                try:
                    text = self._unsealed(item["encrypted_content"])
                except (MissingExtra, BadRequest) as error:
                    unread.append(f"{param}[{place}]")
                    why = error.message
                else:
                    plain |= {"content": [{"type": "reasoning_text", "text": text}]}
                item = plain
            found.append(item)
        more = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
        return found, [f"the encrypted content of {unread[0]}{more} was left out: {why}"] if unread else []

    def _unsealed(self, sealed: str) -> str:
        """Decrypts a text. Raises BadRequest if that fails, and MissingExtra if cryptography is not installed."""
        keys = self._fernet()
        if len(sealed) > MAX_SEALED:
            raise BadRequest(f"it has more than {MAX_SEALED} characters")
        from cryptography.fernet import InvalidToken

        try:
            return keys.decrypt(sealed).decode()
        except (InvalidToken, ValueError):
            raise BadRequest("it is damaged, or was encrypted with another key") from None

    def _fernet(self) -> MultiFernet:
        """Returns the keys. Raises MissingExtra without cryptography, WrongOptions if the file has no valid keys."""
        if self._keys is None:
            try:
                from cryptography.fernet import Fernet, MultiFernet
            except ImportError:
                raise MissingExtra("encrypted reasoning needs cryptography", EXTRA) from None
            try:
                keys = read_bytes(self._key_file).split() if self._key_file else [self._random]
                self._keys = MultiFernet(map(Fernet, keys))
            except OSError as error:
                raise WrongOptions(f"--reasoning_key_file {self._key_file}: {error.strerror}") from None
            except ValueError:
                raise WrongOptions(f"--reasoning_key_file {self._key_file}: {NOT_KEYS}") from None
        return self._keys
