"""The content security policies of the pages, which allow only the pages' own styles and scripts."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode


def hash_of(tag: str, page: bytes) -> str:
    """Returns the hash by which a content security policy allows the only element of a page with this tag."""
    found = re.search(rf"<{tag}>(.*)</{tag}>".encode(), page, re.DOTALL)
    assert found is not None
    return f"'sha256-{b64encode(hashlib.sha256(found[1]).digest()).decode()}'"
