"""POST …/systemone: vLLM's structured decisions, also served by llama.cpp.

https://docs.vllm.ai/en/stable/serving/online_serving/. Questions have names and criteria here, and their answers more
members than those of OpenAI's decisions. The options of a choice have letters, those of yes or no these two words, and
the levels of a score their numbers.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from operator import not_
from typing import Any

import orjson

from ...api.fields import Field, FieldSet, RouteDoc, read, require
from ...api.generation.common_fields import KEEP_ALIVE, MODEL, REQUEST_ID, TEMPLATE_KWARGS, warnings
from ...api.generation.sampling import SAMPLING
from ...api.response import json, new_id, now
from ...api.schemas import NULL, STRING, any_of, array, const
from ...api.services import Services
from ...errors import BadRequest
from ...models.text_model import TextModel
from ...types import Json, Request, Response
from .label_probabilities import DecisionRequest, LabelChances
from .questions import LETTERS, as_content
from .questions import REPLY as LETTER_ONLY

CHOICE, YES_OR_NO, SCORE = "choice", "noul", "score"
LABELS: dict[str, Sequence[str]] = {CHOICE: LETTERS, YES_OR_NO: ("yes", "no"), SCORE: string.digits}
"""The labels of the options of each type of question, in order."""
REPLY = {
    CHOICE: LETTER_ONLY,
    YES_OR_NO: "Answer with yes or no only.",
    SCORE: "Answer with the number of one level only.",
}
MEDIA = {"images": "image_url", "audio": "audio_url", "videos": "video_url"}
"""The fields with the URLs of files, and the type of content part that each becomes."""
KINDS = {"data:audio/": "audio_url", "data:video/": "video_url"}
"""The beginnings of URLs in llama.cpp's field `files` that are no images, and the types of their parts."""
FILE_PARTS = (*MEDIA.values(), "input_audio")
"""The types of content parts that have a file."""


def _urls(name: str) -> Field:
    def read_urls(value: list[Any]) -> list[str]:
        if not all(isinstance(url, str) for url in value):
            raise BadRequest(f"{name} must be an array of URLs", param=name)
        return value

    return Field(name, "array", "URLs of files that belong to the state, or data URLs", read=read_urls,
        schema={"items": STRING})  # fmt: skip


def _typed(kind: str, criteria: Json, *required: str) -> Json:
    """Returns the schema of a question of a type, whose criteria must be given if they are required."""
    members: Json = {"type": const(kind), "instructions": any_of(STRING, NULL), "criteria": criteria}
    return {"type": "object", "properties": members, "required": ["type", *required], "additionalProperties": False}


_SIDES = {"type": "object", "properties": {"true": {}, "false": {}}, "additionalProperties": False}
QUESTION = any_of(
    _typed(CHOICE, {"type": "object", "minProperties": 1, "maxProperties": len(LABELS[CHOICE])}, "criteria"),
    _typed(YES_OR_NO, any_of(_SIDES, NULL)),
    _typed(SCORE, array(STRING, 2) | {"maxItems": len(LABELS[SCORE]), "uniqueItems": True}, "criteria"),
)
FIELDS = FieldSet((
    MODEL,
    Field("state", "any", "what the questions are about: a text or any JSON value", required=True,
        schema={"not": NULL}),
    Field("questions", "object",
        "objects by the names of their answers, with type (choice, noul for yes or no, or score), instructions, and "
        "criteria: the options with their descriptions, or the levels", required=True,
        schema={"additionalProperties": QUESTION, "propertyNames": {"minLength": 1}, "minProperties": 1}),
    Field("instructions", "string", "system message before the questions"),
    *map(_urls, ("files", *MEDIA)),
    TEMPLATE_KWARGS,
    KEEP_ALIVE,
    REQUEST_ID,
    SAMPLING.named("priority"),
    SAMPLING.named("cache_salt"),
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class StructuredQuestion:
    """A question about the state."""

    kind: str
    """The kind of the question: CHOICE, YES_OR_NO or SCORE."""
    instructions: str
    """The text of the question."""
    names: list[str]
    """The name of each option."""
    descriptions: list[str]
    """The description of each option; "" if it has none."""

    @property
    def labels(self) -> Sequence[str]:
        """The label of each option."""
        return LABELS[self.kind][: len(self.names)]

    def prompt(self, parts: list[Json]) -> str | list[Json]:
        """Returns the message's content: the state, first so that all questions share a prefix, and the question."""
        lines = [f"Question: {self.instructions}"] if self.instructions else []
        for label, name, more in zip(self.labels, self.names, self.descriptions, strict=True):
            shown = [more] if self.kind == YES_OR_NO else [f"{name} - {more}" if more else name]
            lines.append(": ".join([label, *filter(None, shown)]))
        text = "\n".join(["", "", *lines, REPLY[self.kind]])
        return as_content([*parts, {"type": "text", "text": text}])

    def answer(self, reading: LabelChances) -> Json:
        """Returns the answer that the probabilities of the labels give."""
        shares = reading.shares
        found: Json = {"type": self.kind}
        if self.kind == CHOICE:
            found |= {"choice": self.names[reading.best]}
        elif self.kind == YES_OR_NO:
            found |= {"noul": shares[0]}
        else:
            found |= {"score": reading.mean, "legend": dict(zip(self.labels, self.names, strict=True))}
        shown = self.names if self.kind == CHOICE else self.labels
        chances = dict(zip(shown, shares, strict=True))
        return found | {"probabilities": chances, "confidence": reading.chances[reading.best]}


@RouteDoc("Probabilities of answers to questions about a state, in vLLM's form", body=FIELDS)
async def handle(request: Request, services: Services) -> Response:
    questions, parsed, request_id = await services.parse_body(request, _parse)
    with await parsed.model.hold() as model:
        readings, usage = await parsed.decide(model, services)
    found = dict(zip(questions, readings, strict=True))
    body = {
        "id": new_id("decision", request_id),
        "object": "structured_decision",
        "created": now(),
        "model": model.name,
        "answers": {name: questions[name].answer(one) for name, one in found.items()},
        "usage": {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens},
        "diagnostics": {
            name: {"label_mass": sum(one.chances), "argmax_is_label": one.likeliest} for name, one in found.items()
        },
    }
    return json(body, parsed.headers)


def _parse(body: Json, services: Services) -> tuple[dict[str, StructuredQuestion], DecisionRequest, str | None]:
    values = read(FIELDS, body)
    model = services.named_model(values, TextModel)
    require(FIELDS, values)
    most = services.config.max_prompts
    if not 1 <= len(values["questions"]) <= most:
        raise BadRequest(f"questions must have 1 to {most} members", param="questions")
    questions = {name: _question(name, one) for name, one in values["questions"].items()}
    state, parts = _without_files(values["state"])
    text = state if isinstance(state, str) else orjson.dumps(state).decode()
    given = [(_kind(url), url) for url in values["files"] or ()]
    given += [(kind, url) for name, kind in MEDIA.items() for url in values[name] or ()]
    system = [{"role": "system", "content": values["instructions"]}] if values["instructions"] else []
    places = ["state"] * bool(parts) + [name for name in ("files", *MEDIA) if values[name]]
    place = places[0] if len(places) == 1 else "state"
    parts = [*({"type": kind, kind: {"url": url}} for kind, url in given), *parts, {"type": "text", "text": text}]
    parsed = DecisionRequest.of(
        model, list(questions.values()), parts, values, warnings(FIELDS, body), place=place, system=system
    )
    return questions, parsed, values["request_id"]


def _kind(url: str) -> str:
    """Returns the type of content part that a URL becomes."""
    return next((kind for start, kind in KINDS.items() if url.startswith(start)), "image_url")


def _without_files(state: Any) -> tuple[Any, list[Json]]:
    """Returns a state without the files in its chat messages, if it has some, and the content parts of these files."""
    messages = state.get("messages") if isinstance(state, dict) else state
    if not isinstance(messages, list):
        return state, []
    files: list[Json] = []
    kept = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            is_file = [isinstance(part, dict) and part.get("type") in FILE_PARTS for part in content]
            files += compress(content, is_file)
            message = {**message, "content": [*compress(content, map(not_, is_file))]}
        kept.append(message)
    return {**state, "messages": kept} if isinstance(state, dict) else kept, files


def _question(name: str, given: Any) -> StructuredQuestion:
    """Reads a question. Raises BadRequest."""
    if not name:
        raise BadRequest("questions: the name of a question must not be empty", param="questions")
    param = f"questions.{name}"
    if not isinstance(given, dict):
        raise BadRequest(f"{param} is not an object", param=param)
    kind, instructions, criteria = given.get("type"), given.get("instructions"), given.get("criteria")
    if not isinstance(kind, str) or kind not in LABELS:
        raise BadRequest(f"{param}.type must be one of: {', '.join(LABELS)}", param=f"{param}.type")
    if unknown := given.keys() - {"type", "instructions", "criteria"}:
        raise BadRequest(f"{param} has unknown members: {', '.join(sorted(unknown))}", param=param)
    options = _options(kind, criteria, f"{param}.criteria")
    return StructuredQuestion(kind, _described(instructions), list(options), [*map(_described, options.values())])


def _options(kind: str, criteria: Any, param: str) -> dict[str, Any]:
    """Returns the options with their descriptions. Raises BadRequest."""
    if kind == YES_OR_NO:
        found = {} if criteria is None else criteria
        if not isinstance(found, dict) or not found.keys() <= {"true", "false"}:
            raise BadRequest(f"{param} must be an object with true and false", param=param)
        return {"yes": found.get("true"), "no": found.get("false")}
    if kind == CHOICE and isinstance(criteria, dict):
        options = criteria
    elif kind == SCORE and isinstance(criteria, list):
        options = dict.fromkeys(map(_described, criteria))
        if len(options) < len(criteria):
            raise BadRequest(f"{param}: two levels must not have the same name", param=param)
    else:
        what = "an object of options and descriptions" if kind == CHOICE else "an array of levels"
        raise BadRequest(f"{param} must be {what}", param=param)
    least, most = 1 + (kind == SCORE), len(LABELS[kind])
    if not least <= len(options) <= most:
        raise BadRequest(f"{param} must have {least} to {most} entries", param=param)
    return options


def _described(value: Any) -> str:
    """Returns a text as it is, any other value as JSON, and "" for null."""
    return "" if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()
