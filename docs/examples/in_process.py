"""A model in a program, without sockets, and its answer as it comes: python docs/examples/in_process.py"""

import asyncio

from lean_ovms.config import Config
from lean_ovms.embed import Client, ClientError, opened


async def main() -> None:
    async with opened(Config(max_num_seqs=4)) as app:
        client = Client(app)
        async for piece in client.chat_stream("Count from one to five.", temperature=0, max_tokens=24):
            print(piece, end="", flush=True)
        print()
        models = await client.get("/v1/models")
        print("models:", *(model["id"] for model in models["data"]))
        answers = await asyncio.gather(*(client.chat(f"{n}+1=", max_tokens=4) for n in range(3)))
        print("answers side by side:", len(answers))
        try:
            await client.chat("Hello", temperature=9)
        except ClientError as error:
            print("refused:", error.status, error.error["param"])


if __name__ == "__main__":
    asyncio.run(main())
