"""Real models and their engines, each loaded once. A test whose model is not in the cache is skipped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import openvino as ov
import pytest

from tests.engine.real import load
from tools import real_exports, real_models

HERE = Path(__file__).parent
HINT, ALONE = "INFERENCE_PRECISION_HINT", {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
PRECISIONS: dict[str, dict[str, Any]] = {
    "exact": {"batch_invariant": True, "plugin_config": ""},
    "f32": {"plugin_config": json.dumps({HINT: "f32"})},
    "bf16": {"plugin_config": json.dumps({HINT: "bf16"})},
    "rounded": {"plugin_config": json.dumps({HINT: "bf16", **ALONE})},
}
"""Options for: the same answer in every batch; f32, as on CPUs without bf16; bf16; bf16 without OpenVINO's dynamic
quantization, which rounds the inputs of quantized weights to 8 bits."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    real = {path for path in {item.path for item in items} if HERE in path.parents}
    for item in items:
        if item.path in real:
            item.add_marker(pytest.mark.real)


def fetched(name: str) -> Path:
    """Returns a model's folder. Skips the test if it is incomplete."""
    folder = real_models.cache()
    if not real_models.is_whole(folder, name):
        pytest.skip(f"no {name} in {folder}: python -m tools.real_models {folder} {name}")
    return folder / name


def exported(name: str) -> Path:
    """Returns the folder of an export. Skips the test if it was not made."""
    folder = real_models.cache()
    if not real_exports.is_whole(folder, name):
        source = real_exports.EXPORTS[name].fetched
        pytest.skip(f"no {name} in {folder}: python -m tools.real_models {folder} {source}, where torch is")
    return folder / name


def smollm2_of(weights: str) -> Path:
    """Returns SmolLM2 with weights of a kind: gguf, fp16, int8 or int4."""
    if weights == "gguf":
        return fetched("smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    return exported({"fp16": "smollm2_fp16", "int8": "smollm2_ir", "int4": "smollm2_int4"}[weights])


def skip_without(precision: str) -> None:
    """Skips the test if this CPU does not compute in a precision: f32, bf16 or rounded."""
    if precision in ("bf16", "rounded") and "BF16" not in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("this CPU has no bf16")


@contextmanager
def engine_of(weights: str, precision: str, **options: Any) -> Iterator[Any]:
    """Loads SmolLM2 and closes it, by default without draft tokens, and with OpenVINO's default precision of keys and
    values."""
    path = smollm2_of(weights)
    skip_without(precision)
    made = {
        "blocks": 300,
        "cache_size": 1,
        "ngram_speculation": False,
        "kv_cache_precision": "",
        **PRECISIONS[precision],
        **options,
    }
    engine = load(pipeline_type="PAGED", model_path=str(path), **made)
    yield engine
    engine.close()


class Loaded(NamedTuple):
    """An engine of SmolLM2, with the kind of its weights."""

    weights: str
    """The kind of weights: gguf, fp16, int8 or int4."""
    precision: str
    """One of PRECISIONS."""
    pipeline: Any
    """The engine."""


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> Iterator[Loaded]:
    """SmolLM2 as a test's parameter names it, such as "int8 bf16". Tests with the same name share it."""
    weights, precision, *options = request.param.split()
    with engine_of(weights, precision, **dict(option.split("=") for option in options)) as made:
        yield Loaded(weights, precision, made)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct."""
    return smollm2_of("gguf")


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """The GGUF file of Gemma 3 270M, which has one key head."""
    return fetched("gemma3") / "gemma-3-270m-q4_k_m.gguf"


@pytest.fixture(scope="session")
def qwen25_coder() -> Path:
    """The GGUF file of Qwen2.5-Coder 1.5B Instruct, which is fetched only if it is named."""
    return fetched("qwen25_coder") / "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of sentence-transformers' all-MiniLM-L6-v2."""
    return fetched("minilm")


@pytest.fixture(scope="session")
def minilm_ir() -> Path:
    """all-MiniLM-L6-v2 as optimum-cli exports it without --library: without pooling and sentence-transformers'
    files."""
    return exported("minilm_ir")


@pytest.fixture(scope="session")
def minilm_int8() -> Path:
    """The same model with 8-bit weights."""
    return exported("minilm_int8")


@pytest.fixture(scope="session")
def whisper_ir() -> Path:
    """Whisper base as optimum-cli exports it."""
    return exported("whisper_ir")


@pytest.fixture(scope="session")
def whisper_en_ir() -> Path:
    """Whisper tiny.en, which knows English only, as optimum-cli exports it."""
    return exported("whisper_en_ir")


@pytest.fixture(scope="session")
def mpnet_ir() -> Path:
    """all-mpnet-base-v2 as optimum-cli exports it. Its model is fetched only if it is named."""
    return exported("mpnet_ir")


@pytest.fixture(scope="session")
def kokoro_ir() -> Path:
    """Kokoro 82M as optimum-cli exports it, with five Japanese voices. Its model is fetched only if it is named."""
    return exported("kokoro_ir")
