"""A server inside a program's own event loop: python docs/examples/embedded_server.py"""

import asyncio

from lean_ovms.embed import running


async def main() -> None:
    async with running(rest_port=0, rest_bind_address="127.0.0.1") as server:
        print("listening on", *server.addresses)
        print(await server.client.chat("What is the capital of France?", temperature=0, max_tokens=24))


if __name__ == "__main__":
    asyncio.run(main())
