"""The roles that the messages of a conversation may have. Knows no jinja2."""

from __future__ import annotations

import re
from collections.abc import Callable

from ...errors import BadRequest
from ...types import Json

ROLES = ("system", "developer", "user", "assistant", "tool")
_WORD = "word9probe"


class Roles:
    """The roles that one template knows: those of OpenAI, and those that its source names and it does not drop."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._known = dict.fromkeys(ROLES, True)

    def check(self, messages: list[Json], own: frozenset[str], render: Callable[[list[Json]], str]) -> None:
        """Raises BadRequest for a role that the template does not know.

        Args:
            messages: The conversation.
            own: Roles of the server's own messages.
            render: Renders a short conversation; "" if that fails.
        """
        for place, message in enumerate(messages):
            role = message.get("role")
            if not isinstance(role, str) or not (role in own or self._knows(role, render)):
                known = ", ".join(one for one, is_known in self._known.items() if is_known)
                what = f"messages[{place}].role must be one of {known}, not {str(role)[:60]!r}"
                raise BadRequest(what, param=f"messages[{place}].role")

    def _knows(self, role: str, render: Callable[[list[Json]], str]) -> bool:
        if role in self._known:
            return self._known[role]
        if not role or not re.search(rf"""(['"]){re.escape(role)}\1""", self._source):
            return False  # not remembered: a client could name any number of them
        hey, said = {"role": "user", "content": "Hey"}, {"role": role, "content": _WORD}
        texts = [render(talk) for talk in ([said], [said, hey], [hey, said])]
        self._known[role] = any(_WORD in text for text in texts) or not any(texts)  # it may want another order of roles
        return self._known[role]
