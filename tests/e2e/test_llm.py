"""LLM with the demo models: its tokens are those of the server, and it leaves nothing behind."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from lean_ovms import LLM, SamplingParams
from lean_ovms.config import DEMO_MODEL
from tests.e2e.conftest import EXACT, PATIENT_S
from tests.e2e.test_embedding_examples import run

pytestmark = pytest.mark.model
PROMPTS = ["Hello", "The capital of France is", "One two three four", "def f(x):"]
GREEDY = SamplingParams(temperature=0, max_tokens=24)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(DEMO_MODEL, plugin_config=EXACT) as llm:
        yield llm


def test_greedy_text_is_that_of_the_server(llm: LLM, client: openai.OpenAI) -> None:
    for prompt, output in zip(PROMPTS, llm.generate(PROMPTS, GREEDY), strict=True):
        answer = client.completions.create(
            model="demo", prompt=prompt, temperature=0, max_tokens=24, extra_body={"return_token_ids": True}
        )
        [choice] = answer.choices
        assert output.outputs[0].text == choice.text
        assert output.outputs[0].token_ids == choice.token_ids  # type: ignore[attr-defined]
        assert output.prompt_token_ids == choice.prompt_token_ids  # type: ignore[attr-defined]
        assert output.outputs[0].finish_reason == choice.finish_reason


def test_a_conversation_is_answered_as_by_the_server(llm: LLM, client: openai.OpenAI) -> None:
    for text in PROMPTS:
        turns: list[Any] = [{"role": "user", "content": text}]
        [mine] = llm.chat(turns, GREEDY, chat_template_kwargs={"enable_thinking": False})
        theirs = client.chat.completions.create(
            model="demo",
            messages=turns,
            temperature=0,
            max_tokens=24,
            extra_body={"chat_template_kwargs": {"enable_thinking": False}},
        )
        assert mine.outputs[0].text == (theirs.choices[0].message.content or "")
        assert theirs.usage is not None
        assert len(mine.prompt_token_ids) == theirs.usage.prompt_tokens


def test_two_hundred_prompts_have_the_answers_that_each_has_alone(llm: LLM) -> None:
    alone = {prompt: llm.generate(prompt, GREEDY)[0].outputs[0].token_ids for prompt in PROMPTS}
    outputs = llm.generate(PROMPTS * 50, GREEDY)
    assert [output.outputs[0].token_ids for output in outputs] == [alone[prompt] for prompt in PROMPTS] * 50


INTERRUPTED = """
import os, signal, sys
from lean_ovms import LLM, SamplingParams

llm = LLM(sys.argv[1])
class Bar:
    def __init__(self, **_): pass
    def set_postfix_str(self, *_, **__): pass
    def close(self): pass
    def update(self, _):
        os.killpg(0, signal.SIGINT)  # as a terminal does: to the engine, too
try:
    long = [SamplingParams(max_tokens=1000, ignore_eos=True)] * 40
    llm.generate(["Hello"] * 41, [SamplingParams(max_tokens=1), *long], use_tqdm=Bar)
except KeyboardInterrupt:
    pid = llm._llm.services.registry.models["demo_model"].engine.pid
    print(pid, len(llm.generate("Hello")))
"""


def test_after_ctrl_c_the_model_is_usable_and_a_program_that_does_not_close_it_leaves_no_engine() -> None:
    command = [sys.executable, "-W", "error", "-c", INTERRUPTED, str(DEMO_MODEL)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENT_S, start_new_session=True)
    assert (done.returncode, done.stderr) == (0, "")
    pid, outputs = map(int, done.stdout.split())
    assert outputs == 1
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_examples_print_what_their_page_shows() -> None:
    page = (Path(__file__).parents[2] / "lean_ovms/features/llm/README.md").read_text("utf-8")
    for name in ("offline_batch.py", "async_stream.py"):
        printed = "\n".join(run(name))
        assert f"```text\n{printed}\n```" in page


async def printed(cells: list[str]) -> list[str]:
    """Runs cells one after the other in one event loop, like a notebook. Returns what each prints."""
    names: dict[str, Any] = {}
    texts = []
    for cell in cells:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            done = eval(compile(cell, "a cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
            if inspect.iscoroutine(done):
                await done
        texts.append(out.getvalue())
    return texts


def test_the_notebook_prints_what_it_shows() -> None:
    notebook = json.loads((Path(__file__).parents[2] / "docs/examples/offline.ipynb").read_text("utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    shown = ["".join(text for output in cell["outputs"] for text in output["text"]) for cell in cells]
    assert asyncio.run(printed(["".join(cell["source"]) for cell in cells])) == shown
