"""A hub with some models, a repository to pull into, and a library that does not wait."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.features.hub import staging
from lean_ovms.features.hub.client import HubClient, PullError, RetryPolicy
from lean_ovms.features.hub.pull import PullRequest, pull
from tests.cli.conftest import ends_with, run, served
from tests.features.hub.hub_server import HubServer, Repo

__all__ = ["ends_with", "run", "served"]
WEIGHTS = bytes(range(256)) * 2000
"""Half a megabyte. Data at a wrong offset is noticed, unless the offset is wrong by a multiple of 256."""


def model_files(weights: bytes = WEIGHTS) -> dict[str, bytes]:
    """Returns the files of an exported model, and some that are not needed."""
    return {
        ".gitattributes": b"*.bin filter=lfs\n",
        "README.md": b"# A model\n",
        "config.json": b'{"model_type": "llama"}',
        "openvino_model.xml": b"<net/>",
        "openvino_model.bin": weights,
        "openvino_tokenizer.xml": b"<net/>",
        "openvino_tokenizer.bin": b"t" * 1000,
        "openvino_detokenizer.xml": b"<net/>",
        "openvino_detokenizer.bin": b"d" * 1000,
        "additional_chat_templates/tool_use.jinja": b"{{ tools }}",
        "model.safetensors": b"s" * 1000,
    }


@pytest.fixture
def server() -> Iterator[HubServer]:
    hub = HubServer()
    hub.repos["org/model"] = Repo(model_files())
    yield hub
    hub.stop()


@pytest.fixture(autouse=True)
def fast_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Removes the waits between the library's own retries, and the machine's token and proxy."""
    hub = pytest.importorskip("huggingface_hub")
    import huggingface_hub.constants
    import huggingface_hub.file_download
    import huggingface_hub.utils._http

    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))
    # Smaller pieces, so that files are written at once; the default is 10 MB.
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 10_000)
    real_time = huggingface_hub.file_download.time
    no_sleep = types.SimpleNamespace(**{**vars(real_time), "sleep": lambda _: None})
    for module in (huggingface_hub.file_download, huggingface_hub.utils._http):
        monkeypatch.setattr(module, "time", no_sleep)
    close: Callable[[], None] | None = getattr(hub, "close_session", None)
    if close:
        close()
    yield
    if close:
        close()


@pytest.fixture
def waits() -> list[float]:
    """Collects the seconds that would have been waited."""
    return []


class Hub:
    """The hub `server`, and pulls from it into the repository of the test."""

    def __init__(self, server: HubServer, folder: Path, waits: list[float]) -> None:
        self.server, self.repos, self.folder = server, server.repos, folder
        self._policy = RetryPolicy(attempts=3, sleep=waits.append)

    def open(self) -> HubClient:
        return HubClient(self.server.url, self._policy)

    def order(self, source: str = "org/model", **fields: Any) -> PullRequest:
        return PullRequest(source=source, repository=self.folder, target=self.folder / source, **fields)

    def pull(self, source: str = "org/model", **fields: Any) -> bool:
        return pull(self.order(source, **fields), self.open)

    def refuses(self, message: str, source: str = "org/model", **fields: Any) -> PullError:
        """Pulls in vain, and returns the error, whose message matches."""
        with pytest.raises(PullError, match=message) as caught:
            self.pull(source, **fields)
        return caught.value

    def tree(self, source: str = "org/model") -> dict[str, bytes]:
        """Returns every file of a pulled model by its relative path."""
        return tree(self.folder / source)

    @property
    def clean(self) -> bool:
        """Whether nothing is left of an unfinished pull."""
        return not (self.folder / staging.HIDDEN).exists()


@pytest.fixture
def hub(server: HubServer, tmp_path: Path, waits: list[float]) -> Hub:
    return Hub(server, tmp_path / "models", waits)


def tree(directory: Path) -> dict[str, bytes]:
    """Returns every file in a folder by its relative path."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}
