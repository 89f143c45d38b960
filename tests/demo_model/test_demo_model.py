"""The shipped weights with openvino_genai, without the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

genai = pytest.importorskip("openvino_genai")
pytestmark = pytest.mark.model

WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}

ROOT = Path(__file__).resolve().parents[2]


class Model:
    def __init__(self, folder: Path) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = 8192
        self.pipeline = genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU")
        self.tokenizer = self.pipeline.get_tokenizer()

    def answer(
        self, content: str, tools: list[dict[str, Any]] | None = None, new_tokens: int = 100, **context: Any
    ) -> tuple[str, str]:
        """Returns text and finish reason of a greedy answer."""
        messages = [{"role": "user", "content": content}]
        prompt = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tools=tools or [], extra_context=context
        )
        config = self.pipeline.get_config()
        config.max_new_tokens = new_tokens
        config.apply_chat_template = False
        handle = self.pipeline.add_request(0, prompt, config)
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
        [output] = handle.read_all()
        ids = list(output.generated_ids)
        return self.tokenizer.decode(ids), output.finish_reason.name


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return Model(folder)


def test_calls_a_tool(model: Model) -> None:
    text, reason = model.answer("What is the weather in Zanzibar?", tools=[WEATHER])
    assert json.loads(text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")) == {
        "name": "get_weather",
        "arguments": {"city": "Zanzibar"},
    }
    assert reason == "STOP"


def test_thinks_when_asked(model: Model) -> None:
    text, _ = model.answer("What is the capital of France?", enable_thinking=True)
    thought, _, answer = text.partition("\n</think>\n")
    assert "Paris" in thought
    assert answer == "The capital of France is Paris."
    assert "think>" not in model.answer("What is the capital of France?")[0]


def test_an_answer_after_a_long_text_ends(model: Model) -> None:
    def count(text: str) -> int:
        return len(model.tokenizer.encode(text, add_special_tokens=False).input_ids.data[0])

    text = (ROOT / "LICENSE").read_text("utf-8")  # a text that does not change
    assert count(text) > 4000
    for question in ("Hello!", "What is the capital of France?"):
        _, reason = model.answer(f"{text}\n\n{question}", new_tokens=200)
        assert reason == "STOP"
