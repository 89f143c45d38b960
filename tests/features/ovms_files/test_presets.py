"""llama.cpp's presets list models whose options are written as its flags, or as this server's options."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lean_ovms.config import Config
from lean_ovms.errors import StartError
from lean_ovms.features.ovms_files import presets
from lean_ovms.features.ovms_files.config_file import ConfigEntry
from lean_ovms.features.ovms_files.files import OvmsFiles


def read(folder: Path, text: str, **options: str) -> dict[str, ConfigEntry]:
    """Returns the models in a file with this text, by their names."""
    file = folder / "models.ini"
    file.write_text(text)
    return {entry.name: entry for entry in presets.read(file, Config(**options)).entries}


README = """version = 1

; (Optional) This section provides global settings shared across all presets.
[*]
c = 8192
n-gpu-layers = 8

# another comment
[ggml-org/MY-MODEL-GGUF:Q8_0]
n-gpu-layers = 123
jinja = true
c = 4096 ; shorthand argument
temp = 0.2
LLAMA_ARG_N_PARALLEL = 4

[custom_model]
model = /Users/abc/my-awesome-model-Q4_K_M.gguf
max_num_seqs = 2
load-on-startup = true
"""


def test_the_sections_of_llama_cpps_readme_are_models(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = read(tmp_path, README)
    first, second = found.values()
    assert list(found) == ["ggml-org/MY-MODEL-GGUF:Q8_0", "custom_model"]
    sampling = {"override_generation_config": '{"temperature": 0.2}'}
    assert first.options == {"max_model_len": 4096, "max_num_seqs": 4} | sampling
    assert first.base == tmp_path / "ggml-org/MY-MODEL-GGUF:Q8_0"
    assert second.options == {"max_model_len": 8192, "max_num_seqs": 2}
    assert second.base == Path("/Users/abc/my-awesome-model-Q4_K_M.gguf")
    assert [record.getMessage().partition("]: ")[2] for record in caplog.records] == [
        "without effect: n-gpu-layers",
        "without effect: n-gpu-layers, jinja",
        "without effect: load-on-startup",
    ]


def test_names_and_flags_without_values(tmp_path: Path) -> None:
    [one] = read(tmp_path, "[m]\nalias = m,a,b\nctk = q8_0\nno-enable-prefix-caching = on\n").values()
    assert one.options == {"model_aliases": "a b", "key_cache_precision": "u8", "enable_prefix_caching": False}
    [same] = read(tmp_path, "[m]\nno-enable-prefix-caching = off\n").values()
    assert same.options == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[m]\nc = many\n", "[m]: "),
        ("[m]\nport = 80\n", "[m]: --rest_port is an option of the server, not of a model"),
        ("[m]\nxyz = 1\n", "[m]: unrecognized arguments: --xyz=1"),
        ("[m]\nlogit_bias = 1\n", "[m]: --logit_bias is not supported: send it with each request"),
        ("c = 1\n[m]\n", "line 1 has the key c before the first section"),
        ("[m]\n= 1\n", "line 2 is neither [NAME] nor KEY = VALUE"),
        ("[m\n", "line 1 is neither [NAME] nor KEY = VALUE"),
    ],
)
def test_what_is_not_understood_is_named(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(StartError) as failure:
        read(tmp_path, text)
    assert why in str(failure.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="does not exist"):
        presets.read(tmp_path / "models.ini", Config())


def test_without_the_feature_for_other_flags_the_keys_are_this_servers_options(tmp_path: Path) -> None:
    [one] = read(tmp_path, "[m]\nmax_num_seqs = 2\n", without="foreign_flags").values()
    assert one.options == {"max_num_seqs": 2}
    with pytest.raises(StartError, match="unrecognized arguments: --c=1"):
        read(tmp_path, "[m]\nc = 1\n", without="foreign_flags")


def test_the_server_serves_them_with_its_own_options_as_defaults(tmp_path: Path) -> None:
    (tmp_path / "models.ini").write_text("[a]\nc = 64\n[b]\n")
    config = Config(config_path=str(tmp_path / "models.ini"), max_model_len=32)
    assert OvmsFiles().server(config) is config
    models = OvmsFiles().models(config).models
    assert [(spec.name, spec.config.max_model_len) for spec in models] == [("a", 64), ("b", 32)]
