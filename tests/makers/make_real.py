"""Records what transformers in torch computes with SmolLM2-135M-Instruct's weights in f32:
tests/data/real/smollm2.json.

python -m tests.makers.make_real FOLDER   (needs torch, transformers and openvino)

FOLDER is that of tools.real_models, with its exports. torch uses the weights that are compared: smollm2_hf has those of
the GGUF file; the quantized ones are read from the exports in int8 and int4.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

DATA = Path(__file__).parents[1] / "data" / "real"
TOKENS, PART = 7901, 450
ANSWER = 64
KEPT = 0.5
"""The largest distance of the logits of the best two tokens that is recorded."""
WEIGHTS = {"gguf": "", "int8": "smollm2_ir", "int4": "smollm2_int4"}
"""The exports by the kind of their weights; smollm2_hf has those of the GGUF file."""
SAMPLED, LIKELIEST = 1, 40
"""The prompt for which the probabilities of first tokens are recorded, and how many of these tokens."""
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
QUESTIONS = """What is the capital of France?
Write a haiku about the sea.
Explain photosynthesis to a child.
List five fruits that are red.
What is 12 times 8?
Translate "good morning" into Spanish.
Write a Python function that adds two numbers.
Who wrote Romeo and Juliet?
Give me a recipe for pancakes.
Why is the sky blue?
Tell me a joke about cats.
What should I pack for a trip to Norway in winter?
Summarize the story of Cinderella in two sentences.
Name the planets of the solar system in order.
How do I boil an egg?
Write a short letter to a friend who is ill.
What is the difference between a virus and a bacterium?
Describe a sunset in the mountains.
What does HTTP stand for?
Give three reasons to learn a musical instrument.
Write a SQL query that counts the users of each country.
How many days are in a leap year?
Suggest a name for a small bakery.
What is gravity?
Explain recursion with an example.
Write a slogan for a bicycle shop.
What happened in 1969 on the moon?
How can I sleep better?
Complete the sentence: The old house at the end of the street
Compare tea and coffee.""".splitlines()


def losses(model: Any, ids: list[int]) -> list[float]:
    """Returns the mean loss of each part of the tokens after the first."""
    hidden, following = model.model(torch.tensor([ids])).last_hidden_state[0, :-1], torch.tensor(ids[1:])
    parts = zip(hidden.split(PART), following.split(PART), strict=True)
    return [round(torch.nn.functional.cross_entropy(model.lm_head(part), right).item(), 4) for part, right in parts]


def greedy(model: Any, prompts: list[list[int]]) -> tuple[list[list[int]], list[list[list[float]]]]:
    """Returns the greedy answers, and for each the positions at which the best two tokens are close, with the
    distances."""
    most = max(map(len, prompts))
    ids = torch.tensor([[0] * (most - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (most - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    cache, tokens, close = None, [], []
    for _ in range(ANSWER):
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        out = model(ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
        cache, best = out.past_key_values, out.logits[:, -1].topk(2)
        tokens.append(best.indices[:, 0])
        close.append(best.values[:, 0] - best.values[:, 1])
        ids, mask = best.indices[:, :1], torch.cat([mask, torch.ones(len(prompts), 1, dtype=mask.dtype)], 1)
    apart = torch.stack(close, 1).tolist()
    near = [[[at, round(far, 3)] for at, far in enumerate(row) if far <= KEPT] for row in apart]
    return torch.stack(tokens, 1).tolist(), near


def off_in_bf16(model: Any, prompts: list[list[int]], answers: list[list[int]], near: list[list[list[float]]]) -> float:
    """Returns the largest distance in f32 of the best two tokens where torch in bf16 first selects another one."""
    rough = copy.deepcopy(model).to(torch.bfloat16)
    most = 0.0
    for prompt, answer, close in zip(prompts, answers, near, strict=True):
        chosen = rough(torch.tensor([[*prompt, *answer[:-1]]])).logits[0, len(prompt) - 1 :].argmax(-1).tolist()
        first = next((at for at, pair in enumerate(zip(chosen, answer, strict=True)) if pair[0] != pair[1]), None)
        if first is not None:
            most = max(most, dict(map(tuple, close)).get(first, KEPT))  # type: ignore[arg-type]
    return most


def dequantized(folder: Path) -> dict[str, torch.Tensor]:
    """Returns the quantized weights of an export in f32 by their names in torch."""
    constants = {op.get_friendly_name(): op for op in ov.Core().read_model(folder / "openvino_model.xml").get_ops()}
    weights = {}
    for name, op in constants.items():
        if name.startswith("self.") and name.endswith(".weight") and op.get_type_name() == "Constant":
            if f"{name}/scale" not in constants:
                continue
            shift = constants.get(f"{name}/zero_point")
            zero = shift.get_data(dtype=np.float32) if shift is not None else 0
            values = (op.get_data(dtype=np.float32) - zero) * constants[f"{name}/scale"].get_data(dtype=np.float32)
            weights[name.removeprefix("self.")] = torch.from_numpy(values.reshape(len(values), -1))
    return weights


@torch.inference_mode()
def main(folder: str) -> None:
    """Writes the file."""
    source = Path(folder) / "smollm2_hf"
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()

    def encoded(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    def prompt(text: str) -> list[int]:
        turns = ("system", SYSTEM), ("user", text)
        chat = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
        return encoded(chat + "<|im_start|>assistant\n")

    prompts = [prompt(text) for text in QUESTIONS]
    first = model(torch.tensor([prompts[SAMPLED]])).logits[0, -1].softmax(-1).topk(LIKELIEST)
    text = encoded((DATA / "english.txt").read_text("utf-8"))[:TOKENS]
    known: dict[str, Any] = {
        "questions": QUESTIONS,
        "prompts": prompts,
        "sampled": SAMPLED,
        "first": [first.indices.tolist(), [round(p, 6) for p in first.values.tolist()]],
    }
    for kind, export in WEIGHTS.items():
        if export:
            missing, unexpected = model.load_state_dict(quantized := dequantized(Path(folder) / export), strict=False)
            assert not unexpected
            assert not [name for name in missing if "norm" not in name and "lm_head" not in name]
            print(kind, len(quantized))
        answers, near = greedy(model, prompts)
        off = off_in_bf16(model, prompts, answers, near)
        known[kind] = {"answers": answers, "near": near, "off_in_bf16": off, "losses": losses(model, text)}
        print(kind, off, known[kind]["losses"], flush=True)
    (DATA / "smollm2.json").write_text(json.dumps(known, separators=(",", ":")) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
