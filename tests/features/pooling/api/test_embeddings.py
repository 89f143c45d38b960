"""/embeddings: forms of input, forms of vectors, and all errors."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import orjson
import pytest

from tests.api.conftest import MakePooling, ask, post, refused, warnings_of, whole
from tests.features.pooling.fakes import BOS, EOS

PATH = "/v1/embeddings"


def length(vector: list[float]) -> float:
    return math.sqrt(sum(value * value for value in vector))


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v3/embeddings", "/v3/v1/embeddings"])
async def test_a_list_of_vectors_in_the_order_of_the_inputs(make_pooling: MakePooling, path: str) -> None:
    app, _ = await make_pooling()
    body = await ask(app, path, input=["one", "two", "one"])
    assert {key: body[key] for key in ("object", "model")} == {"object": "list", "model": "e"}
    assert body["id"].startswith("embd-")
    assert body["created"] > 1_700_000_000
    assert [item["index"] for item in body["data"]] == [0, 1, 2]
    assert {item["object"] for item in body["data"]} == {"embedding"}
    one, two, again = (item["embedding"] for item in body["data"])
    assert one == again != two
    assert length(one) == pytest.approx(1)
    assert body["usage"] == {
        "prompt_tokens": 15, "total_tokens": 15, "completion_tokens": 0, "prompt_tokens_details": None
    }  # fmt: skip


async def test_every_form_of_input(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling()
    forms: list[tuple[Any, list[Any]]] = [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([97, 98], [[97, 98]]),
        ([[97], [98, 99]], [[97], [98, 99]]),
        ("", [""]),
        ("a\0b", ["a\0b"]),
        ({"content": "a"}, ["a"]),
        ({"prompt_string": "a"}, ["a"]),
        (["a", {"prompt_string": "b"}, {"content": "c"}], ["a", "b", "c"]),
        (["a", {"content": [{"type": "text", "text": "b "}, {"type": "text", "text": "c"}]}], ["a", "b c"]),
        ([{"text": "a"}, "b"], ["a", "b"]),
    ]
    for given, inputs in forms:
        body = await ask(app, PATH, input=given)
        assert engine.asked[-1][0] == inputs
        assert len(body["data"]) == len(inputs)
    assert (await ask(app, PATH, input=[BOS, 97, EOS]))["data"] == (await ask(app, PATH, input="a"))["data"]
    assert (await ask(app, PATH, input="a", add_special_tokens=False))["usage"]["prompt_tokens"] == 1


WRONG_INPUTS: list[tuple[Any, ...]] = [
    (None, "input field is required"),
    (5, "input should be string, array of strings or array of integers"),
    (True, "input should be string, array of strings or array of integers"),
    ({"a": 1}, "input should be string, array of strings or array of integers"),
    ([], "input array should not be empty"),
    (["a", 1], "input must be homogeneous"),
    ([1, [1]], "input must be homogeneous"),
    ([[1, "a"]], "input must be homogeneous"),
    ([[1, True], [2]], "input must be homogeneous"),
    ([[62, 71, True, 5, "abc", 1], [1, 2]], "input must be homogeneous"),
    ([[62, 71], ["string"], [1, 2]], "input must be homogeneous"),
    ([["string"], [1]], "input must be homogeneous"),
    ([[]], "inner arrays in input should not be empty"),
    ([[1], []], "inner arrays in input should not be empty"),
    ([True], "every element in input array should be either string or int"),
    ([1.5], "every element in input array should be either string or int"),
    ([[True]], "every element in input array should be either string or int"),
    ([2**31], "every element in input array should be either string or int"),
    ([[1], [-(2**31) - 1]], "every element in input array should be either string or int"),
    ([None], "every element in input array should be either string or int"),
    ([["a"]], "input must be either array of strings or array of array of integers"),
    ({"content": []}, "input is neither a string nor an object with content"),
    (
        ["a", {"content": [{"type": "image_url"}]}],
        "input[1].content[0] is not a part of type text: images and audio are read from messages",
    ),
    ([[1], {"content": "a"}], "input must be homogeneous"),
    (["a", {"image": "data:"}], "this model reads text only"),
    ([{"text": 5}], "Every message must have 'role' field"),
    ([{"role": "user", "content": "a"}, {"content": "b"}], "Every message must have 'role' field"),
    ({"prompt_string": "a", "multimodal_data": []}, "input should be string, array of strings or array of integers"),
    ({"prompt_string": 5}, "input should be string, array of strings or array of integers"),
]


async def test_wrong_input_has_the_text_of_ovms(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling()
    for given, message in WRONG_INPUTS:
        found, param = await refused(app, PATH, input=given)
        assert found == message, given
        assert param is not None, given
        assert param.startswith("input"), given
    assert engine.asked == []
    message = "Token id 1000000 is out of vocabulary: ids are from 0 to 265"
    assert await refused(app, PATH, input=[[1], [10**6]]) == (message, "input[1]")
    assert await refused(app, PATH, input=[10**6]) == (message, "input")
    assert await refused(app, PATH, input=["a", ""], add_special_tokens=False) == (
        "The input has no tokens", "input[1]"
    )  # fmt: skip


async def test_vectors_as_base64_and_bytes(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling()
    floats = [item["embedding"] for item in (await ask(app, PATH, input=["a", "b"]))["data"]]
    coded = [item["embedding"] for item in (await ask(app, PATH, input=["a", "b"], encoding_format="base64"))["data"]]
    assert [np.frombuffer(base64.b64decode(text), "<f4").tolist() for text in coded] == [
        np.array(vector, np.float32).tolist() for vector in floats
    ]
    response = await post(app, PATH, {"model": "e", "input": ["a", "b"], "encoding_format": "bytes"})
    headers = dict(response.headers)
    assert headers["Content-Type"] == "application/octet-stream"
    about = orjson.loads(headers["metadata"])
    assert about["model"] == "e"
    assert about["usage"] == {"prompt_tokens": 6, "total_tokens": 6, "completion_tokens": 0,
                              "prompt_tokens_details": None}  # fmt: skip
    assert about["data"][1] == {
        "index": 1, "embed_dtype": "float32", "endianness": "native", "start": 64, "end": 128, "shape": [16]
    }  # fmt: skip
    assert response.body == b"".join(base64.b64decode(text) for text in coded)
    only = await post(app, PATH, {"model": "e", "input": ["a", "b"], "encoding_format": "bytes_only"})
    assert only.body == response.body
    assert "metadata" not in dict(only.headers)
    message, param = await refused(app, PATH, input=["a"] * 1000, encoding_format="bytes")
    assert "bytes_only" in message  # the header would be too long
    assert param == "encoding_format"
    for name, kind in (("float16", ">f2"), ("float32", ">f4")):
        form = {"encoding_format": "base64", "embed_dtype": name, "endianness": "big"}
        coded = base64.b64decode((await ask(app, PATH, input="a", **form))["data"][0]["embedding"])
        assert np.frombuffer(coded, kind) == pytest.approx(floats[0], abs=1e-3)
    # Not allowed with lists of numbers.
    assert (await refused(app, PATH, input="a", embed_dtype="float16"))[1] == "embed_dtype"


async def test_dimensions_are_cut_before_normalizing(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling(matryoshka=True)
    whole_vector = (await ask(app, PATH, input="ab"))["data"][0]["embedding"]
    short = (await ask(app, PATH, input="ab", dimensions=4))["data"][0]["embedding"]
    assert length(short) == pytest.approx(1)
    assert short == pytest.approx([value / length(whole_vector[:4]) for value in whole_vector[:4]], rel=1e-5)
    text = await refused(app, PATH, input="a", dimensions=17)
    assert text == ("Model 'e' only supports dimensions in range [1, 16], got 17.", "dimensions")
    assert (await refused(app, PATH, input="a", dimensions=0))[1] == "dimensions"


async def test_dimensions_of_a_model_that_cannot(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling()
    assert len((await ask(app, PATH, input="a", dimensions=16))["data"][0]["embedding"]) == 16
    assert await refused(app, PATH, input="a", dimensions=8) == (
        "Model 'e' does not support Matryoshka embeddings; dimensions must be unset (received dimensions=8).",
        "dimensions",
    )
    engine.describe(matryoshka=True, matryoshka_dimensions=[4, 8])
    assert (await ask(app, PATH, input="a", dimensions=8))["data"]
    message, _ = await refused(app, PATH, input="a", dimensions=5)
    assert message == "Model 'e' only supports Matryoshka dimensions [4, 8], got 5."


async def test_normalization_is_the_clients_choice_under_two_names(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling()
    for name in ("use_activation", "normalize"):
        raw = (await ask(app, PATH, input="ab", **{name: False}))["data"][0]["embedding"]
        assert length(raw) != pytest.approx(1)
        assert length((await ask(app, PATH, input="ab", **{name: True}))["data"][0]["embedding"]) == pytest.approx(1)
    await ask(app, PATH, input="ab", use_activation=None)
    assert engine.asked[-1][1].normalize is None
    assert (await refused(app, PATH, input="a", use_activation=True, normalize=False))[1] == "normalize"


async def test_inputs_longer_than_the_window(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling(max_model_len=8)
    message, param = await refused(app, PATH, input=["a", "123456789"])
    assert "Input length 11 longer than allowed 8" in message
    assert "maximum context length is 8 tokens" in message
    assert param == "input[1]"
    assert (await refused(app, PATH, input=["a", "x" * 10**6]))[1] == "input[1]"
    messages = [[{"role": "user", "content": "a"}], [{"role": "user", "content": "x" * 40}]]
    assert (await refused(app, PATH, messages=messages))[1] == "messages[1]"
    assert (await refused(app, PATH, messages=messages[1]))[1] == "messages"
    for truncate in (-1, 8):
        body = await ask(app, PATH, input="123456789", truncate_prompt_tokens=truncate)
        assert body["usage"]["prompt_tokens"] == 8
    cut = await ask(app, PATH, input="123456789", truncate_prompt_tokens=5)
    assert cut["data"] == (await ask(app, PATH, input="123"))["data"]
    left = await ask(app, PATH, input="123456789", truncate_prompt_tokens=5, truncation_side="left")
    assert left["data"] == (await ask(app, PATH, input="789"))["data"]
    assert await refused(app, PATH, input="a", truncate_prompt_tokens=9) == (
        "truncate_prompt_tokens value is greater than max_model_len. Please request a smaller truncation size.",
        "truncate_prompt_tokens",
    )
    for wrong in (0, -2):
        assert (await refused(app, PATH, input="a", truncate_prompt_tokens=wrong))[1] == "truncate_prompt_tokens"
    assert (await refused(app, PATH, input="a", truncation_side="middle"))[1] == "truncation_side"
    app, _ = await make_pooling(max_model_len=8, truncate=True)
    assert (await ask(app, PATH, input="123456789"))["usage"]["prompt_tokens"] == 8


async def test_a_long_input_in_pieces(make_pooling: MakePooling) -> None:
    """The vector is the mean of the pieces' vectors, weighted by tokens, and normalized again."""
    app, engine = await make_pooling(max_model_len=8, embed_long_inputs="mean")
    body = await ask(app, PATH, input=["ab", "123456789", "\u00e9\u00e9"])
    assert engine.asked[-1][0] == ["ab", [BOS, *b"123456", EOS], [BOS, *b"789", EOS], "\u00e9\u00e9"]
    assert body["usage"]["prompt_tokens"] == 4 + 13 + 6
    pieces = [np.array(item["embedding"]) for item in (await ask(app, PATH, input=["123456", "789"]))["data"]]
    mean = 8 * pieces[0] + 5 * pieces[1]
    assert body["data"][1]["embedding"] == pytest.approx((mean / np.linalg.norm(mean)).tolist(), abs=1e-6)
    assert body["data"][0] == (await ask(app, PATH, input="ab"))["data"][0]
    await ask(app, PATH, input=list(b"123456789"))
    assert engine.asked[-1][0] == [list(b"12345678"), list(b"9")]
    assert (await ask(app, PATH, input="123456789", truncate_prompt_tokens=-1))["usage"]["prompt_tokens"] == 8
    raw = (await ask(app, PATH, input="123456789", use_activation=False))["data"][0]["embedding"]
    assert length(raw) != pytest.approx(1)


async def test_messages_by_the_chat_template(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling()
    hello = [{"role": "user", "content": "hi"}]
    for fields in ({"messages": hello}, {"input": hello}, {"messages": [hello]}, {"input": [hello]}):
        await ask(app, PATH, **fields)
        assert engine.asked[-1][0] == ["<|user|>hi<|end|>"]
        assert not engine.asked[-1][1].add_special_tokens
        await ask(app, "/pooling", **fields)
        assert not engine.asked[-1][1].add_special_tokens
    await ask(app, PATH, messages=[hello, hello], add_generation_prompt=True, add_special_tokens=True)
    assert engine.asked[-1][0] == ["<|user|>hi<|end|><|assistant|>"] * 2
    assert engine.asked[-1][1].add_special_tokens
    message, param = await refused(app, PATH, messages=hello, add_generation_prompt=True, continue_final_message=True)
    assert message == "continue_final_message and add_generation_prompt cannot both be true"
    assert param == "continue_final_message"
    assert (await refused(app, PATH, messages=hello, input="a"))[1] == "messages"
    assert (await refused(app, PATH, messages=[]))[1] == "messages"
    assert (await refused(app, PATH, messages=[{"content": "a"}]))[1] == "messages[0].role"
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    assert "text only" in (await refused(app, PATH, messages=[{"role": "user", "content": [image]}]))[0]
    assert (await refused(app, PATH, messages=hello, chat_template="x"))[1] == "chat_template"


async def test_the_engine_leaves_a_prompt_out_of_the_vector_if_the_model_does(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling()
    engine.describe(pools_prompts=False)
    for path, field in (("/v1/embeddings", "input"), ("/pooling", "input"), ("/embed", "inputs")):
        await ask(app, path, **{field: "a"}, prompt_name="query")
        assert (engine.asked[-1][0], engine.asked[-1][1].unpooled) == (["query: a"], "query: ")
        await ask(app, path, **{field: "a"}, prompt_name="document")
        assert engine.asked[-1][1].unpooled == ""
    message, param = await refused(app, PATH, input="a", prompt_name="query", truncation_side="left")
    assert message.startswith("this model leaves the prompt's tokens out of its vectors")
    assert param == "truncation_side"
    engine.describe(pools_prompts=True)
    await ask(app, PATH, input="a", prompt_name="query")
    assert engine.asked[-1][1].unpooled == ""


async def test_the_models_prompts_by_name(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling()
    for name in ("prompt_name", "input_type"):
        await ask(app, PATH, input=["a", "b"], **{name: "query"})
        assert engine.asked[-1][0] == ["query: a", "query: b"]
        assert await refused(app, PATH, input="a", **{name: "poem"}) == (
            f"Unsupported {name} 'poem'. Supported values: query, document", name
        )  # fmt: skip
    await ask(app, PATH, input="a")
    assert engine.asked[-1][0] == ["a"]
    assert (await refused(app, PATH, input=[1], prompt_name="query"))[1] == "input"
    engine.describe(prompts={"retrieval.query": "find: ", "document": "text: "})
    await ask(app, PATH, input="a", task="retrieval.query")
    assert engine.asked[-1][0] == ["find: a"]
    await ask(app, PATH, input="a", task="retrieval.query", prompt_name="document")
    assert engine.asked[-1][0] == ["text: a"]
    assert await refused(app, PATH, input="a", task="poem") == (
        "Unsupported task 'poem'. Supported values: retrieval.query, document", "task"
    )  # fmt: skip
    engine.describe(prompts={})
    await ask(app, PATH, input="a", task="retrieval.query")
    assert engine.asked[-1][0] == ["a"]
    assert "does not define any" in (await refused(app, PATH, input="a", prompt_name="query"))[0]


async def test_limits_of_one_request(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling(max_pooling_inputs=3, max_pooling_tokens=20)
    message, param = await refused(app, PATH, input=["a"] * 4)
    assert message == "input has 4 elements; the maximum allowed count is 3"
    assert param == "input"
    assert (await refused(app, PATH, input=[[1]] * 4))[1] == "input"
    assert (await refused(app, PATH, messages=[[{"role": "user", "content": "a"}]] * 4))[1] == "messages"
    assert engine.asked == []
    message, param = await refused(app, PATH, input=["abcdefgh"] * 3)
    assert "30 tokens, more than this server's limit of 20" in message
    assert param == "input"
    assert (await ask(app, PATH, input=[97] * 20))["usage"]["prompt_tokens"] == 20  # a list of token ids is one input


async def test_fields_without_an_effect(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling()
    harmless = {"user": "u", "cache_salt": "s", "priority": -5, "request_id": "r", "encoding_format": None}
    response = await post(app, PATH, {"model": "e", "input": "a", **harmless})
    assert (await whole(response))["id"] == "embd-r"
    assert "Warning" not in dict(response.headers)
    assert engine.asked[-1][1].priority == -5
    assert (await refused(app, PATH, input="a", request_id="a\nb"))[1] == "request_id"
    response = await post(app, PATH, {"model": "e", "input": "a", "padding": "max_length", "dimension": 4})
    warnings = warnings_of(response)
    assert "padding" in warnings[0]
    assert "did you mean dimensions?" in warnings[1]


async def test_large_results_are_written_beside_the_loop(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling(max_pooling_inputs=4000)
    texts = [str(number) for number in range(2100)]
    body = await ask(app, PATH, input=texts)
    assert len(body["data"]) == 2100
    last = (await ask(app, PATH, input="2099"))["data"][0]["embedding"]
    assert body["data"][2099]["embedding"] == last


async def test_whole_numbers_and_bits(make_pooling: MakePooling) -> None:
    """Voyage's, Mistral's and Jina's fields give what Cohere's embedding_types gives, in lists, base64 and bytes."""
    app, _ = await make_pooling()
    types = {"int8": "i1", "uint8": "u1", "binary": "i1", "ubinary": "u1"}
    by_type = (await ask(app, "/v2/embed", texts=["ab"], embedding_types=[*types, "float"]))["embeddings"]
    for name, kind in types.items():
        for field in ("output_dtype", "embedding_type"):
            [item] = (await ask(app, PATH, input="ab", **{field: name}))["data"]
            assert item["embedding"] == by_type[name][0]
        [item] = (await ask(app, PATH, input="ab", output_dtype=name, encoding_format="base64"))["data"]
        data = base64.b64decode(item["embedding"])
        assert np.frombuffer(data, kind).tolist() == by_type[name][0]
        response = await post(
            app, PATH, {"model": "e", "input": "ab", "output_dtype": name, "encoding_format": "bytes"}
        )
        assert response.body == data
        [about] = orjson.loads(dict(response.headers)["metadata"])["data"]
        assert about["shape"] == [len(data)]
    for plain in ({"output_dtype": "float"}, {"embedding_type": ["float"]}):
        assert (await ask(app, PATH, input="ab", **plain))["data"][0]["embedding"] == by_type["float"][0]
    [item] = (await ask(app, PATH, input="ab", embedding_type="base64", output_dtype="float"))["data"]
    assert np.frombuffer(base64.b64decode(item["embedding"]), "<f4") == pytest.approx(by_type["float"][0])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"output_dtype": "int4"}, "output_dtype"),
        ({"embedding_type": "int4"}, "embedding_type"),
        ({"embedding_type": ["float", "binary"]}, "embedding_type"),
        ({"embedding_type": [["float"]]}, "embedding_type"),
        ({"output_dtype": "int8", "embedding_type": "binary"}, "embedding_type"),
        ({"output_dtype": "int8", "embed_dtype": "float16", "encoding_format": "base64"}, "embed_dtype"),
        ({"output_dtype": "binary", "dimensions": 4}, "output_dtype"),
        ({"embedding_type": "ubinary", "output_dimension": 4}, "embedding_type"),
        ({"dimensions": 8, "output_dimension": 4}, "output_dimension"),
        ({"output_dimension": 99}, "output_dimension"),
        ({"use_activation": True, "normalized": False}, "normalized"),
        ({"truncate": "LEFT"}, "truncate"),
        ({"truncate": 5}, "truncate"),
        ({"truncate": ["END"]}, "truncate"),
        ({"truncation": "yes"}, "truncation"),
    ],
)
async def test_fields_of_other_servers_that_are_wrong(
    make_pooling: MakePooling, fields: dict[str, Any], param: str
) -> None:
    app, engine = await make_pooling()
    engine.describe(matryoshka=True)
    assert (await refused(app, PATH, input="ab", **fields))[1] == param
    assert engine.asked == []


async def test_fields_of_other_servers_have_the_effect_of_vllms(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling(max_model_len=8)
    engine.describe(matryoshka=True)
    long = "123456789"
    right, left = [
        (await ask(app, PATH, input=long, truncate_prompt_tokens=-1, truncation_side=side))["data"]
        for side in ("right", "left")
    ]
    assert right != left
    for fields, wanted in (
        ({"truncate": True}, right),
        ({"truncation": True}, right),
        ({"truncate": "END"}, right),
        ({"truncate": "START"}, left),
        ({"truncate": True, "truncation_side": "left"}, left),
    ):
        assert (await ask(app, PATH, input=long, **fields))["data"] == wanted
    assert (await ask(app, PATH, input=long, truncate="END", truncate_prompt_tokens=5))["usage"]["prompt_tokens"] == 5
    for fields in ({"truncate": False}, {"truncate": "NONE"}, {"truncation": False}, {"truncate": None}):
        assert "longer than allowed 8" in (await refused(app, PATH, input=long, **fields))[0]
    four = (await ask(app, PATH, input="a", dimensions=4))["data"]
    assert (await ask(app, PATH, input="a", output_dimension=4))["data"] == four
    assert (await ask(app, PATH, input="a", output_dimension=4, dimensions=4))["data"] == four
    raw = (await ask(app, PATH, input="a", normalize=False))["data"]
    assert (await ask(app, PATH, input="a", normalized=False))["data"] == raw
