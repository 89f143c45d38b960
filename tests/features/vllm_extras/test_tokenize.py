"""tokenize and detokenize: OVMS's body, vLLM's body, and the way back."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from typing import Any

from lean_ovms.config import Config
from lean_ovms.features.vllm_extras.api import tokenize
from lean_ovms.features.vllm_extras.api.tokenize import SOURCES
from lean_ovms.models import text_model
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


PLAIN = {"add_special_tokens": False}
PAD: dict[str, Any] = {"text": "a", "max_length": 3, "pad_to_max_length": True, **PLAIN}
OF_X = {"count": 7, "max_model_len": 1000, "tokens": [*b"user:x;"], "token_strs": None}
PIECES = [{"id": 97, "piece": "a"}, {"id": 0xC3, "piece": [0xC3]}, {"id": 0xA9, "piece": [0xA9]}]
ANSWERS: list[tuple[str, dict[str, Any], Any]] = [
    (PATH, {"text": "ab"}, {"tokens": [EOS, 97, 98]}),
    (PATH, {"text": ["ab"]}, {"tokens": [EOS, 97, 98]}),
    (PATH, {"text": ["a", "b"], **PLAIN}, {"tokens": [[97], [98]]}),
    (PATH, {"text": "abc", "max_length": 2, **PLAIN}, {"tokens": [97, 98]}),
    (PATH, PAD, {"tokens": [97, 0, 0]}),
    (PATH, {**PAD, "padding_side": "left"}, {"tokens": [0, 0, 97]}),
    ("/tokenize", {"prompt": "ab", "return_token_strs": True},
     {"count": 3, "max_model_len": 1000, "tokens": [EOS, 97, 98], "token_strs": ["<eos>", "a", "b"]}),
    ("/v1/tokenize", {"messages": [{"role": "user", "content": "x"}]}, OF_X),
    ("/detokenize", {"tokens": [97, 98]}, {"prompt": "ab", "content": "ab"}),
    ("/v1/detokenize", {"tokens": []}, {"prompt": "", "content": ""}),
    ("/v1/detokenize", {"tokens": [97, EOS]}, {"prompt": "a<eos>", "content": "a<eos>"}),
    ("/tokenize", {"content": "ab"}, {"tokens": [97, 98]}),  # llama.cpp's body
    ("/tokenize", {"content": "ab", "add_special": True}, {"tokens": [EOS, 97, 98]}),
    ("/tokenize", {"content": ["a", 7, "b"], "add_special": True}, {"tokens": [EOS, 97, 7, 98]}),
    ("/tokenize", {"content": [7, "b"], "add_special": True}, {"tokens": [7, 98]}),
    ("/tokenize", {"content": ""}, {"tokens": []}),
    ("/tokenize", {"content": "aé", "with_pieces": True}, {"tokens": PIECES}),
]  # fmt: skip


async def test_each_body_has_the_answer_of_its_server(make_app: MakeApp) -> None:
    app, _ = await make_app()
    for path, fields, answer in ANSWERS:
        assert await whole(await post(app, path, {"model": "m", **fields})) == answer


REFUSED: list[tuple[dict[str, Any], str]] = [
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
]


async def test_messages_are_those_of_the_contract(make_app: MakeApp) -> None:
    app, _ = await make_app()

    async def error(path: str, **fields: Any) -> Any:
        return (await whole(await post(app, path, {"model": "m", **fields})))["error"]

    for fields, message in REFUSED:
        assert (await error(PATH, **fields))["message"] == message
    values: dict[str, Any] = dict.fromkeys(SOURCES, "a") | {"messages": [{"role": "user", "content": "x"}]}
    for one, two in itertools.combinations(SOURCES, 2):
        found = await error("/tokenize", **{name: values[name] for name in (one, two)})
        assert (found["message"], found["param"]) == (f"{one} and {two} cannot be used together", two)
    for content in (5, [1, {}], {"a": "b"}, [-1], False, 0, {}):
        assert (await error("/tokenize", content=content))["param"] == "content"
    assert (await error("/v3/detokenize", tokens=[97, "b"]))["param"] == "tokens"


async def test_special_tokens_are_text_without_parse_special(make_app: MakeApp, monkeypatch: Any) -> None:
    app, engine = await make_app()
    texts, encode = list[str](), engine.encode

    async def recorded(some: list[str], add_special_tokens: bool, client: str = "") -> list[list[int]]:
        texts.extend(some)
        return await encode(some, add_special_tokens, client)

    monkeypatch.setattr(engine, "encode", recorded)
    for content, given in (("a<eos>b<eos>", ["a<", "eos>b<", "eos>"]), (["<eos", 7, "<eos>"], ["<eos", "<", "eos>"])):
        response = await post(app, PATH, {"content": content, "parse_special": False})
        tokens = (await whole(response))["tokens"]
        assert bytes(token for token in tokens if token != 7).decode() == "".join(given)
        assert texts == given
        texts.clear()


async def test_special_tokens_are_looked_for_in_long_texts_in_a_thread(make_app: MakeApp, monkeypatch: Any) -> None:
    app, _ = await make_app()
    threads, cut = list[threading.Thread](), tokenize.TextCutter.cut

    def recorded(cutter: Any, text: str, most: int) -> list[str]:
        threads.append(threading.current_thread())
        return cut(cutter, text, most)

    monkeypatch.setattr(tokenize.TextCutter, "cut", recorded)
    for content in ("a", ["a" * tokenize.INLINE_CUT, 7]):
        assert (await post(app, PATH, {"content": content, "parse_special": False})).status == 200
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


async def test_a_text_that_is_too_long_names_the_field_of_its_body(make_app: MakeApp, monkeypatch: Any) -> None:
    monkeypatch.setattr(text_model, "MIN_ENCODE_LIMIT", 10)
    app, _ = await make_app()
    long = "a" * 4001  # the context has 1,000 tokens
    bodies = {"text": [long], "prompt": long, "content": [long], "inputs": long}
    bodies["messages"] = [{"role": "user", "content": long}]
    assert set(bodies) == set(SOURCES)
    for name, value in bodies.items():
        response = await post(app, PATH, {"model": "m", name: value})
        error = (await whole(response))["error"]
        assert (response.status, error["param"], error["code"]) == (400, name, "context_length_exceeded")
        assert "4000 characters" in error["message"] or name == "messages"


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


async def test_texts_are_made_with_an_exact_vocabulary_without_the_engine(make_app: MakeApp, monkeypatch: Any) -> None:
    """The engine would answer only after the running step. Ids that the vocabulary lacks are its to judge."""
    app, engine = await make_app()
    asked: list[list[int]] = []
    decode = engine.decode

    async def noted(tokens: list[int], skip_special_tokens: bool) -> str:
        asked.append(tokens)
        return str(await decode(tokens, skip_special_tokens))

    monkeypatch.setattr(engine, "decode", noted)

    async def text_of(*tokens: int) -> Any:
        return (await whole(await post(app, "/detokenize", {"model": "m", "tokens": [*tokens]})))["prompt"]

    assert await text_of(*"caf\u00e9".encode(), EOS) == "caf\u00e9<eos>"
    assert await text_of(*"caf\u00e9".encode()[:-1]) == "caf\ufffd"
    assert asked == []
    vocabulary = engine.vocabulary
    engine.vocabulary = replace(vocabulary, exact=False)
    assert await text_of(97) == "a"
    engine.vocabulary = vocabulary
    response = await post(app, "/detokenize", {"model": "m", "tokens": [97, 10**6]})
    assert response.status in (200, 400)
    assert asked == [[97], [97, 10**6]]
