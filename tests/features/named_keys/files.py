"""A file of named keys, and the headers of two of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

ALICE, OPS = {"authorization": "Bearer sk-alice"}, {"authorization": "Bearer sk-ops"}
USERS: dict[str, Any] = {"alice": {}, "ops": {"roles": ["admin", "inference"]}}


def written(directory: Path, keys: dict[str, Any]) -> str:
    """Writes a file in which the key of each name is sk-NAME, and returns its path."""
    path = directory / "keys.json"
    hashes = {name: {"sha256": hashlib.sha256(f"sk-{name}".encode()).hexdigest()} for name in keys}
    path.write_text(json.dumps({name: hashes[name] | members for name, members in keys.items()}))
    path.chmod(0o600)
    return str(path)
