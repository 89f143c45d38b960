"""Adds KV cache events to an engine, if the options ask for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....engine.paged.parts import Parts
from ....errors import StartError, install_command
from ..feature import KvEventOptions
from .events import KvEvents

if TYPE_CHECKING:
    from .publisher import KvEventPublisher


def install(parts: Parts) -> None:
    """Adds the publishing of events to an engine. Raises StartError if the settings cannot be used."""
    text = parts.config.of(KvEventOptions).kv_events_config
    if sender := publisher(text, caching=parts.settings.prefix_caching):
        events = KvEvents(parts.settings.block_size, sender, parts.adapter_name)
        parts.blocks.watchers.append(events)
        parts.hooks.append(events)


def publisher(text: str, *, caching: bool) -> KvEventPublisher | None:
    """Makes the publisher that the option's text describes, or None if it asks for no events. Raises StartError.

    Without caching, that is, without a prefix cache, there are no events.
    """
    try:
        from .publisher import KvEventPublisher, read_config
    except ImportError:
        raise StartError(f"--kv_events_config needs {install_command('kv-events')}") from None
    config = read_config(text)
    if not config.enable_kv_cache_events or config.publisher == "null":
        return None
    if not caching:
        raise StartError("--kv_events_config needs the prefix cache: --enable_prefix_caching true")
    return KvEventPublisher(config)
