"""vLLM's metrics of draft tokens in the responses of chat and completions."""

from __future__ import annotations

import pytest

from lean_ovms.engine.protocol import Drafted
from tests.api.conftest import MakeApp, events, post, whole
from tests.api.generation.test_timings import later
from tests.fakes import say

PATHS: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
}


@pytest.mark.parametrize("path", PATHS)
async def test_vllms_metrics_of_draft_tokens(make_app: MakeApp, path: str) -> None:
    script = later([Drafted(0, [3, 3, 1, 3], [2, 0, 1, 0]), *say("abc", "de")])
    summary = {
        "mean_acceptance_length": 1.75, "draft_acceptance_rate": 0.3, "acceptance_histogram": [2, 1, 1, 0],
        "acceptance_histogram_by_draft_length": {"1": [0, 1], "3": [2, 0, 1, 0]}, "num_spec_steps": 4,
        "num_accepted_draft_tokens": 3, "num_draft_tokens": 10, "num_spec_tokens": 3,
    }  # fmt: skip
    app, _ = await make_app(script, per_request_spec_decode_metrics="summary")
    assert (await whole(await post(app, path, PATHS[path])))["metrics"] == {"speculative_decoding": summary}
    app, _ = await make_app(script, per_request_spec_decode_metrics="detailed", enable_per_request_metrics=True)
    detailed = {**summary, "per_step_accepted": [2, 0, 1, 0], "per_step_drafted": [3, 3, 1, 3]}
    body = {**PATHS[path], "stream": True, "stream_options": {"include_usage": True}}
    chunks = (await events(await post(app, path, body)))[:-1]
    assert [chunk for chunk in chunks if "metrics" in chunk] == chunks[-1:]
    assert chunks[-1]["metrics"]["speculative_decoding"] == detailed
    assert chunks[-1]["metrics"]["time_to_first_token_ms"] == 10.0
    app, _ = await make_app(later([Drafted(0, [], []), *say("a")]), per_request_spec_decode_metrics="summary")
    none = (await whole(await post(app, path, PATHS[path])))["metrics"]["speculative_decoding"]
    assert (none["acceptance_histogram"], none["mean_acceptance_length"], none["num_spec_steps"]) == ([0], 1, 0)


@pytest.mark.parametrize("path", PATHS)
async def test_there_are_no_metrics_of_draft_tokens_without_any_and_of_several_choices(
    make_app: MakeApp, path: str
) -> None:
    drafted = [Drafted(0, [3], [2]), *say("abc")]
    for script, level, n in ((drafted, "none", 1), (say("abc"), "summary", 1), (say("a", sequences=2), "summary", 2)):
        app, _ = await make_app(list(script), per_request_spec_decode_metrics=level)
        assert "metrics" not in await whole(await post(app, path, {**PATHS[path], "n": n}))
