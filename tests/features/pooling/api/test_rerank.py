"""Rerank in OVMS's, vLLM's and Cohere's forms, chunks of long documents, three kinds of models."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.api.conftest import MakePooling, ask, post, refused, warnings_of

VLLM, OVMS = "/rerank", "/v3/rerank"
DOCUMENTS = ["xyz", "abc", "abx"]


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


@pytest.mark.parametrize("path", [VLLM, OVMS])
async def test_the_best_document_comes_first(make_pooling: MakePooling, path: str) -> None:
    app, _ = await make_pooling("rerank")
    body = await ask(app, path, query="abc", documents=DOCUMENTS)
    assert [result["index"] for result in body["results"]] == [1, 2, 0]
    scores = [result["relevance_score"] for result in body["results"]]
    assert scores == pytest.approx([sigmoid(6), sigmoid(2), sigmoid(-6)])
    assert body["id"].startswith("rerank-")
    assert body["model"] == "e"
    assert body["usage"] == {"prompt_tokens": 27, "total_tokens": 27}
    assert body["meta"]["billed_units"] == {"search_units": 1}
    for top_n, order in ((0, [1, 3, 0, 2]), (1, [1]), (100, [1, 3, 0, 2])):  # equal scores keep the order
        body = await ask(app, path, query="a", documents=["x", "a", "x", "a"], top_n=top_n)
        assert [result["index"] for result in body["results"]] == order
    body = await ask(app, path, query="abc", documents=["abc"], use_activation=False)
    assert body["results"][0]["relevance_score"] == pytest.approx(6)


async def test_documents_are_shown_as_the_path_has_it(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling("rerank")
    for path, default in ((VLLM, True), ("/v2/rerank", True), (OVMS, False), ("/v3/v1/rerank", False)):
        for asked, shown in ((None, default), (True, True), (False, False)):
            body = await ask(app, path, query="a", documents=["b"], return_documents=asked)
            assert ("document" in body["results"][0]) is shown
            if shown:
                assert body["results"][0]["document"] == {"text": "b"}


async def test_forms_of_documents(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling("rerank")
    parts = [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]
    given = ["a", {"text": "b"}, {"title": "T", "text": "b"}, {"content": parts}]
    await ask(app, VLLM, query={"content": [{"type": "text", "text": "q"}]}, documents=given)
    assert engine.asked[-1][0] == [("q", "a"), ("q", "b"), ("q", "T\nb"), ("q", "c\nd")]
    assert len((await ask(app, VLLM, query="q", documents="one"))["results"]) == 1
    assert len((await ask(app, OVMS, query="q", texts=["one", "two"]))["results"]) == 2


@pytest.mark.parametrize("path", [VLLM, "/v1/rerank", "/reranking", "/v1/reranking"])
async def test_text_embeddings_inferences_form(make_pooling: MakePooling, path: str) -> None:
    """Its clients send `texts`, name no model and expect a list, and so do llama.cpp's."""
    app, engine = await make_pooling("rerank")
    texts = ["no", "an abc", "x" * 600]
    body = await ask(app, path, query="abc", texts=texts, truncate=True, truncation_direction="Left")
    assert (engine.asked[-1][1].truncate, engine.asked[-1][1].truncation_side) == (-1, "left")
    ranked = (await ask(app, VLLM, query="abc", documents=texts, truncate_prompt_tokens=-1))["results"]
    assert sorted(one["index"] for one in body) == [0, 1, 2]
    assert [(one["index"], one["score"]) for one in body] == [(one["index"], one["relevance_score"]) for one in ranked]
    assert all(set(one) == {"index", "score"} for one in body)
    raw = await ask(app, path, query="abc", texts=texts[:2], raw_scores=True, return_text=True)
    assert [one["text"] for one in raw] == [texts[one["index"]] for one in raw]
    assert not engine.asked[-1][1].activation
    assert "longer than allowed" in (await refused(app, path, query="abc", texts=texts))[0]
    wrong = {"query": "abc", "texts": texts, "truncation_direction": "up"}
    assert (await refused(app, path, **wrong))[1] == "truncation_direction"


WRONG_FIELDS: list[tuple[Any, ...]] = [
    ({"documents": ["a"]}, "query field is missing in request", "query"),
    ({"query": 5, "documents": ["a"]}, "query is not a string", "query"),
    ({"query": {"content": "q"}, "documents": ["a"]}, "query is not a string", "query"),
    ({"query": "q"}, "documents field is missing in request", "documents"),
    ({"query": "q", "documents": "a"}, "documents is not an array", "documents"),
    ({"query": "q", "documents": {"text": "a"}}, "documents is not an array", "documents"),
    ({"query": "q", "documents": []}, "documents array should not be empty", "documents"),
    ({"query": "q", "documents": ["a"], "texts": ["b"]}, "documents and texts cannot be used together", "texts"),
    ({"query": "q", "documents": [5]}, "documents array element is neither string nor object", "documents"),
    ({"query": "q", "documents": ["a", {"text": "b"}]}, "all documents have to be the same type (string or objects)",
     "documents"),
    ({"query": "q", "documents": [{"title": 5}]}, "document title field have to be string", "documents[0]"),
    ({"query": "q", "documents": [{"title": "a"}]}, "document text field is missing", "documents[0]"),
    ({"query": "q", "documents": [{"text": 5}]}, "document text field have to be string", "documents[0]"),
    ({"query": "q", "documents": ["a"], "top_n": 1.5}, "top_n accepts integer values", "top_n"),
    ({"query": "q", "documents": ["a"], "rank_fields": "text"}, "rank_fields is not an array", "rank_fields"),
    ({"query": "q", "documents": ["a"], "rank_fields": [5]}, "rank_fields array element is not a string",
     "rank_fields"),
    ({"query": "q", "documents": ["a"], "return_documents": 1}, "return_documents accepts boolean values",
     "return_documents"),
    ({"query": "q", "documents": ["a"], "max_chunks_per_doc": "1"}, "max_chunks_per_doc accepts integer values",
     "max_chunks_per_doc"),
    ({"query": "q", "documents": ["a"] * 6}, "Number of documents exceeds max_allowed_chunks", "documents"),
]  # fmt: skip


async def test_wrong_fields_have_the_text_of_ovms(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling("rerank", max_pooling_inputs=3, max_allowed_chunks=5)
    for fields, message, param in WRONG_FIELDS:
        assert await refused(app, OVMS, **fields) == (message, param), fields
        assert engine.asked == [], fields


# --- long documents


async def test_ovms_scores_a_long_document_by_its_best_piece(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling("rerank", max_model_len=16)
    document = "x" * 10 + "abc" + "y" * 20
    body = await ask(app, OVMS, query="abc", documents=[document, "abc"])
    pairs, _ = engine.asked[-1]
    query = list(b"abc")
    pieces = [list(document.encode())[start : start + 10] for start in (0, 10, 20, 30)]  # 16 - 3 - 3 special tokens
    assert pairs == [*((query, piece) for piece in pieces), (query, "abc")]
    assert [result["index"] for result in body["results"]] == [0, 1]
    assert body["results"][0]["relevance_score"] == pytest.approx(sigmoid(6))
    assert engine.encoded == [["abc"], [document]]


async def test_pieces_that_are_not_counted(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling("rerank", max_model_len=16)
    document = "x" * 10 + "abc" + "y" * 20
    for path in (OVMS, VLLM):
        body = await ask(app, path, query="abc", documents=[document], max_chunks_per_doc=1)
        assert len(engine.asked[-1][0]) == 1
        assert body["results"][0]["relevance_score"] == pytest.approx(sigmoid(-6))
        await ask(app, path, query="abc", documents=[document], max_chunks_per_doc=0)
        assert len(engine.asked[-1][0]) == 4


async def test_a_long_query_keeps_half_of_the_window(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling("rerank", max_model_len=16)
    body = await ask(app, OVMS, query="abcdefghijkl", documents=["z" * 12])
    assert engine.asked[-1][0] == [(list(b"abcdefgh"), list(b"zzzzz")), (list(b"abcdefgh"), list(b"zzzzz")),
                                   (list(b"abcdefgh"), list(b"zz"))]  # fmt: skip
    assert body["usage"]["prompt_tokens"] == 16 + 16 + 13


async def test_too_many_pieces(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling("rerank", max_model_len=16, max_allowed_chunks=4)
    message, param = await refused(app, OVMS, query="abc", documents=["x" * 80])
    assert message == "Chunking failed: exceeding max_allowed_chunks after chunking limit: 4; actual: 8"
    assert param == "documents"
    assert engine.asked == []


async def test_a_window_without_space_for_documents(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling("rerank", max_model_len=6)
    message, _ = await refused(app, OVMS, query="a", documents=["b"])
    assert message.startswith(
        "max_position_embeddings should be larger than 2 * NUMBER_OF_SPECIAL_TOKENS: it is 6, and"
    )
    # The smallest window with room for a token of each side.
    app, engine = await make_pooling("rerank", max_model_len=7)
    await ask(app, OVMS, query="abcdef", documents=["xyz"])
    assert engine.asked[-1][0] == [(list(b"abc"), [piece]) for piece in b"xyz"]


async def test_vllm_refuses_or_cuts_what_is_too_long(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling("rerank", max_model_len=16)
    message, param = await refused(app, VLLM, query="abc", documents=["ok", "x" * 20])
    assert "longer than allowed 16" in message
    assert param == "documents[1]"
    body = await ask(app, VLLM, query="abc", documents=["x" * 20], truncate_prompt_tokens=-1)
    assert body["usage"]["prompt_tokens"] == 16
    body = await ask(app, OVMS, query="abc", documents=["x" * 20], truncate_prompt_tokens=10)
    assert body["usage"]["prompt_tokens"] == 10
    assert engine.asked[-1][0] == [("abc", "x" * 20)]


async def test_tokens_kept_of_each_side(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling("rerank", max_model_len=32)
    await ask(app, VLLM, query="abcdef", documents=["x" * 50, "y"], max_tokens_per_doc=4, max_tokens_per_query=2)
    assert engine.asked[-1][0] == [(list(b"ab"), list(b"xxxx")), (list(b"ab"), list(b"y"))]
    await ask(app, OVMS, query="ab", documents=["x" * 60], max_tokens_per_doc=30)
    assert [len(document) for _, document in engine.asked[-1][0]] == [27, 3]
    for name in ("max_tokens_per_doc", "max_tokens_per_query"):
        message, param = await refused(app, VLLM, query="a", documents=["b"], **{name: 32})
        assert message == f"{name} (32) must be less than max_model_len (32)."
        assert param == name
        message, param = await refused(app, VLLM, query="a", documents=["b"], **{name: -1})
        assert (message, param) == (f"{name} must be a non-negative integer", name)


@pytest.mark.parametrize("kind", ["rerank", "embeddings"])
async def test_coheres_limit_of_documents_may_exceed_the_window(make_pooling: MakePooling, kind: str) -> None:
    """Haystack's ranker sends max_tokens_per_doc 4096, Cohere's default, to every model."""
    app, engine = await make_pooling(kind, max_model_len=16)
    fields: dict[str, Any] = {"query": "abc", "documents": ["x" * 50, "y"], "max_tokens_per_doc": 4096}
    for path in ("/v2/rerank", "/v1/v2/rerank", "/v2/rerank/"):
        await ask(app, path, **fields)
        assert [params.truncate for _, params in engine.asked] == [-1] * len(engine.asked)
        assert "x" * 50 in str(engine.asked[-1][0])
    await ask(app, "/v2/rerank", **fields, truncate_prompt_tokens=9)
    assert engine.asked[-1][1].truncate == 9
    message, _ = await refused(app, "/v2/rerank", **{**fields, "max_tokens_per_doc": 0})
    assert "longer than allowed 16" in message


@pytest.mark.slow
async def test_long_lists_are_tokenized_in_several_calls(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling("rerank", max_pooling_tokens=1_000_000, max_pooling_inputs=5000)
    documents = ["x" * 1000] * 500
    await ask(app, OVMS, query="x", documents=documents)
    assert [len(texts) for texts in engine.encoded] == [1, 262, 238]
    app, engine = await make_pooling("rerank", max_pooling_tokens=1000)
    message, param = await refused(app, OVMS, query="x", documents=documents)
    assert "more than 1000 tokens" in message
    assert param == "documents"
    assert len(engine.encoded) == 2  # only the query and the first call were tokenized


# --- models


async def test_ovms_always_has_a_sigmoid(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling("rerank")
    engine.describe(activation="none")  # such as an ms-marco cross-encoder with Identity
    for path, value in ((VLLM, -6), (OVMS, sigmoid(-6))):
        body = await ask(app, path, query="abc", documents=["x"])
        assert body["results"][0]["relevance_score"] == pytest.approx(value)


async def test_an_embedding_model_ranks_by_the_angle(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling()
    for path in (VLLM, OVMS):
        body = await ask(app, path, query="abc", documents=["xyz", "abc", "abc", "cab"])
        assert [result["index"] for result in body["results"]][-1] == 0
        best = [result["relevance_score"] for result in body["results"][:3]]
        assert best == pytest.approx([1, 1, 1])
    assert [inputs for inputs, _ in engine.asked[-2:]] == [["abc"], ["xyz", "abc", "cab"]]
    assert body["usage"]["prompt_tokens"] == 4 * 5
    await ask(app, VLLM, query="abc", documents=["abcdef"], max_tokens_per_doc=3, max_tokens_per_query=2)
    assert [params.truncate for _, params in engine.asked[-2:]] == [4, 5]


async def test_a_generating_reranker_takes_texts_and_an_instruction(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling("rerank")
    engine.describe(pair="prompt")
    for fields in ({"instruction": "judge"}, {"chat_template_kwargs": {"instruction": "judge"}}):
        await ask(app, OVMS, query="abcdef", documents=["x" * 8], max_tokens_per_doc=3, **fields)
        assert engine.asked[-1][0] == [("abcdef", "xxx")]
        assert engine.asked[-1][1].instruction == "judge"
        assert engine.asked[-1][1].activation
    message, param = await refused(app, VLLM, query="a", documents=["b"], chat_template_kwargs={"instruction": 5})
    assert param == "chat_template_kwargs"
    assert "not a string" in message


@pytest.mark.parametrize("task", ["embeddings", "rerank"])
async def test_fields_without_an_effect_on_the_model_are_told(make_pooling: MakePooling, task: str) -> None:
    app, engine = await make_pooling(task)
    fields = {"instruction": "judge", "max_chunks_per_doc": 2}
    body = {"model": "e", "query": "a", "documents": ["b"], **fields}
    for pair, ignored in ((None, ["instruction"]), ("prompt", ["max_chunks_per_doc"])):
        if pair is not None:
            engine.describe(pair=pair)
        elif task == "embeddings":
            ignored = [*fields]
        found = warnings_of(await post(app, VLLM, body))
        assert [name in " ".join(found) for name in fields] == [name in ignored for name in fields]


async def test_the_template_of_the_operator_takes_an_instruction_but_no_pieces(make_pooling: MakePooling) -> None:
    app, _ = await make_pooling("rerank", chat_template="{{ instruction }}")
    body = {"model": "e", "query": "a", "documents": ["b"], "instruction": "judge", "max_chunks_per_doc": 2}
    [warning] = warnings_of(await post(app, VLLM, body))
    assert "max_chunks_per_doc has no effect on this model" in warning
    assert "instruction" not in warning


async def test_a_number_of_tokens_is_not_replaced_by_truncate(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling("rerank")
    for number in (5, None):
        await ask(app, VLLM, query="a", texts=["b"], truncate=True, truncate_prompt_tokens=number)
        assert engine.asked[-1][1].truncate == (number or -1)


async def test_a_score_template_of_the_operator(make_pooling: MakePooling) -> None:
    """The template is in vLLM's form: messages with the roles query and document."""
    template = "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}{{ instruction | default('-') }}"
    app, engine = await make_pooling("rerank", chat_template=template)
    for path in (VLLM, OVMS):
        await ask(app, path, query="a", documents=["b", "c"])
        assert engine.asked[-1][0] == ["query=a;document=b;-", "query=a;document=c;-"]
    await ask(app, "/score", text_1=["a", "b"], text_2=["c", "d"], instruction="judge")
    assert engine.asked[-1][0] == ["query=a;document=c;judge", "query=b;document=d;judge"]
    await ask(app, VLLM, query="a", documents=["bcd"], max_tokens_per_doc=1, chat_template_kwargs={"instruction": "i"})
    assert engine.asked[-1][0] == ["query=a;document=b;i"]
