"""What a GGUF file says of sampling and templates; a server without the feature refuses it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from lean_ovms.api.fields import read_one
from lean_ovms.api.generation import sampling
from lean_ovms.cli.arguments import parse
from lean_ovms.config import Config
from lean_ovms.errors import StartError
from lean_ovms.features.gguf import header as gguf
from lean_ovms.features.gguf.metadata import Metadata
from lean_ovms.features.gguf.model_file import LLAMA_CPP_DEFAULTS, SAMPLING
from lean_ovms.features.sampler_chain import fields as sampler_chain
from lean_ovms.repository import model_dir
from lean_ovms.server.run import build


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Reads a file with these entries below general.sampling."""

    def read(entries, **options):
        metadata = Metadata((f"general.sampling.{key}", value) for key, value in entries.items())
        header = gguf.Header(metadata, {}, {}, {}, alignment=32)
        monkeypatch.setattr(gguf, "read", lambda *_: header)
        (tmp_path / "x.gguf").touch()
        return model_dir.read(Config(model_path=str(tmp_path / "x.gguf"), **options)).generation_config

    return read


def test_a_file_that_says_nothing_has_those_of_llama_cpp(read):
    assert read({}) == LLAMA_CPP_DEFAULTS == {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


def test_what_the_file_says_wins(read):
    said = {"temp": 0.2, "top_k": 20, "top_p": 1.0, "min_p": 0.0, "penalty_repeat": 1.1, "mirostat": 1}
    wanted = {"temperature": 0.2, "top_k": 20, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.1, "mirostat": 1}
    assert read(said) == wanted
    said = {"penalty_last_n": 64, "xtc_probability": 0.5, "xtc_threshold": 0.2, "sequence": "top_k;xtc", "other": 1}
    wanted = {"repeat_last_n": 64, "xtc_probability": 0.5, "xtc_threshold": 0.2, "samplers": ["top_k", "xtc"]}
    assert read(said) == LLAMA_CPP_DEFAULTS | wanted
    assert read({"temp": "hot", "top_k": True, "top_p": math.nan}) == LLAMA_CPP_DEFAULTS


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("temp", -1.0, 0.0),
        ("temp", math.inf, 2.0),
        ("top_k", -5, -1),
        ("top_p", 0.0, 1e-6),
        ("top_p", 1.5, 1.0),
        ("min_p", -0.1, 0.0),
        ("min_p", 1.0, 1 - 1e-6),
        ("penalty_repeat", 0.0, 0.01),
        ("penalty_last_n", -2, -1),
        ("xtc_probability", 2.0, 1.0),
        ("mirostat", 7, 2),
    ],
)
def test_numbers_that_only_llama_cpp_takes_do_not_make_each_request_an_error(read, key, value, wanted):
    field = SAMPLING[key][0]
    assert read({key: value})[field] == wanted
    for fields in (sampling.SAMPLING, sampler_chain.FIELDS):
        if field in fields.names:
            assert read_one(fields.named(field), wanted) == wanted


def test_options_win_over_the_file(read, tmp_path):
    (tmp_path / "other.json").write_text(json.dumps({"top_k": 3}))
    assert read({"temp": 0.2}, override_generation_config='{"temperature": 0.5}')["temperature"] == 0.5
    assert read({"temp": 0.2}, generation_config_path="none") == {}
    assert read({"temp": 0.2}, generation_config_path="other.json") == {"top_k": 3}


PLAIN, OF_TOOLS = "{{ messages }}", "{{ tools }}"


@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        ({}, ("", "")),
        ({"": PLAIN}, (PLAIN, "")),
        ({"": PLAIN, "s": ["tool_use"], ".tool_use": OF_TOOLS}, (PLAIN, OF_TOOLS)),
        ({"s": ["tool_use"], ".tool_use": OF_TOOLS}, ("", OF_TOOLS)),
        ({"": PLAIN, "s": ["rag"], ".rag": "{{ documents }}"}, (PLAIN, "")),
        ({"": 3, ".tool_use": [OF_TOOLS]}, ("", "")),
    ],
)
@pytest.mark.slow
def test_the_templates_of_a_file(tmp_path, metadata, found):
    pytest.importorskip("gguf")
    from tests.makers import zoo_gguf

    named = {f"tokenizer.chat_template{name}": value for name, value in metadata.items()}
    directory = model_dir.read(Config(model_path=str(zoo_gguf.write(tmp_path / "x.gguf", "llama", **named))))
    assert (directory.fallback_template, directory.tool_template) == found


def test_a_file_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF")
    config = parse(
        ["--model_path", str(path), "--model_name", "m", "--without", "gguf", "--task", "text_generation"], {}
    )
    wrong = r"x\.gguf cannot be served: the feature gguf, which reads GGUF files, is off: left out by --without"
    with pytest.raises(StartError, match=wrong):
        build(config)


@pytest.mark.parametrize("argv", [["serve", "org/m:Q4_K_M"], ["-hf", "org/m:Q4_K_M"]])
def test_a_quantization_is_refused(argv: list[str]) -> None:
    with pytest.raises(StartError, match="this needs the option --gguf_filename of a feature that was left out"):
        parse([*argv, "--without", "gguf"], {})
