"""vLLM's flags for one member of a JSON value: `--flag.member value`, `--flag.a.b=value`, `--flag.list+ x,y`.

https://docs.vllm.ai/en/stable/cli/serve.html#json-cli-arguments
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from ..errors import StartError

_DOTTED = re.compile(r"(--?[a-zA-Z][\w-]*)((?:\.[\w-]+)+)(\+?)(?:=(.*))?", re.DOTALL)


def joined(argv: Iterable[str]) -> list[str]:
    """Returns the arguments; all members of one flag are one JSON object behind the others. Raises StartError."""
    found: list[str] = []
    objects: dict[str, dict[str, Any]] = {}
    arguments = iter(argv)
    for argument in arguments:
        dotted = _DOTTED.fullmatch(argument)
        if not dotted:
            found.append(argument)
            continue
        flag, path, plus, text = dotted.groups()
        if text is None and (text := next(arguments, None)) is None:
            raise StartError(f"{argument} needs a value")
        name = flag[:2] + flag[2:].replace("-", "_")
        _set(objects.setdefault(name, {}), path[1:].split("."), text.split(",") if plus else _value(text), argument)
    for name, members in objects.items():
        found += [name, json.dumps(members)]
    return found


def _value(text: str) -> Any:
    """Returns the value of a JSON text, or else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _set(members: dict[str, Any], path: list[str], value: Any, argument: str) -> None:
    *outer, last = path
    for name in outer:
        members = members.setdefault(name, {})
        if not isinstance(members, dict):
            raise StartError(f"{argument}: {name} has a value already, so it cannot have members")
    before = members.get(last)
    members[last] = before + value if isinstance(before, list) and isinstance(value, list) else value
