"""Answers the held-out prompts with openvino_genai's continuous batching, greedily, and counts the right answers."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openvino
import openvino_genai

from tools.demo_model import heldout_long
from tools.demo_model.cases import TARGETS, Case, all_cases
from tools.demo_model.checks import is_json, split_thought
from tools.demo_model.heldout import FORMS

MAX_NEW_TOKENS, FORM_TOKENS = 160, 200
LONG = (12_000, 32_000)


class Runner:
    """Answers many cases at once, turn by turn."""

    def __init__(self, folder: Path) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = 4096
        scheduler.enable_prefix_caching = True  # the long prompts have a common prefix
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU")
        self._tokenizer = self._pipeline.get_tokenizer()
        self._config = self._new_config(MAX_NEW_TOKENS)
        self.ended = 0
        self.answered = 0

    def _new_config(self, tokens: int) -> Any:
        config = self._pipeline.get_config()
        config.max_new_tokens, config.apply_chat_template = tokens, False
        return config

    def answers(self, cases: list[Case]) -> list[str]:
        """Returns the last answer of each case."""
        messages = [[{"role": "system", "content": case.system}] if case.system else [] for case in cases]
        last = [""] * len(cases)
        for turn in range(max(len(case.turns) for case in cases)):
            active = [i for i, case in enumerate(cases) if turn < len(case.turns)]
            for i in active:
                messages[i].append({"role": "user", "content": cases[i].turns[turn]})
                messages[i].extend(cases[i].past)
            prompts = [self._prompt(cases[i], messages[i]) for i in active]
            for i, result in zip(active, self._pipeline.generate(prompts, [self._config] * len(prompts)), strict=True):
                last[i] = result.m_generation_ids[0]
                self.answered += 1
                self.ended += self.count(last[i]) < MAX_NEW_TOKENS - 1
                parts = split_thought(last[i]) if cases[i].thinking else None
                messages[i].append({"role": "assistant", "content": parts[1] if parts else last[i]})
        return last

    def filled(self, schema: dict[str, Any], question: str) -> str:
        """Returns the answer to a question under a JSON schema."""
        config = self._new_config(FORM_TOKENS)
        config.structured_output_config = openvino_genai.StructuredOutputConfig(json_schema=json.dumps(schema))
        return self.generated([{"role": "user", "content": question}], config)

    def generated(self, messages: list[dict[str, str]], config: Any, tools: Sequence[dict[str, Any]] = ()) -> str:
        prompt = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tools=list(tools))
        text: str = self._pipeline.generate([prompt], [config])[0].m_generation_ids[0]
        return text

    def ends_after(self, tokens: int, with_tools: bool) -> list[bool]:
        """Returns for each question after a long prompt whether its answer ends before FORM_TOKENS."""
        config = self._new_config(FORM_TOKENS)
        return [
            self.count(self.generated(messages, config, tools)) < FORM_TOKENS - 1
            for messages, tools in heldout_long.conversations(tokens, self.count, with_tools)
        ]

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).input_ids.data[0])

    def _prompt(self, case: Case, messages: list[dict[str, object]]) -> str:
        context = {"enable_thinking": True} if case.thinking else {}
        prompt: str = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tools=list(case.tools), extra_context=context
        )
        return prompt


def evaluate(folder: Path, show: int = 3) -> dict[str, float]:
    """Prints a table and up to `show` wrong answers per topic. Returns the share of right answers of each group."""
    runner = Runner(folder)
    cases = all_cases()
    right: dict[tuple[str, str], list[bool]] = defaultdict(list)
    wrong: dict[tuple[str, str], list[tuple[Case, str]]] = defaultdict(list)
    unasked: list[bool] = []
    for case, answer in zip(cases, runner.answers(cases), strict=True):
        key = (case.group, case.topic)
        right[key].append(case.check(answer))
        if not right[key][-1]:
            wrong[key].append((case, answer))
        if case.thinking:
            right["thinking", "block opened by the prompt is closed"].append(split_thought(answer) is not None)
        else:
            unasked.append("think>" not in answer)
    right["thinking", "no block without enable_thinking"] = unasked
    right["ends", "ends its turn by itself"] = [i < runner.ended for i in range(runner.answered)]
    right["forms", f"parses within {FORM_TOKENS} tokens"] = [
        is_json()(runner.filled(schema, question)) for schema, question in FORMS
    ]
    for tokens in LONG:
        right["long", f"ends after {tokens:,} tokens"] = runner.ends_after(tokens, with_tools=tokens > LONG[0])
    shares = {}
    print(f"inference precision: {precision()}\n")
    print("| group | topic | right | of | share |\n|---|---|---|---|---|")
    for group in TARGETS:
        rows = {topic: results for (g, topic), results in right.items() if g == group}
        for topic, results in rows.items():
            print(table_row(group, topic, results))
        everything = [result for results in rows.values() for result in results]
        shares[group] = sum(everything) / len(everything)
        target = TARGETS[group]
        print(table_row(f"**{group}**", "all" if target is None else f"all, target {100 * target:.0f} %", everything))
    for (_, topic), misses in wrong.items():
        for case, answer in misses[:show]:
            print(f"{topic}: {case.turns[-1]!r} -> {answer!r}")
    return shares


def precision() -> str:
    """Returns the CPU plugin's default precision: bf16 on CPUs that support it, else f32."""
    name: str = openvino.Core().get_property("CPU", "INFERENCE_PRECISION_HINT").to_string()
    return name


def missed(shares: dict[str, float]) -> list[str]:
    """Returns the groups whose share of right answers is below their target."""
    return [group for group, target in TARGETS.items() if target is not None and shares[group] < target]


def table_row(group: str, topic: str, results: list[bool]) -> str:
    right, of = sum(results), len(results)
    return f"| {group} | {topic} | {right} | {of} | {100 * right / of:.1f} % |"
