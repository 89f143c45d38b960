"""Sealed reasoning: the text of a reasoning item as `encrypted_content`, which only the server can read.

A client that has nothing stored sends it back with its next turn, and the model gets the text again:
https://platform.openai.com/docs/guides/reasoning#encrypted-reasoning-items. The form is that of OpenAI, a Fernet token:
encrypted and authenticated, and always larger than the text in it.
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

NOT_KEYS = "it must hold keys of 32 random bytes, each as URL-safe base64 in a line of its own"
EXTRA = "sealing"


class Sealer:
    """Seals with the first key of a file and opens with all of them; without a file it has a random key of its own."""

    def __init__(self, key_file: str) -> None:
        self._key_file = key_file
        self._random = base64.urlsafe_b64encode(secrets.token_bytes(32))
        self._keys: MultiFernet | None = None

    def read_keys(self) -> None:
        """Reads the file, if there is one. Raises WrongOptions."""
        if not self._key_file:
            return
        try:
            self._fernet()
        except MissingExtra:
            raise WrongOptions(f"--reasoning_key_file needs cryptography: {install_command(EXTRA)}") from None

    def sealing(self) -> Callable[[str], str]:
        """Returns what seals a text. Raises MissingExtra."""
        keys = self._fernet()
        return lambda text: keys.encrypt(text.encode()).decode()

    def opened(self, items: list[Json], param: str) -> list[Json]:
        """Returns the items with the text of sealed reasoning as its content. Raises BadRequest and MissingExtra."""
        return [self._opened(item, f"{param}[{place}]") for place, item in enumerate(items)]

    def _opened(self, item: Json, param: str) -> Json:
        if item["type"] != "reasoning" or "encrypted_content" not in item:
            return item
        keys = self._fernet()
        from cryptography.fernet import InvalidToken

        try:
            text = keys.decrypt(item["encrypted_content"]).decode()
        except (InvalidToken, ValueError):
            raise BadRequest(
                f"The encrypted content of {param} could not be verified: it is damaged, or was made with another key.",
                param=f"{param}.encrypted_content",
                code="invalid_encrypted_content",
            ) from None
        plain = {name: value for name, value in item.items() if name != "encrypted_content"}
        return plain | {"content": [{"type": "reasoning_text", "text": text}]}

    def _fernet(self) -> MultiFernet:
        """Returns the keys. Raises MissingExtra, and WrongOptions for a file without keys."""
        if self._keys is None:
            try:
                from cryptography.fernet import Fernet, MultiFernet
            except ImportError:
                raise MissingExtra("sealed reasoning needs cryptography", EXTRA) from None
            try:
                keys = read_bytes(self._key_file).split() if self._key_file else [self._random]
                self._keys = MultiFernet(map(Fernet, keys))
            except OSError as error:
                raise WrongOptions(f"--reasoning_key_file {self._key_file}: {error.strerror}") from None
            except ValueError:
                raise WrongOptions(f"--reasoning_key_file {self._key_file}: {NOT_KEYS}") from None
        return self._keys
