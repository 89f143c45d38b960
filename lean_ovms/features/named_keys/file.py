"""Reads --api_key_file, which has named keys as a JSON object, or a single key.

A file that begins with "{" has names and SHA-256 hashes of keys. The first line of any other file is the only key,
which all clients share and which has no limits. The README.md of this feature describes the format.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass, replace
from typing import Any

from ...api.keys import digest_of
from ...config import Config
from ...errors import WrongOptions
from ...observability.logging import safe
from ...util.files import open_regular, unique
from .feature import KeyOptions

ADMIN, INFERENCE = "admin", "inference"
"""The roles of an API key."""
MAX_FILE_BYTES = 1 << 20
"""The largest file that is read."""
MAX_KEYS = 1000
"""The most keys in a file. Each request is compared with all of them, which takes 0.2 ms."""
LIMITS = ("rpm_limit", "tpm_limit", "max_parallel_requests")
"""The members of a key that are limits."""
HASH_MEMBER = '"sha256"'
"""The text by which a file with named keys is recognized."""
MEMBERS = ("sha256", "roles", "models", "cache_scope", *LIMITS)
"""The members of a key's object."""
_NAME = re.compile(r"[A-Za-z0-9][-._@A-Za-z0-9]{0,63}")
_HASH = re.compile(r"[0-9A-Fa-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySpec:
    """A key in the file."""

    digest: bytes
    """The SHA-256 hash of the key."""
    name: str = ""
    """The name; empty for the only key of all clients."""
    roles: tuple[str, ...] = (ADMIN, INFERENCE)
    """The roles, which say what the key may do."""
    models: tuple[str, ...] = ()
    """Patterns of the names of models that the key may use; () for every model."""
    cache_scope: str = ""
    """The scope of the prefix cache, which keys of the same scope share; empty for the scope of all."""
    rpm_limit: int = 0
    """The most requests per minute; 0 for no limit."""
    tpm_limit: int = 0
    """The most tokens per minute; 0 for no limit."""
    max_parallel_requests: int = 0
    """The most concurrent requests; 0 for no limit."""


@dataclass(frozen=True, slots=True)
class KeyTable:
    """The keys of a file."""

    keys: tuple[KeySpec, ...] = ()
    """The keys."""
    named: bool = False
    """Whether the file has named keys."""
    secret: str = ""
    """The only key, of a file without names."""
    public: bool = False
    """Whether every user of the machine can read the file."""


def read_keys(config: Config) -> KeyTable:
    """Reads the keys that the options name. Raises WrongOptions, whose message reveals nothing of a key."""
    path = config.of(KeyOptions).api_key_file
    if not path:
        return _one_key(config.api_key)
    try:
        text, public = _text(path)
        # Otherwise the comment in the first line would become the key.
        if text.lstrip().startswith("{") or HASH_MEMBER in text:
            keys = _named_keys(json.loads(text, object_pairs_hook=unique))
            return KeyTable(keys, named=True, public=public)
        first, *_ = [*text.splitlines(), ""]
        if not first.strip():
            raise ValueError("the first line is empty")
        return replace(_one_key(first.strip()), public=public)
    except OSError as error:
        reason = error.strerror
    except UnicodeDecodeError:
        reason = "not a text file"
    except json.JSONDecodeError as error:
        reason = f"not valid JSON in line {error.lineno}"
    except RecursionError:
        reason = "not valid JSON: it is nested too deeply"
    except ValueError as error:
        reason = str(error)
    raise WrongOptions(f"--api_key_file {path}: {reason}")


def _one_key(secret: str) -> KeyTable:
    return KeyTable((KeySpec(digest=digest_of(secret)),), secret=secret) if secret else KeyTable()


def _text(path: str) -> tuple[str, bool]:
    """Returns the text of a file, and whether every user of the machine can read it."""
    with open_regular(path) as file:
        data = file.read(MAX_FILE_BYTES + 1)
        public = bool(os.fstat(file.fileno()).st_mode & stat.S_IROTH)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"it has more than {MAX_FILE_BYTES} bytes")
    return data.decode("utf-8-sig"), public


def _named_keys(root: Any) -> tuple[KeySpec, ...]:
    if not isinstance(root, dict):
        raise ValueError("it must be an object with a member for each key")
    if len(root) > MAX_KEYS:
        raise ValueError(f"it has more than {MAX_KEYS} keys")
    keys = tuple(_key(name, value) for name, value in root.items())
    owners: dict[bytes, str] = {}
    for key in keys:
        if (other := owners.setdefault(key.digest, key.name)) != key.name:
            raise ValueError(f"{key.name} and {other} have the same sha256")
    return keys


def _key(name: str, value: Any) -> KeySpec:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{safe(name, 64)!r} is not a name: 1 to 64 letters, digits and -._@")
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object")
    if unknown := [member for member in value if member not in MEMBERS]:
        raise ValueError(f"{name}: {safe(unknown[0], 64)!r} is not one of {', '.join(MEMBERS)}")
    digest = value.get("sha256")
    if not isinstance(digest, str) or not _HASH.fullmatch(digest):
        raise ValueError(f"{name}.sha256 must be the SHA-256 hash of the key, 64 hexadecimal digits")
    roles = _texts(name, value, "roles") or (INFERENCE,)
    if not {*roles} <= {ADMIN, INFERENCE}:
        raise ValueError(f"{name}.roles may only contain {INFERENCE} and {ADMIN}")
    models = _texts(name, value, "models")
    if models and ADMIN in roles:
        raise ValueError(f"{name}.models needs a key without the role {ADMIN}, which may change all models")
    scope = value.get("cache_scope")
    if scope is not None and not (isinstance(scope, str) and _NAME.fullmatch(scope)):
        raise ValueError(f"{name}.cache_scope must be a name: 1 to 64 letters, digits and -._@")
    limits = {limit: value.get(limit, 0) for limit in LIMITS}
    for limit, number in limits.items():
        if type(number) is not int or not 0 <= number < 1 << 53:
            raise ValueError(f"{name}.{limit} must be a whole number, 0 for no limit")
    return KeySpec(
        digest=bytes.fromhex(digest),
        name=name,
        roles=roles,
        models=models,
        cache_scope=f"key:{name}" if scope is None else f"scope:{scope}",
        **limits,
    )


def _texts(name: str, value: dict[str, Any], member: str) -> tuple[str, ...]:
    """Returns a list of texts, or () if the member is missing. An empty list is an error: it would mean no limit."""
    texts = value.get(member)
    if texts is None:
        return ()
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"{name}.{member} must be a non-empty list of strings")
    return tuple(texts)
