"""vLLM's fields in responses: tokens of prompt and answer, their names in log probabilities, the end of the id."""

from __future__ import annotations

import re

from tests.api.conftest import MakeApp, get, post, whole
from tests.fakes import EOS, encode, say
from tests.features.responses.rules import PATH, ask, refused, respond, streamed

PROMPT = encode("user:hi;")


async def test_token_ids_come_with_the_response_and_are_kept_with_it(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say("a", "b"))
    body = await respond(app, return_token_ids=True)
    assert (body["prompt_token_ids"], body["token_ids"]) == (PROMPT, [*encode("ab"), EOS])
    assert len(body["token_ids"]) == body["usage"]["output_tokens"]
    assert await whole(await get(app, f"{PATH}/{body['id']}")) == body
    assert not {"prompt_token_ids", "token_ids"} & set(await respond(app))
    events = await streamed(await post(app, PATH, ask(return_token_ids=True, stream=True)))
    sent = [event["response"] for event in events if "response" in event]
    assert [response["prompt_token_ids"] for response in sent] == [PROMPT] * len(sent)
    assert (sent[0]["token_ids"], sent[-1]["token_ids"]) == ([], [*encode("ab"), EOS])


async def test_several_choices_are_items_one_after_the_other_with_a_list_of_ids_for_each(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: [[(1, "x", None), (0, "a", None)], [(0, "b", "stop"), (1, "y", "stop")]])
    body = await respond(app, return_token_ids=True, n=2)
    assert [item["content"][0]["text"] for item in body["output"]] == ["ab", "xy"]
    assert body["token_ids"] == [[*encode("ab"), EOS], [*encode("xy"), EOS]]
    events = await streamed(await post(app, PATH, ask(n=2, stream=True)))
    assert {item["content"][0]["text"] for item in events[-1]["response"]["output"]} == {"ab", "xy"}


async def test_log_probabilities_name_tokens_by_their_ids_on_request(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say("ab"))
    fields = {"logprobs": True, "return_tokens_as_token_ids": True}
    body = await respond(app, **fields)
    names = ["token_id:97", "token_id:98"]  # the token that ends the answer is not text
    assert [entry["token"] for entry in body["output"][0]["content"][0]["logprobs"]] == names
    events = await streamed(await post(app, PATH, ask(stream=True, **fields)))
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [entry["token"] for event in deltas for entry in event["logprobs"]] == names


async def test_the_id_ends_with_what_the_client_calls_it_and_is_nobody_elses(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say("a"))
    bodies = [await respond(app, request_id="job-7.a") for _ in range(2)]
    assert all(re.fullmatch(r"resp_[0-9a-f]{48}_job-7\.a", body["id"]) for body in bodies)
    assert bodies[0]["id"] != bodies[1]["id"]
    assert await whole(await get(app, f"{PATH}/{bodies[0]['id']}")) == bodies[0]
    (event, *_) = await streamed(await post(app, PATH, ask(request_id="b", stream=True)))
    assert event["response"]["id"].endswith("_b")
    for name in ("", "a/b", "a?b", "a b", "é", "x" * 129):  # no path could contain these
        assert (await refused(app, request_id=name))["param"] == "request_id"
