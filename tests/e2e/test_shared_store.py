"""Two server processes with one store, both under load. One gets SIGKILL, and everything acknowledged is still
there."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import httpx

from tests import databases
from tests.e2e.conftest import Process, start_process


def server(kept_in: str) -> Process:
    flags = ("--fake_engine", "--model_name", "m", "--plugin_config", '{"step_s": 0.001}')
    process = start_process(*flags, env={"LEAN_OVMS_RESPONSE_STORE": kept_in})
    process.wait_for("ready: m")
    return process


async def test_what_was_acknowledged_survives_a_kill_of_either(kept_in: str) -> None:
    first, second = server(kept_in), server(kept_in)
    try:
        await under_load(first, second)
        for process in (first, second):
            process.end()
            log = "".join(process.lines)
            assert databases.PASSWORD not in log
            assert "Traceback" not in log
    finally:
        first.end()
        second.end()


async def under_load(first: Process, second: Process) -> None:
    kept: dict[str, dict[str, Any]] = {}
    lost = 0
    async with httpx.AsyncClient(timeout=300) as client:
        found = await client.post(f"{second.url}/v1/conversations", json={})
        conversation = found.json()["id"]

        async def talk(process: Process, count: int) -> None:
            nonlocal lost
            for number in range(count):
                about = {"conversation": conversation} if number % 3 == 0 else {}
                body = {"model": "m", "input": f"say {number}", "max_output_tokens": 8, **about}
                try:
                    answer = await client.post(f"{process.url}/v1/responses", json=body)
                except httpx.HTTPError:
                    lost += 1
                    return
                assert answer.status_code == 200, answer.text
                assert answer.json()["store"] is True
                kept[answer.json()["id"]] = answer.json()
                if process is first and len(kept) > 30:
                    process.popen.send_signal(signal.SIGKILL)

        await asyncio.gather(*(talk(process, 20) for process in (first, second) for _ in range(3)))
        assert lost > 0
        for response_id, body in kept.items():
            assert (await client.get(f"{second.url}/v1/responses/{response_id}")).json() == body
        said = {item["id"] for body in kept.values() if body["conversation"] for item in body["output"]}
        assert said
        listed: list[str] = []
        query = "order=asc&limit=100"
        while True:
            page = (await client.get(f"{second.url}/v1/conversations/{conversation}/items?{query}")).json()
            listed += [item["id"] for item in page["data"]]
            if not page["has_more"]:
                break
            query = f"order=asc&limit=100&after={page['last_id']}"
        assert said <= set(listed)
        assert len(listed) == len(set(listed))
