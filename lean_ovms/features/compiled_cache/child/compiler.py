"""Compiles the network of a model from the cache, or compiles it normally and stores it there."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import openvino as ov

from ...._version import __version__
from ....config import EngineConfig
from ....engine.generation.worker_thread import in_thread
from ....engine.loading import file_identity, weight_pages
from ....engine.loading.settings import network_bytes
from ....engine.paged.network import compile_new
from ....errors import last_line
from ....repository import model_file
from ..feature import CompiledCacheOptions
from .network import compile_and_write, computes_the_same, head_sizes, in_known_form
from .network import read as read_kept
from .store import GRAPH, WEIGHTS, KeptNetwork, NetworkStore, NotAsWritten, checksum

log = logging.getLogger("lean_ovms.compiled_cache")

FORMAT = 1
"""The version of the format of stored networks, to be increased whenever it changes."""
ROOM = 4
"""The free space that the disk must have, in sizes of the model's file: 4-bit weights may be stored in 8 bits."""


class KeepingCompiler:
    """Compiles the network of one model, with the cache."""

    def __init__(self, config: EngineConfig, file: Path, depends_on: Mapping[str, object]) -> None:
        """Keeps the settings; no file is read.

        Args:
            config: The options.
            file: The file of the network.
            depends_on: The values on which the network depends besides its file, by name; they are part of its key.
        """
        most_bytes = int(config.of(CompiledCacheOptions).cache_dir_gb * (1 << 30))
        self._store = NetworkStore(Path(config.cache_dir), most_bytes)
        self._file = file
        self._depends_on = dict(depends_on)

    def __call__(self, core: Any, read: Callable[[], Any], device: str, properties: dict[str, Any]) -> Any:
        """Returns the compiled network: the cached one if there is one, else that which `read` returns."""
        if device != "CPU" or not self._store.is_safe():
            return compile_new(core, read, device, properties)
        key = self._key(properties)
        entry = self._store.find(key)
        if entry is not None and not entry.refused:
            if (found := self._restored(key, entry, device, properties)) is not None:
                return found
            entry = None
        if entry is not None or not self._has_room():
            return compile_new(core, read, device, properties)
        with self._store.writing(key) as folder:
            if folder is None:
                return compile_new(core, read, device, properties)
            return self._kept(key, folder, core, read(), device, properties)

    def _key(self, properties: Mapping[str, Any]) -> str:
        """Returns the network's key in the cache, which also depends on properties and hardware. Raises OSError."""
        files = model_file.parts(self._file) if model_file.is_one(self._file) else [self._file]
        known = {
            "format": FORMAT,
            "files": [file_identity.of_network(file) for file in files],
            "depends_on": self._depends_on,
            "properties": {name: str(value) for name, value in properties.items()},
            "versions": [__version__, ov.get_version()],
            "machine": file_identity.of_machine(),
        }
        return hashlib.blake2b(json.dumps(known, sort_keys=True, default=str).encode(), digest_size=24).hexdigest()

    def _has_room(self) -> bool:
        """Returns whether the cache has room for the network, judged by the size of its file."""
        size = network_bytes(self._file)
        return size <= self._store.most_bytes and shutil.disk_usage(self._store.folder).free > ROOM * size

    def _restored(self, key: str, entry: KeptNetwork, device: str, properties: dict[str, Any]) -> Any:
        """Compiles a cached network. Returns None, and removes the network, if it cannot be used."""
        folder = self._store.path(key)
        try:
            weights = in_thread("checksum", lambda: checksum(folder / WEIGHTS))
            try:
                core, model = read_kept(folder, entry)
                weight_pages.keep(model)
                compiled = core.compile_model(model, device, properties)
            finally:
                found = weights.result()
            if found != entry.weights:
                raise NotAsWritten("its constants have changed since they were written")
        except (NotAsWritten, OSError, RuntimeError) as error:
            log.warning("the compiled network of an earlier start is not used: %s", error)
            self._store.remove(key)
            return None
        log.info("using the compiled network of an earlier start: %s", folder)
        return compiled

    def _kept(self, key: str, folder: Path, core: Any, model: Any, device: str, properties: dict[str, Any]) -> Any:
        """Compiles a network, and stores it if compiling the stored one gives the same operations.

        Args:
            key: The key of the network in the cache.
            folder: The folder for the stored network.
            core: The openvino.Core.
            model: The network.
            device: OpenVINO's device.
            properties: OpenVINO's properties for the network.

        Raises:
            RuntimeError: OpenVINO cannot compile the network.
        """
        heads = head_sizes(model)
        try:
            compiled = compile_and_write(core, model, device, properties, folder)
        except RuntimeError as error:
            # the disk is full, or openvino cannot compile the network; then the next line raises
            log.warning("the compiled network was not stored: %s", last_line(error))
            return core.compile_model(model, device, properties)
        try:
            entry = self._checked(compiled, heads, folder, device, properties)
            if entry.refused:
                log.info("the compiled network will never be stored: %s", entry.refused)
            self._store.publish(key, folder, entry)
        except OSError as error:
            log.warning("the compiled network was not stored: %s", error)
        return compiled

    def _checked(
        self, compiled: Any, heads: dict[str, dict[str, int]], folder: Path, device: str, properties: dict[str, Any]
    ) -> KeptNetwork:
        """Checks that compiling a written network gives the same operations, and returns its entry for the cache.

        Args:
            compiled: The compiled network.
            heads: The sizes of the heads of its attentions.
            folder: The folder to which it was written.
            device: OpenVINO's device.
            properties: OpenVINO's properties for the network.

        Raises:
            OSError: A file cannot be read or written.
        """
        try:
            in_known_form(folder)
            entry = KeptNetwork(heads, checksum(folder / GRAPH), checksum(folder / WEIGHTS))
            core, again = read_kept(folder, entry)
            same = computes_the_same(compiled, core.compile_model(again, device, properties))
        except (NotAsWritten, RuntimeError, ValueError) as error:
            return KeptNetwork(refused=last_line(error))
        return entry if same else KeptNetwork(refused="compiling the stored network gives other operations")
