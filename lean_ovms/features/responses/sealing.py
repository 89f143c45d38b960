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

    def opened(self, items: list[Json], param: str) -> tuple[list[Json], list[str]]:
        """Returns the items with the text of sealed reasoning as its content, and a line if some cannot be opened.

        That is left out: an agent sends it with each further request, and a summary has the same text.

        Args:
            items: The items of an input.
            param: The field that they are in.
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
        return found, [f"the encrypted content of {unread[0]}{more} is left out: {why}"] if unread else []

    def _unsealed(self, sealed: str) -> str:
        """Returns the text of sealed reasoning. Raises BadRequest and MissingExtra."""
        keys = self._fernet()
        from cryptography.fernet import InvalidToken

        try:
            return keys.decrypt(sealed).decode()
        except (InvalidToken, ValueError):
            raise BadRequest("it is damaged, or was made with another key") from None

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
