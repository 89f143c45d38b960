"""What transformers in torch computes with SmolLM2-135M-Instruct's weights in f32: tests/data/real/smollm2.json.

python -m tests.makers.make_real FOLDER   (needs torch and transformers)

FOLDER is that of tools.real_models. Its folder smollm2_hf is what transformers makes of the GGUF file
(`AutoModelForCausalLM.from_pretrained("smollm2", gguf_file=...)`, `save_pretrained`), so that torch has the very same
weights. The tokenizer that transformers makes of it lacks what splits texts into words, which is added here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

DATA = Path(__file__).parents[1] / "data" / "real"
TOKENS, PART = 7901, 450
ANSWER = 64
NEAR = 0.05
"""Two tokens whose logits are no further apart are a tie, which rounding may decide either way."""
SAMPLED, LIKELIEST = 1, 40
"""The prompt whose first tokens have their probabilities recorded, and how many of these tokens."""
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
    """Returns the mean loss of each part of the tokens behind the first."""
    logits = model(torch.tensor([ids])).logits[0, :-1]
    each = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")
    return [round(part.mean().item(), 4) for part in each.split(PART)]


def greedy(model: Any, prompt: list[int]) -> tuple[list[int], list[int]]:
    """Returns the tokens of the greedy answer, and at which of them another one was as likely."""
    answer: list[int] = []
    ties, cache, ids = [], None, torch.tensor([prompt])
    for number in range(ANSWER):
        out = model(ids, past_key_values=cache, use_cache=True)
        cache, best = out.past_key_values, out.logits[0, -1].topk(2)
        if best.values[0] - best.values[1] <= NEAR:
            ties.append(number)
        answer.append(int(best.indices[0]))
        ids = best.indices[:1][None]
    return answer, ties


@torch.inference_mode()
def main(folder: str) -> None:
    """Writes the file."""
    source = Path(folder) / "smollm2_hf"
    tokenizer = AutoTokenizer.from_pretrained(source)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), byte_level])
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()

    def encoded(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    def prompt(text: str) -> list[int]:
        turns = ("system", SYSTEM), ("user", text)
        chat = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
        return encoded(chat + "<|im_start|>assistant\n")

    prompts = [prompt(text) for text in QUESTIONS]
    answers = [greedy(model, ids) for ids in prompts]
    first = model(torch.tensor([prompts[SAMPLED]])).logits[0, -1].softmax(-1).topk(LIKELIEST)
    text = encoded((DATA / "english.txt").read_text("utf-8"))[:TOKENS]
    known = {
        "questions": QUESTIONS,
        "prompts": prompts,
        "answers": [tokens for tokens, _ in answers],
        "near_ties": [ties for _, ties in answers],
        "sampled": SAMPLED,
        "first": [first.indices.tolist(), [round(p, 6) for p in first.values.tolist()]],
        "losses": losses(model, text),
    }
    (DATA / "smollm2.json").write_text(json.dumps(known, separators=(",", ":")) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
