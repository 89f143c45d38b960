"""The words of an answer as they come, in an event loop: python docs/examples/async_stream.py"""

import asyncio

from lean_ovms import AsyncLLM, SamplingParams
from lean_ovms.config import DEMO_MODEL


async def main() -> None:
    async with AsyncLLM(DEMO_MODEL) as llm:
        seen = 0
        messages = [{"role": "user", "content": "Count from one to five."}]
        async for output in llm.chat(messages, SamplingParams(temperature=0, max_tokens=24)):
            text = output.outputs[0].text
            print(text[seen:], end="", flush=True)
            seen = len(text)
        print()


if __name__ == "__main__":
    asyncio.run(main())
