"""tokenize and detokenize: OVMS's body, vLLM's body, and the way back."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

from lean_ovms.config import Config
from lean_ovms.features.vllm_extras.api.tokenize import SOURCES
from lean_ovms.models.text_model import TextModel
from lean_ovms.types import Request
from tests.api.conftest import MakeApp, post, whole
from tests.fakes import EOS, FakeEngine

PATH = "/v3/tokenize"


async def test_a_client_can_write_prompts_itself(make_app: MakeApp) -> None:
    app, _ = await make_app(chat_template="{{ eos_token }}{{ messages[0].content }}")
    for query in ("", "model=m"):
        info = await whole(await app.handle(Request("GET", "/tokenizer_info", query)))
        assert info == {
            "eos_token": "<eos>",
            "chat_template": "{{ eos_token }}{{ messages[0].content }}",
            "model_max_length": 1000,
        }
    assert (await app.handle(Request("GET", "/tokenizer_info", "model=none"))).status == 404
    app.registry.models["m"].directory.tokenizer.update(tokenizer_class="A", add_bos_token=True)
    info = await whole(await app.handle(Request("GET", "/tokenizer_info")))
    assert (info["tokenizer_class"], info["add_bos_token"], info["model_max_length"]) == ("A", True, 1000)


async def ask(make_app: MakeApp, path: str = PATH, **fields: Any) -> Any:
    app, _ = await make_app()
    return await whole(await post(app, path, {"model": "m", **fields}))


async def test_the_only_model_need_not_be_named(make_app: MakeApp) -> None:
    app, _ = await make_app()
    bodies = [{"prompt": "a"}, {"messages": [{"role": "user", "content": "a"}]}, {"text": "a"}]
    for path, some in (("/tokenize", bodies), ("/detokenize", [{"tokens": [65]}])):
        for body in some:
            for name in ({}, {"model": None}, {"model": ""}):
                assert (await post(app, path, {**body, **name})).status == 200
    app.registry.install(TextModel(Config(fake_engine=True, model_name="other"), FakeEngine([])))  # type: ignore[arg-type]
    for body in bodies:
        error = (await whole(await post(app, "/tokenize", body)))["error"]
        assert (error["message"], error["param"]) == ("model field is missing in JSON body", "model")


async def test_one_text_is_a_flat_list_also_in_an_array(make_app: MakeApp) -> None:
    expected = {"tokens": [EOS, 97, 98]}
    assert await ask(make_app, text="ab") == expected
    assert await ask(make_app, text=["ab"]) == expected
    assert await ask(make_app, text=["a", "b"], add_special_tokens=False) == {"tokens": [[97], [98]]}


async def test_length_and_padding(make_app: MakeApp) -> None:
    plain = {"add_special_tokens": False}
    assert await ask(make_app, text="abc", max_length=2, **plain) == {"tokens": [97, 98]}
    assert await ask(make_app, text="a", max_length=3, pad_to_max_length=True, **plain) == {"tokens": [97, 0, 0]}
    assert await ask(
        make_app, text="a", max_length=3, pad_to_max_length=True, padding_side="left", **plain
    ) == {"tokens": [0, 0, 97]}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "text field is required"),
        ({"text": []}, "text array should not be empty"),
        ({"text": 5}, "text should be string, array of strings or array of integers"),
        ({"text": [1, 2]}, "Input should be string or array of strings"),
        ({"text": ["a", 1]}, "text must be homogeneous"),
        ({"text": ["a", None]}, "every element in text array should be either string or int"),
        ({"text": "a", "max_length": 0}, "max_length should be greater than 0"),
        ({"text": "a", "max_length": "5"}, "max_length should be unsigned integer"),
        ({"text": "a", "pad_to_max_length": 1}, "pad_to_max_length should be boolean"),
        ({"text": "a", "add_special_tokens": 1}, "add_special_tokens should be boolean"),
        ({"text": "a", "padding_side": "up"}, "padding_side should be either left or right"),
        ({"text": "a", "padding_side": 1}, "padding_side should be string, either left or right"),
    ],
)
async def test_messages_are_those_of_the_contract(make_app: MakeApp, fields: dict[str, Any], message: str) -> None:
    assert (await ask(make_app, **fields))["error"]["message"] == message


async def test_only_one_thing_is_tokenized(make_app: MakeApp) -> None:
    values: dict[str, Any] = dict.fromkeys(SOURCES, "a") | {"messages": [{"role": "user", "content": "x"}]}
    for one, two in itertools.combinations(SOURCES, 2):
        error = (await ask(make_app, "/tokenize", **{name: values[name] for name in (one, two)}))["error"]
        assert (error["message"], error["param"]) == (f"{one} and {two} cannot be used together", two)


async def test_vllms_body_with_a_prompt_and_with_messages(make_app: MakeApp) -> None:
    body = await ask(make_app, "/tokenize", prompt="ab", return_token_strs=True)
    assert body == {"count": 3, "max_model_len": 1000, "tokens": [EOS, 97, 98], "token_strs": ["<eos>", "a", "b"]}
    body = await ask(make_app, "/v1/tokenize", messages=[{"role": "user", "content": "x"}])
    assert bytes(body["tokens"]) == b"user:x;"
    assert body["token_strs"] is None


async def test_detokenize_is_the_way_back(make_app: MakeApp) -> None:
    assert await ask(make_app, "/detokenize", tokens=[97, 98]) == {"prompt": "ab", "content": "ab"}
    assert await ask(make_app, "/v1/detokenize", tokens=[]) == {"prompt": "", "content": ""}
    assert await ask(make_app, "/v1/detokenize", tokens=[97, EOS]) == {"prompt": "a<eos>", "content": "a<eos>"}
    error = (await ask(make_app, "/v3/detokenize", tokens=[97, "b"]))["error"]
    assert error["param"] == "tokens"


async def test_long_answers_are_written_beside_the_event_loop(make_app: MakeApp, monkeypatch: Any) -> None:
    """The content is that of short answers. A million ids took the loop 14 ms, their strings two seconds."""
    app, _ = await make_app()
    text = "caf\u00e9\n" * 3000
    body = {"model": "m", "prompt": text, "return_token_strs": True}
    threads: set[str] = set()
    strings = TextModel.token_strings

    def noted(self: TextModel, tokens: list[int]) -> list[str]:
        threads.add(threading.current_thread().name)
        return strings(self, tokens)

    monkeypatch.setattr(TextModel, "token_strings", noted)
    long = await whole(await post(app, "/tokenize", body))
    assert (long["count"], len(long["tokens"]), len(long["token_strs"])) == (18001, 18001, 18001)
    assert long["token_strs"][:5] == ["<eos>", "c", "a", "f", "\ufffd"]
    assert all(name.startswith("offload") for name in threads)
    asked = await whole(await post(app, PATH, {"model": "m", "text": [text, "a"]}))
    assert [asked["tokens"][0], asked["tokens"][1][-1:]] == [long["tokens"], [97]]
    answer = await whole(await post(app, "/detokenize", {"model": "m", "tokens": long["tokens"][1:]}))
    assert answer == {"prompt": text, "content": text}


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"content": "ab"}, [97, 98]),
        ({"content": "ab", "add_special": True}, [EOS, 97, 98]),
        ({"content": ["a", 7, "b"], "add_special": True}, [EOS, 97, 7, 98]),
        ({"content": [7, "b"], "add_special": True}, [7, 98]),
        ({"content": ""}, []),
        ({"content": "aé", "with_pieces": True}, [(97, "a"), (0xC3, [0xC3]), (0xA9, [0xA9])]),
    ],
)
async def test_llama_cpps_body(make_app: MakeApp, fields: Any, tokens: Any) -> None:
    if fields.get("with_pieces"):
        tokens = [{"id": token, "piece": piece} for token, piece in tokens]
    assert await ask(make_app, "/tokenize", **fields) == {"tokens": tokens}


async def test_llama_cpps_body_is_checked(make_app: MakeApp) -> None:
    for content in (5, [1, {}], {"a": "b"}, [-1], False, 0, {}):
        assert (await ask(make_app, "/tokenize", content=content))["error"]["param"] == "content"
