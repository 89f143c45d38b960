"""What `bench prefix` computes: a reply from a stream, the blocks of a prefix cache, the rows of the table."""

from __future__ import annotations

import argparse
import json

import pytest

from bench import prefix
from bench.turn import Reply, read


def test_a_reply_is_read_from_its_stream() -> None:
    events = [
        {"choices": [{"delta": {"role": "assistant", "content": None}}]},
        {"choices": [{"delta": {"content": " Hi"}, "token_ids": [4]}]},
        {"choices": [{"delta": {"content": "\u2028you"}, "token_ids": [5, 6]}], "usage": None},
        {"choices": [], "usage": {"prompt_tokens": 9}},
    ]
    stream = "HTTP/1.1 200 OK\r\n\r\n" + "".join(
        f"40\r\ndata: {json.dumps(event, ensure_ascii=False)}\n\n\r\n" for event in events
    )

    reply = read(stream + "data: [DONE]\n\n\r\n0\r\n\r\n", 0.5)

    assert reply == Reply(first_s=0.5, text=" Hi\u2028you", usage={"prompt_tokens": 9}, ids=[4, 5, 6])


@pytest.mark.parametrize(
    ("prompt", "cached"),
    [
        ([*range(9)], 8),
        ([*range(8)], 4),  # at least one token is computed
        ([*range(10), 99], 8),
        ([*range(12), 99], 8),  # the third block was not full
        ([0, 1, 2, 9, 4, 5, 6, 7, 8], 0),
        ([*range(4), 9, 9, 9, 9, 9], 4),
        ([4, 5, 6, 7, 8], 0),  # the same block in another place
        ([0, 1, 2], 0),
    ],
)
def test_whole_blocks_with_all_that_comes_before_are_cached(prompt: list[int], cached: int) -> None:
    blocks = prefix.Blocks(4)
    blocks.add(range(11))

    assert blocks.cached(prompt) == cached
    assert prefix.Blocks(4).cached(prompt) == 0


def test_conversations_of_a_round_share_the_system_prompt_only() -> None:
    args = argparse.Namespace(system_words=50, turns=3, words=4)
    one, two, other = (prefix.conversation(seed, number, args) for seed, number in ((1, 1), (1, 2), (2, 1)))

    assert one[0] == two[0] != other[0]
    assert len({*one[1:], *two[1:], *other[1:]}) == 9


def test_what_is_added_is_against_the_bare_loop_that_is_faster_in_the_middle() -> None:
    args = argparse.Namespace(shown="1,2,99", turns=2)

    def replies(*firsts: float, **usage: object) -> list[Reply]:
        return [Reply(first_s=first, text="", usage=usage) for first in firsts]

    those = {
        "bare: GenAI": replies(0.010, 0.010, 0.090),
        "bare: paged": replies(0.020, 0.020, 0.020),
        "lean_ovms": replies(0.011, 0.013, 0.091, prompt_tokens=70, prompt_tokens_details={"cached_tokens": 64}),
    }

    rows = prefix.table(args, {(which, turn): those for which in (1, 2) for turn in (1, 2)})

    assert [row["case"] for row in rows[::3]] == ["turn 1", "turn 2", "another conversation, turn 1"]
    assert rows[2]["ttft_added_ms"]["median"] == pytest.approx(1.0)
    assert (rows[2]["prompt_tokens"], rows[2]["cached_tokens"]) == (70, 64)
    assert "ttft_added_ms" not in rows[0]
