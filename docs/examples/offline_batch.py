"""A batch of prompts, and a conversation: python docs/examples/offline_batch.py [MODEL]"""

import sys

from lean_ovms import LLM, SamplingParams
from lean_ovms.config import DEMO_MODEL

if __name__ == "__main__":
    greedy = SamplingParams(temperature=0, max_tokens=24)
    with LLM(sys.argv[1] if len(sys.argv) > 1 else DEMO_MODEL) as llm:
        prompts = ["The capital of France is", "The capital of Japan is"]
        for output in llm.generate(prompts, greedy):
            print(repr(output.prompt), repr(output.outputs[0].text), output.outputs[0].finish_reason)
        [answer] = llm.chat([{"role": "user", "content": "What is 2 + 3?"}], greedy)
        print(answer.outputs[0].text, answer.outputs[0].token_ids)
