"""POST …/decisions: the probabilities of answers to questions about an input, without a generated text.

https://platform.openai.com/docs/api-reference/decisions, which vLLM has as well.
"""

from __future__ import annotations

from ...api.fields import Field, FieldSet, RouteDoc, read, require
from ...api.generation.common_fields import KEEP_ALIVE, MODEL, TEMPLATE_KWARGS, warnings
from ...api.generation.sampling import SAMPLING
from ...api.response import json
from ...api.schemas import SOME_TEXT, any_of, array
from ...api.services import Services
from ...models.text_model import TextModel
from ...types import Json, Request, Response
from ..responses.response import counts
from ..responses.schemas import MESSAGES_AND_CALLS
from .label_probabilities import DecisionRequest
from .questions import QUESTION, Question, read_input, read_questions

FIELDS = FieldSet((
    MODEL,
    Field("input", "any",
        "what the questions are about: a string, or input items as in the Responses API", required=True,
        schema=any_of(SOME_TEXT, array(any_of(*MESSAGES_AND_CALLS), 1))),
    Field("questions", "array",
        "objects with type (predicate, choice or score), instructions and optionally a name",
        required=True, schema={"items": QUESTION, "minItems": 1}),
    TEMPLATE_KWARGS,
    KEEP_ALIVE,
    SAMPLING.named("priority"),
    SAMPLING.named("cache_salt"),
))  # fmt: skip


@RouteDoc("Probabilities of answers to questions about an input", body=FIELDS)
async def handle(request: Request, services: Services) -> Response:
    questions, parsed = await services.parse_body(request, _parse)
    with await parsed.model.hold() as model:
        readings, usage = await parsed.decide(model, services)
    answers = [question.answer(one) for question, one in zip(questions, readings, strict=True)]
    return json({"model": model.name, "answers": answers, "usage": counts(usage)}, parsed.headers)


def _parse(body: Json, services: Services) -> tuple[list[Question], DecisionRequest]:
    values = read(FIELDS, body)
    model = services.named_model(values, TextModel)
    require(FIELDS, values)
    parts = read_input(values["input"])
    questions = read_questions(values["questions"], services.config.max_prompts)
    return questions, DecisionRequest.of(model, questions, parts, values, warnings(FIELDS, body), place="input")
