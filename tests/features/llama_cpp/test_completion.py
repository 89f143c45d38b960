"""/completion and /infill with a scripted engine: prompts, fields, unary responses and streams."""

from __future__ import annotations

import json
import math
import threading
from typing import Any

import pytest

from lean_ovms.features.completions import fim
from lean_ovms.features.llama_cpp.api import completion
from lean_ovms.types import Response
from tests.api.conftest import CODER, MakeApp, events, post, teach, warnings_of, whole
from tests.fakes import EOS, encode, say

FILES = {"<|repo_name|>": 6, "<|file_sep|>": 7}
PLACE = {"input_prefix": "a = ", "input_suffix": "\nb"}


async def complete(make_app: MakeApp, script: Any = None, path: str = "/completion", **fields: Any) -> Any:
    app, _ = await make_app(script or say("Hi", "\nyou"))
    body = await whole(await post(app, path, {"prompt": "ab", **fields}))
    assert "error" not in body, body
    return body


async def test_a_whole_answer(make_app: MakeApp) -> None:
    body = await complete(make_app)
    assert body.pop("timings")["predicted_n"] == 7
    used = body.pop("generation_settings")
    assert (used["n_predict"], used["top_k"], used["stream"], used["mirostat"]) == (-1, 40, False, 0)
    assert body == {
        "index": 0,
        "content": "Hi\nyou",
        "tokens": [],
        "id_slot": 0,
        "stop": True,
        "model": "m",
        "tokens_predicted": 7,
        "tokens_evaluated": 2,
        "has_new_line": True,
        "truncated": False,
        "stop_type": "eos",
        "stopping_word": "",
        "tokens_cached": 8,
        "prompt": "ab",
    }


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"n_predict": 5}, {"max_tokens": 5}),
        ({"n_predict": 0}, {"max_tokens": 1}),
        ({"n_predict": -1}, {"max_tokens": None}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_tokens": 6, "n_predict": 6}, {"max_tokens": 6}),
        ({"n_probs": 3}, {"logprobs": True, "top_logprobs": 3}),
        ({"temperature": -1.0}, {"temperature": 0.0}),
        ({"temperature": 0.5, "top_k": 0}, {"temperature": 0.5, "top_k": 0}),
        ({"temperature": 1, "seed": 7}, {"seeds": (7,)}),
        ({"temperature": 1, "seed": -7}, {"seeds": (2**32 - 7,)}),
        ({"repeat_penalty": 1.25, "repeat_last_n": -1}, {"repetition_penalty": 1.25}),
        (
            {"repeat_penalty": 1.25, "presence_penalty": 1, "frequency_penalty": 1, "repeat_last_n": 0},
            {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0},
        ),
        ({"ignore_eos": True, "n_predict": 1}, {"ignore_eos": True}),
        ({"logit_bias": [[65, 1.5], [66, False]]}, {"logit_bias": ((65, 1.5), (66, -100.0))}),
        ({"logit_bias": {"65": 1, "AB": False}}, {"logit_bias": ((65, -100.0), (66, -100.0))}),
        ({"logit_bias": [["B", 2], [65, -200]]}, {"logit_bias": ((65, -100.0), (66, 2.0))}),
        ({"cache_prompt": True, "samplers": [], "id_slot": 0, "t_max_prompt_ms": 500, "n_keep": 1}, {}),
    ],
)
async def test_fields_are_those_of_completions(
    make_app: MakeApp, fields: dict[str, Any], wanted: dict[str, Any]
) -> None:
    app, engine = await make_app(lambda *_: say("x"), capable=True)
    response = await post(app, "/completion", {"prompt": [1, 2], **fields})
    assert response.status == 200, response.body
    assert ("Warning" in dict(response.headers)) is False
    [(prompt, sampling)] = engine.submitted
    assert prompt == [1, 2]
    for name, value in wanted.items():
        assert getattr(sampling, name) == value


async def test_a_seed_of_minus_one_is_random_and_of_two_limits_the_one_without_effect_is_named(
    make_app: MakeApp,
) -> None:
    app, engine = await make_app(lambda *_: say("x"))
    for seed in (-1, 2**32 - 1):
        body = {"prompt": "a", "temperature": 1, "seed": seed, "max_tokens": 5, "n_predict": 6}
        response = await post(app, "/completion", body)
        assert "max_tokens has no effect: n_predict has precedence" in dict(response.headers)["Warning"]
    [(_, one), (_, other)] = engine.submitted
    assert (one.max_tokens, len({one.seeds, other.seeds, (2**32 - 1,)})) == (6, 3)


@pytest.mark.parametrize(
    ("fields", "script", "wanted"),
    [
        ({"stop": ["l"]}, say("Hal", "lo"), {"content": "Ha", "stop_type": "word", "stopping_word": "l"}),
        ({"n_predict": 2}, say("Ha", reason="length"), {"content": "Ha", "stop_type": "limit", "stopping_word": ""}),
        ({"n_predict": 0}, say("H", reason="length"), {"content": "", "stop_type": "limit", "tokens_predicted": 0}),
        ({"return_tokens": True}, say("Ha", reason="length"), {"tokens": encode("Ha")}),
    ],
)
async def test_how_it_ended(make_app: MakeApp, fields: Any, script: Any, wanted: Any) -> None:
    body = await complete(make_app, script, **fields)
    assert {name: body[name] for name in wanted} == wanted
    body = await complete(make_app, response_fields=["content", "timings/prompt_n", "nothing", "content/x"])
    assert body == {"content": "Hi\nyou", "timings/prompt_n": 2}


async def test_a_stream(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda *_: say("Hi", "\nyou"))
    found = await events(await post(app, "/completion", {"prompt": "ab", "stream": True}))
    assert [event["content"] for event in found] == ["Hi", "\nyou", ""]
    assert [event["stop"] for event in found] == [False, False, True]
    assert found[0]["tokens"] == encode("Hi")
    assert (found[0]["tokens_predicted"], found[0]["tokens_evaluated"]) == (2, 2)
    assert (found[-1]["stop_type"], found[-1]["has_new_line"], found[-1]["tokens_predicted"]) == ("eos", True, 7)
    assert not engine.mail.busy
    for more in (False, True):
        body = {"prompt": "ab", "stream": True, "timings_per_token": more}
        *parts, last = await events(await post(app, "/completion", body))
        assert ["timings" in part for part in parts] == [more] * 2
        assert "timings" in last
    [last] = await events(await post(app, "/completion", {"prompt": "ab", "stream": True, "n_predict": 0}))
    assert (last["stop"], last["content"], last["tokens_predicted"]) == (True, "", 0)


async def test_no_longer_than_asked_for_once_a_line_is_complete(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(1, 1000))
    monkeypatch.setattr(completion, "monotonic", lambda: next(seconds))
    app, engine = await make_app(say(*["a"] * 3, "\n", *["b"] * 90))
    body = await whole(await post(app, "/completion", {"prompt": "ab", "t_max_predict_ms": 1500}))
    assert body["content"].startswith("aaa\n")
    assert len(body["content"]) < 90
    assert body["stop_type"] == "limit"
    assert engine.cancelled


BIASES: list[Any] = [
    [["", 1]], [["a" * 257, 1]], {"a": "b"}, {"9" * 5000: 1}, [[1, 1, 1]], [[1, True]],
]  # fmt: skip
WRONG: list[tuple[str, Any, str]] = [
    ("response_fields", [1], "response_fields"),
    ("stop", [1], "stop"),
    *(("logit_bias", bias, "logit_bias") for bias in BIASES),
    *(("prompt", prompt, "prompt") for prompt in ("", [], {"a": 1}, [1, -1], [1, {}], ["a"] * 5, ["a", 1] * 2049)),
    *(("prompt", [one], "prompt[0]") for one in ("", [], None, {"multimodal_data": ["x"], "prompt_string": "a"})),
]


async def test_a_wrong_field_is_named(make_app: MakeApp) -> None:
    app, _ = await make_app(say("x"), max_prompts=4)
    for name, value, param in WRONG:
        for path in ("/completion", "/infill") if name != "prompt" else ("/completion",):
            response = await post(app, path, {"prompt": "a", **PLACE, name: value})
            assert (response.status, (await whole(response))["error"]["param"]) == (400, param), value


@pytest.mark.parametrize(
    ("prompt", "sent"),
    [
        (["ab"], ["ab"]),
        ({"prompt_string": "ab"}, ["ab"]),
        ([1, 2, "ab", 3, "c"], [[1, 2, 97, 98, 3, 99]]),
        ([["ab", 3]], [[EOS, 97, 98, 3]]),
        (["a", [1, 2], {"prompt_string": ["b", 1]}], ["a", [1, 2], [EOS, 98, 1]]),
    ],
)
async def test_the_forms_of_a_prompt(make_app: MakeApp, prompt: Any, sent: Any) -> None:
    app, engine = await make_app(lambda *_: say("x"))
    body = await whole(await post(app, "/completions", {"prompt": prompt}))
    assert [prompt for prompt, _ in engine.submitted] == sent
    bodies = body if len(sent) > 1 else [body]
    assert [one["index"] for one in bodies] == [*range(len(sent))]
    assert {one["content"] for one in bodies} == {"x"}


async def test_the_events_of_several_prompts(make_app: MakeApp) -> None:
    app, engine = await make_app(lambda prompt, _: say(prompt * 2, "\n"))
    found = await events(await post(app, "/completion", {"prompt": ["a", "b"], "stream": True}))
    for index, text in enumerate(("aa", "bb")):
        mine = [event for event in found if event["index"] == index]
        assert "".join(event["content"] for event in mine) == text + "\n"
        assert [event["stop"] for event in mine].index(True) == len(mine) - 1
        assert mine[-1]["has_new_line"]
        assert (mine[-1]["tokens_predicted"], mine[-1]["prompt"]) == (4, text[0])
    assert not engine.mail.busy


@pytest.mark.parametrize("fields", [{"n_cmpl": 2}, {"n": 2}, {"n": 3, "n_cmpl": 2}])
async def test_several_answers_to_each_prompt(make_app: MakeApp, fields: Any) -> None:
    app, engine = await make_app(lambda prompt, _: say(prompt * 2, "\n", sequences=2))
    asked = {"prompt": ["a", "b"], **fields}
    bodies = await whole(await post(app, "/completion", asked))
    shown = [(one["index"], one["content"], one["prompt"], one["tokens_predicted"]) for one in bodies]
    assert shown == [(0, "aa\n", "a", 4), (1, "aa\n", "a", 4), (2, "bb\n", "b", 4), (3, "bb\n", "b", 4)]
    assert {sampling.n for _, sampling in engine.submitted} == {2}
    found = await events(await post(app, "/completion", asked | {"stream": True}))
    for index, _, prompt, predicted in shown:
        last = next(event for event in found if event["index"] == index and event["stop"])
        assert (last["prompt"], last["tokens_predicted"], last["has_new_line"]) == (prompt, predicted, True)


@pytest.mark.parametrize("plain", [False, True])
async def test_probabilities(make_app: MakeApp, plain: bool) -> None:
    fields = {"prompt": "a", "n_probs": 2, "post_sampling_probs": plain}
    name, others = ("prob", "top_probs") if plain else ("logprob", "top_logprobs")
    app, _ = await make_app(lambda *_: say("H", "é", reason="length"), capable=True)
    response = await post(app, "/completion", fields)
    assert any("before sampling" in text for text in warnings_of(response)) is plain
    in_one = (await whole(response))["completion_probabilities"]
    assert [token["id"] for token in in_one] == encode("Hé")
    assert [token["bytes"] for token in in_one] == [[72], [0xC3], [0xA9]]
    likeliest = [other[name] for other in in_one[0][others]]
    assert likeliest == pytest.approx([math.exp(-0.25), math.exp(-0.5)] if plain else [-0.25, -0.5])
    assert set(in_one[0]) == {"id", "token", "bytes", name, others}
    streamed = await events(await post(app, "/completion", {**fields, "stream": True}))
    pieces = [token for event in streamed for token in event.get("completion_probabilities", [])]
    assert pieces == in_one
    assert "completion_probabilities" not in streamed[-1]


@pytest.mark.parametrize(
    ("vocabulary", "extra", "sent"),
    [
        (CODER, [], "<|fim_prefix|>a = f(<|fim_suffix|>\nb<|fim_middle|>"),
        (CODER, [{"text": "x"}], "x\n\n<|fim_prefix|>a = f(<|fim_suffix|>\nb<|fim_middle|>"),
        (CODER | FILES, [], "<|fim_prefix|>a = f(<|fim_suffix|>\nb<|fim_middle|>"),
        (
            CODER | FILES,
            [{"filename": "f.py", "text": "x"}],
            "<|repo_name|>project\n<|file_sep|>f.py\nx<|file_sep|>filename\n"
            "<|fim_prefix|>a = f(<|fim_suffix|>\nb<|fim_middle|>",
        ),
        (
            {"<｜fim▁begin｜>": 1, "<｜fim▁hole｜>": 2, "<｜fim▁end｜>": 3},
            [],
            "<｜fim▁begin｜>a = f(<｜fim▁hole｜>\nb<｜fim▁end｜>",
        ),
    ],
)
async def test_the_prompt_of_a_middle(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, vocabulary: Any, extra: Any, sent: str
) -> None:
    app, engine = await make_app(lambda *_: say("1)"))
    teach(engine, vocabulary, monkeypatch)
    body = await whole(await post(app, "/infill", {**PLACE, "prompt": "f(", "input_extra": extra}))
    assert body["content"] == "1)"
    [(prompt, sampling)] = engine.submitted
    assert prompt == sent
    assert set(sampling.stop_token_ids) == {i for word, i in vocabulary.items() if i >= 4}


BEFORE, BEHIND, GAP = "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"


@pytest.mark.parametrize(
    ("path", "body", "sent"),
    [
        ("/infill", {"input_prefix": "a<|endoftext|>", "input_suffix": "b"}, [f"{BEFORE}a<|endoftext|>{BEHIND}b{GAP}"]),
        ("/infill", {"input_prefix": "z", "input_suffix": f"{GAP}b{GAP}"}, [f"{BEFORE}z{BEHIND}{GAP}b{GAP}{GAP}"]),
        (
            "/infill",
            {**PLACE, "input_extra": [{"text": BEFORE * 3}]},
            [f"{BEFORE * 3}\n\n{BEFORE}a = {BEHIND}\nb{GAP}"],
        ),
        (
            "/v1/completions",
            {"prompt": ["x", "a<|endoftext|>b"], "suffix": "c"},
            [f"{BEFORE}x{BEHIND}c{GAP}", f"{BEFORE}a<|endoftext|>b{BEHIND}c{GAP}"],
        ),
        ("/api/generate", {"prompt": BEHIND, "suffix": "c", "stream": False}, [f"{BEFORE}{BEHIND}{BEHIND}c{GAP}"]),
    ],
)
async def test_names_of_special_tokens_in_code_are_text(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], sent: list[str]
) -> None:
    """The tokenizer gets them in two pieces, and the names of the tokens around the code whole."""
    app, engine = await make_app(lambda *_: say("x"))
    teach(engine, CODER, monkeypatch)
    texts, taught = list[str](), engine.encode

    async def recorded(some: list[str], add_special_tokens: bool, client: str = "") -> list[list[int]]:
        texts.extend(some)
        return await taught(some, add_special_tokens, client)

    assert (await post(app, "/v1/completions", {"prompt": "f", "suffix": "c"})).status == 200  # the words are known
    monkeypatch.setattr(engine, "encode", recorded)
    engine.submitted.clear()
    assert (await post(app, path, {"model": "m", **body})).status == 200
    assert [(prompt[0], bytes(prompt[1:]).decode()) for prompt, _ in engine.submitted] == [(EOS, text) for text in sent]
    whole_names = [word for text in texts for word in CODER if word in text]
    assert sorted(whole_names) == sorted([BEFORE] * len(sent) + [BEHIND, GAP])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/infill", {"input_prefix": "", "input_suffix": "b"}),
        ("/infill", {**PLACE, "input_extra": [{"text": ""}]}),
        ("/v1/completions", {"prompt": ["x", ""], "suffix": "c"}),
        ("/api/generate", {"prompt": "", "suffix": "c", "stream": False}),
    ],
)
async def test_special_tokens_are_looked_for_in_long_code_in_a_thread(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    """A million characters would stop the event loop for up to a second."""
    app, engine = await make_app(lambda *_: say("x"))
    teach(engine, CODER, monkeypatch)
    threads, cut = set[threading.Thread](), fim.TextCutter.cut

    def recorded(cutter: Any, text: str, most: int) -> list[str]:
        threads.add(threading.current_thread())
        return cut(cutter, text, most)

    monkeypatch.setattr(fim.TextCutter, "cut", recorded)
    for code, inline in (("c", True), ("c" * fim.INLINE_CUT, False)):
        longer = json.loads(json.dumps(body).replace('""', json.dumps(code)))
        await post(app, path, {"model": "m", **longer})
        assert len(threads) == 1
        assert (threads.pop() is threading.main_thread()) is inline


async def refused(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, vocabulary: Any, **fields: Any) -> Any:
    app, engine = await make_app(say("x"))
    teach(engine, vocabulary, monkeypatch)
    response: Response = await post(app, "/infill", fields)
    return {"status": response.status, **(await whole(response))["error"]}


@pytest.mark.parametrize("vocabulary", [{}, {**CODER, "<|fim_middle|>": 2}, dict.fromkeys(CODER, 0)])
async def test_a_model_without_the_tokens_for_it(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, vocabulary: dict[str, int]
) -> None:
    error = await refused(make_app, monkeypatch, vocabulary, **PLACE)
    assert (error["status"], error["param"], error["code"]) == (404, "model", "not_supported")


WRONG_PLACES: list[tuple[Any, str]] = [
    ({"input_prefix": "a"}, "input_suffix"),
    ({"input_suffix": "a"}, "input_prefix"),
    ({**PLACE, "prompt": [1]}, "prompt"),
    ({**PLACE, "input_extra": ["x"]}, "input_extra[0]"),
    ({**PLACE, "input_extra": [{"filename": "a"}]}, "input_extra[0]"),
    ({**PLACE, "input_extra": [{"text": ""}, {"filename": 1, "text": ""}]}, "input_extra[1]"),
    ({**PLACE, "input_extra": [{"text": ""}] * 257}, "input_extra"),
]


async def test_a_wrong_place(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    for fields, param in WRONG_PLACES:
        error = await refused(make_app, monkeypatch, CODER, **fields)
        assert (error["status"], error["param"]) == (400, param)


async def test_a_field_that_is_not_supported_is_named(make_app: MakeApp) -> None:
    app, _ = await make_app(lambda *_: say("x"), capable=True)
    response = await post(app, "/completion", {"prompt": "a", "verbose": True, "dry_multiplier": 0.8})
    found = warnings_of(response)
    assert found == ["verbose is not supported and was ignored"]
