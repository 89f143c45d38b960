"""The model directory: what is read from it, and the errors for invalid ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lean_ovms.config import Config
from lean_ovms.errors import StartError
from lean_ovms.repository.model_dir import ModelDir, check, read, single_files

DATA = Path(__file__).parents[1] / "data"
FILES = ("openvino_model.xml", "openvino_tokenizer.xml", "openvino_detokenizer.xml")


@pytest.fixture
def model(tmp_path):
    for name in FILES:
        (tmp_path / name).write_text("")
    return tmp_path


def write(path, name, value):
    file = path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(value if isinstance(value, str) else json.dumps(value))


def test_a_bare_model_needs_no_other_file(model):
    assert read(Config(model_path=str(model))) == ModelDir(path=model)


def test_a_real_one():
    found = read(Config(model_path=str(DATA / "llama_sp")))
    assert found.generation_config["eos_token_id"] == 2
    assert found.config["model_type"] == "llama"
    assert found.chat_template.startswith("{%- for message")
    assert found.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}


def test_a_vision_models_text_part_will_do(model):
    (model / "openvino_model.xml").rename(model / "openvino_language_model.xml")
    assert read(Config(model_path=str(model))).path == model


SPEECHT5 = ("openvino_encoder_model.xml", "openvino_decoder_model.xml", "openvino_postnet.xml", "openvino_vocoder.xml")


def test_a_speecht5_has_four_networks_and_a_tokenizer(tmp_path):
    write(tmp_path, "config.json", {"architectures": ["SpeechT5ForTextToSpeech"]})
    for name in (*SPEECHT5[::-1], "openvino_tokenizer.xml"):
        with pytest.raises(StartError, match=rf"{name}.* missing"):
            read(Config(model_path=str(tmp_path)))
        write(tmp_path, name, "")
    assert read(Config(model_path=str(tmp_path))).path == tmp_path


def test_a_kokoro_has_one_network_and_no_tokenizer(tmp_path):
    write(tmp_path, "config.json", {"n_mels": 80, "vocab": {}})
    with pytest.raises(StartError, match=r"openvino_model\.xml or openvino_vocoder\.xml missing"):
        read(Config(model_path=str(tmp_path)))
    write(tmp_path, "openvino_model.xml", "")
    assert read(Config(model_path=str(tmp_path))).path == tmp_path


def test_special_tokens_may_be_objects_or_missing(model):
    write(model, "tokenizer_config.json", {"bos_token": {"content": "<s>"}, "eos_token": None, "unk_token": 3})
    assert read(Config(model_path=str(model))).special_tokens == {"bos_token": "<s>"}


# --- templates -----------------------------------------------------------------------------------------------------


def test_what_clients_may_know_of_the_tokenizer(model):
    config = {"tokenizer_class": "A", "add_bos_token": False, "errors": None, "vocab_file": "/home/x", "auto_map": {}}
    config["additional_special_tokens"] = ["<a>", {"content": "<b>"}, 5]
    (model / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    kept = {"tokenizer_class": "A", "add_bos_token": False, "additional_special_tokens": ["<a>", "<b>"]}
    assert read(Config(model_path=str(model))).tokenizer == kept


def test_templates_in_json_files_go_by_order(model):
    write(model, "tokenizer_config.json", {"chat_template": "of the tokenizer"})
    assert read(Config(model_path=str(model))).fallback_template == "of the tokenizer"
    write(model, "processor_config.json", {"chat_template": "of the processor"})
    assert read(Config(model_path=str(model))).fallback_template == "of the processor"
    write(model, "chat_template.json", {"chat_template": "json"})
    assert read(Config(model_path=str(model))).fallback_template == "json"
    assert read(Config(model_path=str(model))).chat_template == ""
    write(model, "chat_template.jinja", "\ufeffjinja é")
    assert read(Config(model_path=str(model))).chat_template == "jinja é"


def test_the_entry_called_default_of_a_list(model):
    entries = [
        {"name": "rag", "template": "r"},
        {"name": "default", "template": "d"},
        {"name": "tool_use", "template": "t"},
    ]
    write(model, "tokenizer_config.json", {"chat_template": entries})
    found = read(Config(model_path=str(model)))
    assert (found.fallback_template, found.tool_template) == ("d", "t")
    write(model, "additional_chat_templates/tool_use.jinja", "file")
    assert read(Config(model_path=str(model))).tool_template == "file"


@pytest.mark.parametrize("entry", [None, 5, [], ["x"], [{"name": "default"}], [{"name": "default", "template": 5}], {}])
def test_odd_templates_are_no_templates(model, entry):
    write(model, "tokenizer_config.json", {"chat_template": entry})
    assert read(Config(model_path=str(model))).fallback_template == ""
    assert read(Config(model_path=str(model))).tool_template == ""


# --- errors --------------------------------------------------------------------------------------------------------


def complaint(path) -> str:
    with pytest.raises(StartError) as error:
        read(Config(model_path=str(path)))
    return str(error.value)


def test_a_directory_that_may_not_be_read_is_named(model, monkeypatch):
    stat = os.stat

    def forbidden(path, **given):
        if Path(path).parent == model:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **given)

    monkeypatch.setattr(os, "stat", forbidden)
    assert single_files(model) == []


def test_no_such_directory(tmp_path):
    assert complaint(tmp_path / "typo") == (
        f"there is no model at {tmp_path / 'typo'}: no such directory; give a model's directory, a GGUF file, or "
        "the name of a model on the hub (ORGANISATION/NAME), as source_model"
    )


def test_a_file_is_no_directory(tmp_path):
    file = tmp_path / "model.bin"
    file.write_text("")
    assert complaint(file).endswith("is not a model directory (nor a .gguf file)")
    (tmp_path / "openvino_model.xml").write_text("")
    assert complaint(file).endswith(f"is not a model directory (nor a .gguf file); give its directory, {tmp_path}")


@pytest.mark.parametrize("name", FILES)
def test_each_missing_file_is_named(model, name):
    (model / name).unlink()
    others = sorted(set(FILES) - {name})
    assert complaint(model) == (
        f"{model} is not a complete OpenVINO model: {name} missing; it contains {', '.join(others)}; "
        f"export a model with: optimum-cli export openvino --model NAME {model}"
    )


def test_a_folder_that_may_not_be_read_has_nothing_of_the_model(model, monkeypatch):
    """A mounted volume has a lost+found that belongs to root."""
    (model / "lost+found").mkdir()
    scandir, listdir = os.scandir, os.listdir

    def of(real):
        def listed(path="."):
            if Path(path).name == "lost+found":
                raise PermissionError(13, "Permission denied", str(path))
            return real(path)

        return listed

    monkeypatch.setattr(os, "scandir", of(scandir))
    monkeypatch.setattr(os, "listdir", of(listdir))
    check(model)


def test_the_usual_reasons_are_reported(tmp_path):
    assert "; it is empty; export a model with: optimum-cli" in complaint(tmp_path)
    for i in range(12):
        write(tmp_path, f"file{i:02}", "")
    assert "; it contains file00, file01, file02, file03, file04, file05, file06, file07, ...; " in complaint(tmp_path)
    write(tmp_path, "INT4/openvino_model.xml", "")
    assert complaint(tmp_path).endswith(
        f"its subdirectory INT4 contains a model: give {tmp_path / 'INT4'}, or --model_repository_path {tmp_path}"
    )
    write(tmp_path, "model.safetensors", "")
    assert "optimum-cli export openvino" in complaint(tmp_path)
    write(tmp_path, "model_index.json", "{}")
    assert "image generation" in complaint(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("generation_config.json", "{", "generation_config.json is not valid JSON"),
        ("config.json", "[1]", "config.json must contain a JSON object"),
        ("tokenizer_config.json", "[" * 100_000, "tokenizer_config.json is not valid JSON"),
        ("config.json", "   ", "config.json is not valid JSON"),
    ],
)
def test_a_malformed_file_is_named(model, name, text, says):
    write(model, name, text)
    assert says in complaint(model)


def test_bytes_that_are_no_text_are_named(model):
    (model / "chat_template.jinja").write_bytes(b"\xff\xfe")
    assert "chat_template.jinja cannot be read" in complaint(model)


def test_an_empty_json_file_says_nothing(model):
    write(model, "generation_config.json", "")
    assert read(Config(model_path=str(model))).generation_config == {}
