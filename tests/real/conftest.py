"""Folders of real models; a test whose model is not in the cache is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import real_models

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.real)


def _folder(name: str) -> Path:
    """Returns a model's folder; skips the test if it is not whole."""
    folder = real_models.cache()
    if not real_models.is_whole(folder, name):
        pytest.skip(f"no {name} in {folder}: python -m tools.real_models {folder} {name}")
    return folder / name


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct."""
    return _folder("smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """The GGUF file of Gemma 3 270M, which has one head of keys."""
    return _folder("gemma3") / "gemma-3-270m-q4_k_m.gguf"


@pytest.fixture(scope="session")
def qwen25_coder() -> Path:
    """The GGUF file of Qwen2.5-Coder 1.5B Instruct, which is fetched only by its name."""
    return _folder("qwen25_coder") / "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, of sentence-transformers."""
    return _folder("minilm")


@pytest.fixture(scope="session")
def whisper_ct2() -> Path:
    """The folder of Whisper base, of CTranslate2."""
    return _folder("whisper_ct2")


def _export(name: str, file: str, how: str) -> Path:
    """Returns the folder of an export, which is made by hand from a fetched model; skips the test without it."""
    folder = real_models.cache() / name
    if not (folder / file).is_file():
        pytest.skip(f"no {file} in {folder}: {how}")
    return folder


@pytest.fixture(scope="session")
def smollm2_ir() -> Path:
    """SmolLM2 as optimum-cli exports it in int8, of what transformers makes of the GGUF file."""
    how = "optimum-cli export openvino -m smollm2_hf --task text-generation-with-past --weight-format int8 smollm2_ir"
    return _export("smollm2_ir", "openvino_model.xml", how)


@pytest.fixture(scope="session")
def minilm_ir() -> Path:
    """all-MiniLM-L6-v2 as optimum-cli exports it without --library: with no pooling, and none of its files."""
    how = "optimum-cli export openvino -m minilm --task feature-extraction minilm_ir"
    return _export("minilm_ir", "openvino_model.xml", how)


@pytest.fixture(scope="session")
def whisper_ir() -> Path:
    """Whisper base as optimum-cli exports it."""
    how = "optimum-cli export openvino -m openai/whisper-base --task automatic-speech-recognition-with-past whisper_ir"
    return _export("whisper_ir", "openvino_encoder_model.xml", how)
