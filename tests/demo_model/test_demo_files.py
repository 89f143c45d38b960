"""The demo models in the package and in the tests are complete, small and consistent."""

from __future__ import annotations

import json
from pathlib import Path

from tools.demo_model import corpus
from tools.demo_model.window import WINDOW

NEEDED = {
    "openvino_model.xml",
    "openvino_model.bin",
    "openvino_tokenizer.xml",
    "openvino_tokenizer.bin",
    "openvino_detokenizer.xml",
    "openvino_detokenizer.bin",
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "chat_template.jinja",
}
DATA = Path(__file__).resolve().parents[1] / "data"


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def test_model_is_complete_and_small(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} - {"__init__.py", "__pycache__"} == NEEDED
    assert size(folder) < 8_000_000


def test_draft_is_complete_and_smaller() -> None:
    assert {path.name for path in (DATA / "demo_draft").iterdir()} == NEEDED
    assert size(DATA / "demo_draft") < 1_500_000


def test_draft_has_the_same_vocabulary(folder: Path) -> None:
    ours, drafts = (json.loads((f / "tokenizer.json").read_text()) for f in (folder, DATA / "demo_draft"))
    assert ours == drafts


def test_fixture_with_byte_fallback_is_tiny() -> None:
    assert {path.name for path in (DATA / "llama_sp").iterdir()} == NEEDED
    assert size(DATA / "llama_sp") < 400_000


def test_shipped_template_is_the_one_that_training_used(folder: Path) -> None:
    assert (folder / "chat_template.jinja").read_text() == corpus.TEMPLATE_FILE.read_text()


def test_settings_agree(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    generation = json.loads((folder / "generation_config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    added = {token["content"]: token for token in tokenizer["added_tokens"]}
    assert config["max_position_embeddings"] == 131_072
    assert config["sliding_window"] == WINDOW
    assert set(config["layer_types"]) == {"sliding_attention"}
    assert config["vocab_size"] == len(tokenizer["model"]["vocab"]) == 2048
    assert config["eos_token_id"] == added["<|im_end|>"]["id"]
    assert generation["eos_token_id"] == [added["<|im_end|>"]["id"], added["<|endoftext|>"]["id"]]
    assert generation["do_sample"] is False
    assert generation["temperature"] == 0.0
    # The markers are not special, because a parser must see them; tokens that frame a turn are.
    assert not any(added[token]["special"] for token in ("<think>", "</think>", "<tool_call>", "</tool_call>"))
    assert all(added[token]["special"] for token in ("<|im_start|>", "<|im_end|>", "<|endoftext|>"))
