"""A hybrid model over HTTP: how much of a prompt was cached, and that the answer is the same as without a cache."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from lean_ovms.config import Config
from tests.e2e.conftest import EXACT, start_process
from tests.engine.paged.test_zoo import VOCAB, unpacked

pytestmark = pytest.mark.model

BLOCK = 32


@pytest.fixture(scope="module", params=["lfm2", "qwen3_5_text"])
def hybrid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp(request.param)
    unpacked(request.param, folder)
    (folder / "tokenizer.json").symlink_to(Path(Config().model_dir) / "tokenizer.json")
    flags = ("--model_path", str(folder), "--model_name", "hybrid", "--plugin_config", EXACT, "--prompt_lookup")
    with start_process(*flags) as process:
        process.wait_for("ready: hybrid")
        with httpx.Client(base_url=process.url + "/v1/", timeout=300) as client:
            yield client


def words(dice: random.Random, count: int) -> list[int]:
    return [dice.randrange(12, VOCAB) for _ in range(count)]


def complete(client: httpx.Client, prompt: list[int], **fields: object) -> tuple[list[int], int]:
    """Returns the tokens of a completion, and how many prompt tokens were cached."""
    body = {"model": "hybrid", "prompt": prompt, "temperature": 0, "max_tokens": 20, "ignore_eos": True}
    answer = client.post("completions", json={**body, "return_token_ids": True, **fields}).raise_for_status().json()
    return answer["choices"][0]["token_ids"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_each_turn_of_a_conversation_begins_behind_the_answer_before(hybrid: httpx.Client) -> None:
    assert hybrid.get("models/hybrid").json()["generates_by"]["type"] == "PAGED"
    dice = random.Random(1)
    prompt, known = words(dice, 100), 0
    for _ in range(4):
        whole, uncached = complete(hybrid, prompt, cache_salt=str(len(prompt)))
        answer, cached = complete(hybrid, prompt)
        assert (uncached, cached) == (0, known // BLOCK * BLOCK)
        assert answer == whole
        known = len(prompt) + len(answer) - 1  # the last token is not computed
        prompt = prompt + answer + words(dice, 15)
