"""POST /generative_scoring, as in vLLM: how probable a label is as the next token after a query and an item.

The prompt of an item is the query followed by the item, joined as token ids. Its score is the probability of the first
label, among all labels, or in the whole vocabulary if apply_softmax is false. It needs an engine that reports log
probabilities of tokens that were not chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

from ....api.fields import Field, FieldSet, RouteDoc, Values, read, require
from ....api.generation.common_fields import MODEL, REQUEST_ID, warnings
from ....api.generation.sampling import SAMPLING, token_ids
from ....api.response import json, new_id, now, usage, warning_headers
from ....api.schemas import STRING, TOKENS, any_of, array
from ....api.services import Services
from ....errors import BadRequest, errors_of
from ....models.generation import CompletedChoice
from ....models.text_model import TextModel
from ....types import Json, OutputParams, Request, Response, SamplingParams, TokenPrompt
from ...chat.logprobs import require_alternatives
from ...completions.several import check_total, collect_each, start_all

MAX_LABELS = 128

FIELDS = FieldSet((
    MODEL,
    Field("query", "any", "text or token ids before or after each item", required=True,
        schema=any_of(STRING, TOKENS)),
    Field("items", "array", "texts or arrays of token ids, each of which is scored with the query", required=True,
        schema=any_of(array(STRING, 1), array(TOKENS, 1))),
    Field("label_token_ids", "array", f"up to {MAX_LABELS} token ids; the score is the probability of the first",
        required=True, schema=TOKENS | {"minItems": 1, "maxItems": MAX_LABELS}),
    Field("apply_softmax", "bool",
        "normalize the probability among the labels; false computes it in the whole vocabulary", default=True),
    Field("item_first", "bool", "put the item before the query", default=False),
    Field("add_special_tokens", "bool", "let the tokenizer add special tokens such as BOS to the query", default=True),
    REQUEST_ID,
    SAMPLING.named("cache_salt"),
))  # fmt: skip


@RouteDoc("Probability of a label after each item", body=FIELDS)
async def handle(request: Request, services: Services) -> Response:
    model, values, headers = await services.parse_body(request, _parse)
    with await model.hold() as model:
        prompts = await _prompts(values, model)
        sampling = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            logprobs=True,
            logprob_token_ids=tuple(values["label_token_ids"]),
            cache_salt=values["cache_salt"] or "",
        )
        start = partial(model.start, sampling=sampling, output=OutputParams())
        generations = await start_all(prompts, start, model.config.max_queued_tokens_per_client)
        choices, tokens = await collect_each(generations)
    scores = [_score(choice, softmax=values["apply_softmax"]) for choice in choices]
    body = {
        "id": new_id("generative-scoring", values["request_id"]),
        "object": "list",
        "created": now(),
        "model": model.name,
        "data": [{"index": place, "object": "score", "score": score} for place, score in enumerate(scores)],
        "usage": usage(tokens),
    }
    return json(body, headers)


def _parse(body: Json, services: Services) -> tuple[TextModel, Values, list[tuple[str, str]]]:
    """Parses a body; returns the model, the values of the fields, and Warning headers. Raises RequestError."""
    values = read(FIELDS, body)
    model = services.named_model(values, TextModel)
    _tokens_or_text(values["query"], "query")
    require(FIELDS, values)
    items = values["items"]
    if not items:
        raise BadRequest("items must contain at least one item.", param="items")
    if len(items) > services.config.max_prompts:
        raise BadRequest(
            f"items has {len(items)} entries, more than this server's limit of {services.config.max_prompts} "
            "(--max_prompts)",
            param="items",
        )
    for place, item in enumerate(items):
        _tokens_or_text(item, f"items[{place}]")
    _check_labels(values["label_token_ids"], model)
    require_alternatives(model, "generative scoring")
    return model, values, warning_headers(warnings(FIELDS, body))


def _check_labels(labels: list[Any], model: TextModel) -> None:
    if not labels:
        raise BadRequest("label_token_ids must contain at least one token ID.", param="label_token_ids")
    if len(labels) > MAX_LABELS:
        raise BadRequest(f"label_token_ids must have no more than {MAX_LABELS} token ids", param="label_token_ids")
    token_ids(labels, "label_token_ids")
    model.require_ready()
    vocab = model.serving().info.vocab_size
    for label in labels:
        if label >= vocab:
            message = f"label_token_id {label} is out of vocabulary range [0, {vocab}). Please provide valid token IDs."
            raise BadRequest(message, param="label_token_ids")


def _tokens_or_text(value: Any, param: str) -> None:
    if isinstance(value, str):
        return
    if not isinstance(value, list):
        raise BadRequest(f"{param} must be a string or an array of token ids", param=param)
    token_ids(value, param)


async def _prompts(values: Values, model: TextModel) -> Iterator[TokenPrompt]:
    """Yields the prompts, truncated at the end to leave room for one generated token. Raises RequestError.

    Each is made only when it is needed, since all of them contain the query.
    """
    with errors_of("query"):
        [query] = await _encoded([values["query"]], model, special=values["add_special_tokens"])
    with errors_of("items"):
        items = await _encoded(values["items"], model, special=False)
    if not query and [] in items:
        place = items.index([])
        raise BadRequest(f"query and items[{place}] are empty", param=f"items[{place}]")
    most = model.info.context_length - 1
    if len(items) > 1:
        total = sum(min(len(query) + len(item), most) for item in items)
        with errors_of("items"):
            check_total(total, model.config.max_queued_tokens_per_client)
    both = (item + query if values["item_first"] else query + item for item in items)
    return (TokenPrompt(tokens[:most]) for tokens in both)


async def _encoded(values: list[Any], model: TextModel, *, special: bool) -> list[list[int]]:
    texts = [value for value in values if isinstance(value, str)]
    encoded = iter(await model.encode(texts, special) if texts else [])
    return [next(encoded) if isinstance(value, str) else value for value in values]


def _score(choice: CompletedChoice, *, softmax: bool) -> float:
    """Returns the probability of the first label, computed from the log probabilities of all labels.

    That of an impossible label is unknown (None).
    """
    logprobs = [-math.inf if token.logprob is None else token.logprob for token in choice.logprobs[0].top]
    highest = max(logprobs)
    if not softmax or highest == -math.inf:
        return math.exp(logprobs[0])
    weights = [math.exp(value - highest) for value in logprobs]
    return weights[0] / sum(weights)
