"""Content of messages other than text, such as images: finds the feature that reads it, and puts the result in the
prompt.

A feature reads content parts of some types (manifest.ContentRow). Its module is imported by the first request that has
such a part. In the prompt's text a tag marks the place of each image or other part. A client's text must not contain a
tag or the model's own token for it, which would move images to other places. These rules are OVMS's.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ...api.services import Services
from ...composition import Composition
from ...errors import BadRequest, RequestError
from ...manifest import named
from ...models.text_model import TextModel
from ...types import IMAGE_TAG_START, ChatPrompt, Json
from ...util.concurrency import INLINE_CHARACTERS

PLACE = "messages[{message}].content[{part}].{kind}.url"
"""The pattern for the name of an image's request field, in errors."""
OF_TOOL = "of_tool"
"""The key that marks a part of a tool's result, which was moved to a user message since templates need it there."""
MOST_LEFT_OUT = 16
"""The most parts from tools that are left out of one prompt because they cannot be loaded. They are dropped one by one,
and each time all other parts are loaded again."""
PLAIN = "image placeholders in messages of the assistant and of tools are treated as plain text"
_ANSWERS = ("assistant", "tool")
"""The roles of messages that are not written by the user."""
_T = TypeVar("_T")
_INVALID = "Invalid message structure - "


class MediaPart(NamedTuple):
    """A content part of a message, other than text."""

    part: Json
    """The part as JSON."""
    message: int
    """The index of its message in the conversation."""
    number: int
    """The index of the part in its message."""
    of_tool: bool = False
    """Whether a tool returned it."""

    @property
    def at(self) -> str:
        """The name of the request field that holds the part, for errors."""
        return f"messages[{self.message}].content[{self.number}]"

    def field(self, place: str) -> str:
        """Returns the name of the part's request field; `place` is its pattern, such as PLACE."""
        return place.format(message=self.message, part=self.number, kind=self.part["type"])


class Reads(NamedTuple):
    """The kinds of content, besides text, that a model can read."""

    tokens: list[str] | None
    """The placeholder texts for images and other content in the model's prompts; None if it reads text only."""
    context: int
    """The model's context length in tokens; 0 if it is not known yet."""
    videos: bool = False
    """Whether it reads videos."""
    audio: bool = False
    """Whether it reads audio."""

    @classmethod
    def of(cls, model: TextModel) -> Reads:
        """Returns what a model can read, as far as it is known. Raises RequestError if it is not ready."""
        info = model.info if model.known else None
        context, videos = (info.context_length, info.video) if info is not None else (0, False)
        return cls(model.image_tokens, context, videos, model.takes_audio)


def left_out(kind: str, why: str) -> str:
    """Returns the text that replaces a tool's part of this kind, which is left out of the prompt for a reason."""
    return f"[The tool returned content of type {kind[:40]}, which was left out: {why}]"


def text_for(part: MediaPart, error: RequestError, notices: list[str]) -> str:
    """Returns the text that replaces a part from a tool if it cannot be read, or raises the error again.

    Agents send a tool's results again with each further request. If one were refused, they could not go on.

    Args:
        part: The part.
        error: The reason why it cannot be read.
        notices: A warning about the part is appended here.

    Raises:
        RequestError: The same error, if the user sent the part, or if it may be readable later.
    """
    if not part.of_tool or error.status not in (400, 501):
        raise error
    notices.append(f"{part.at}, returned by a tool, was left out: {error.message}")
    return left_out(part.part["type"], error.message)


class ContentReader:
    """Reads the content parts of certain types."""

    def checked(self, part: Json, param: str) -> Json:
        """Returns a client's part in the form of the chat API. Raises BadRequest, naming the field `param`."""
        return part

    def refusal(self, found: MediaPart, place: str, why: str) -> BadRequest:
        """Returns the error for a part that was sent to an endpoint or model that reads text only.

        Args:
            found: The part.
            place: The pattern of the field's name, such as PLACE.
            why: The reason in the error message for images, if the endpoint has its own.
        """
        raise NotImplementedError

    async def as_text(
        self, prompt: ChatPrompt, model: TextModel, services: Services, salt: str
    ) -> tuple[ChatPrompt, list[str]]:
        """Replaces parts that the model cannot read by texts; returns the prompt and warnings.

        Args:
            prompt: The conversation.
            model: The model of the request.
            services: The services of the server.
            salt: The request's cache_salt; what is kept of a part may only serve requests with the same one.

        Raises:
            RequestError: A part cannot be read.
        """
        return prompt, []

    async def load(
        self, prompts: Sequence[ChatPrompt], places: Sequence[str], reads: Reads, services: Services
    ) -> list[ChatPrompt]:
        """Reads the parts of one request's prompts; returns the prompts with the results and with tags in the text.

        Args:
            prompts: The prompts; no text in them contains a tag.
            places: For each prompt the pattern of the field names, such as PLACE.
            reads: The kinds of content that the model reads.
            services: The services of the server.

        Raises:
            RequestError: The model cannot read a part, or the part cannot be loaded.
        """
        raise NotImplementedError


def checked_part(part: Any, param: str, composition: Composition, *, of_tool: bool = False) -> Json:
    """Checks a content part of a message, and returns it in the form of the chat API.

    Args:
        part: The part. A text alone, a refusal, a part in the form of the Responses API, and one without a type are
            accepted too, as in vLLM.
        param: The name of the field that holds the part, for errors.
        composition: The features of the server, some of which read parts other than text.
        of_tool: Whether a tool returned the part. If so, a text replaces one that cannot be read, as a file by id.

    Raises:
        BadRequest: The part is not well-formed, or no feature reads its type and it is not from a tool.
    """
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        raise BadRequest(f"{_INVALID}content array should contain objects", param=param)
    kind = part.get("type")
    if kind is None and (kind := next((name for name in ("text", *composition.contents) if name in part), None)):
        part = {**part, "type": kind}  # most types of parts are also the names of their members
    if not isinstance(kind, str):
        raise BadRequest(f"{_INVALID}content object type missing", param=param)
    if kind in ("text", "refusal", "input_text", "output_text"):
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise BadRequest(f"{_INVALID}content text missing", param=param)
        return part if kind == "text" else {"type": "text", "text": text}
    try:
        return _reader(kind, param, composition).checked(part, param)
    except BadRequest as error:
        if not of_tool:
            raise
        return {"type": "text", "text": left_out(kind, error.message)}


def check_member(part: Json, member: str, param: str) -> None:
    """Raises BadRequest unless the member named like the part's type is an object with a text in `member`."""
    kind = part["type"]
    value = part.get(kind)
    if not isinstance(value, dict) or not isinstance(value.get(member), str):
        raise BadRequest(f"{_INVALID}{kind} does not have {member} field", param=f"{param}.{kind}")


def media_parts(messages: list[Json], kinds: Collection[str] = ()) -> Iterator[MediaPart]:
    """Yields the content parts of the given types, or all parts other than text if no type is given."""
    for m, message in enumerate(messages):
        content = message.get("content")
        for p, part in enumerate(content if isinstance(content, list) else ()):
            if part["type"] in kinds if kinds else part["type"] != "text":
                yield MediaPart(part, m, p, message["role"] == "tool" or OF_TOOL in part)


async def parts_of(prompt: ChatPrompt, kinds: Collection[str], services: Services) -> list[MediaPart]:
    """Returns the content parts of the given types in a conversation. A long one is searched in a worker thread."""
    search = partial(lambda messages: [*media_parts(messages, kinds)], prompt.messages)
    return await services.offload.run(prompt.render_cost, search, inline_below=INLINE_CHARACTERS)


def with_texts(message: Json, kinds: Collection[str], texts: Iterator[str]) -> Json:
    """Returns the message with each part of the given types replaced by the next of the texts."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = [{"type": "text", "text": next(texts)} if part["type"] in kinds else part for part in content]
    return {**message, "content": parts}


def refuse_media(messages: list[Json], why: str, composition: Composition, place: str = PLACE) -> None:
    """Raises BadRequest if a message has a part other than text.

    Args:
        messages: The messages of a chat.
        why: The reason that the error gives for images; parts of other types have reasons of their own.
        composition: The features that are built in.
        place: The pattern of the field's name in the error, such as PLACE.
    """
    for found in media_parts(messages):
        raise _reader(found.part["type"], found.at, composition).refusal(found, place, why)


async def read_media(
    prompt: ChatPrompt, model: TextModel, services: Services, salt: str
) -> tuple[ChatPrompt, list[str]]:
    """Reads the images and other parts of a conversation; returns the prompt with the results, and warnings.

    A part that a tool returned and that cannot be read is replaced by a text, with a warning. Raises RequestError for
    other parts that cannot be read. The parameters are those of ContentReader.as_text.
    """
    notices: list[str] = []
    if prompt.has_parts:

        async def find(prompt: ChatPrompt) -> list[ContentReader]:
            return await _readers([prompt], None, services)

        prompt, readers = await _leaving_out(prompt, find, notices, services)
        for reader in readers:
            prompt, lines = await reader.as_text(prompt, model, services, salt)
            notices += lines
    reads = Reads.of(model)
    if reads.tokens is not None:
        make = partial(_with_plain_answers, prompt.messages, reads.tokens)
        messages = await services.offload.run(prompt.render_cost, make, inline_below=INLINE_CHARACTERS)
        if messages is not None:
            prompt = prompt.with_messages(messages)
            notices.append(PLAIN)

    async def load(prompt: ChatPrompt) -> ChatPrompt:
        return (await load_media([prompt], [PLACE], reads, services))[0]

    _, prompt = await _leaving_out(prompt, load, notices, services)
    return prompt, notices


async def _leaving_out(
    prompt: ChatPrompt, work: Callable[[ChatPrompt], Awaitable[_T]], notices: list[str], services: Services
) -> tuple[ChatPrompt, _T]:
    """Does some work with a prompt; if it refuses parts from tools, these are replaced by texts and it is done again.

    Args:
        prompt: The prompt.
        work: The work, repeated after each part that it refuses.
        notices: A warning about each replaced part is appended here.
        services: The services of the server.

    Returns:
        The prompt that the work accepted, and the result of the work.

    Raises:
        RequestError: The work fails for another reason, or refuses too many parts.
    """
    for _ in range(MOST_LEFT_OUT):
        try:
            return prompt, await work(prompt)
        except RequestError as error:
            prompt = await _without_part(prompt, error, notices, services)
    return prompt, await work(prompt)


async def _without_part(prompt: ChatPrompt, error: RequestError, notices: list[str], services: Services) -> ChatPrompt:
    """Returns the prompt with a text in place of the part that an error names.

    Args:
        prompt: The prompt.
        error: The error.
        notices: A warning about the part is appended here.
        services: The services of the server.

    Raises:
        RequestError: The same error, if it does not name a part that a tool returned.
    """
    param = error.param or ""
    for part in await parts_of(prompt, (), services):
        if part.of_tool and param.startswith(part.at):
            text = {"type": "text", "text": text_for(part, error, notices)}
            messages = [*prompt.messages]
            content = [*messages[part.message]["content"]]
            content[part.number] = text
            messages[part.message] = {**messages[part.message], "content": content}
            return prompt.with_messages(messages)
    raise error


async def load_media(
    prompts: Sequence[ChatPrompt], places: Sequence[str], reads: Reads, services: Services
) -> list[ChatPrompt]:
    """Reads the parts of the prompts of one request, and returns the prompts with the results.

    Long prompts are searched in a worker thread. Raises RequestError if the model cannot read a part, or if it cannot
    be loaded. The parameters are those of ContentReader.load.
    """
    if reads.tokens is None and not any(prompt.has_parts for prompt in prompts):
        return [*prompts]
    found = [*prompts]
    for reader in await _readers(found, reads.tokens, services):
        found = await reader.load(found, places, reads, services)
    return found


async def _readers(prompts: list[ChatPrompt], tokens: list[str] | None, services: Services) -> list[ContentReader]:
    """Returns the readers of all content other than text in these prompts, in the order of the features.

    Args:
        prompts: The prompts of one request.
        tokens: The model's placeholder texts for images and other content, which no text may contain; None if the model
            reads text only, so that nothing is refused.
        services: The services of the server.

    Raises:
        BadRequest: A text contains a placeholder, or no feature reads parts of a type.
    """
    composition = services.config.composition

    def search() -> dict[str, MediaPart]:
        if tokens is not None:
            for prompt in prompts:
                _refuse_tokens(prompt, tokens, composition.contents)
        parts = [part for prompt in prompts for part in media_parts(prompt.messages)]
        return {found.part["type"]: found for found in reversed(parts)}

    cost = sum(prompt.render_cost for prompt in prompts)
    first = await services.offload.run(cost, search, inline_below=INLINE_CHARACTERS)
    readers = {kind: _reader(kind, found.at, composition) for kind, found in first.items()}
    return [*dict.fromkeys(readers[kind] for kind in composition.contents if kind in readers)]


def _reader(kind: str, param: str, composition: Composition) -> ContentReader:
    """Imports and returns the reader of parts of a type. Raises BadRequest if no feature reads the type."""
    row = composition.contents.get(kind)
    if row is None:
        words = ["text", *(word for row in dict.fromkeys(composition.contents.values()) for word in row.words)]
        listed = " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
        verb = "are" if len(words) > 1 else "is"
        raise BadRequest(f"Unsupported content type: {listed} {verb} read, not {kind[:40]!r}", param=param)
    found: ContentReader = named(row.package, row.reader)
    return found


def plain_text(text: str, tokens: Iterable[str]) -> str:
    """Returns a text with a zero-width space inside each of the tokens, so that they stand for no image."""
    for token in (IMAGE_TAG_START, *tokens):
        if token in text:
            text = text.replace(token, f"{token[0]}\u200b{token[1:]}")
    return text


def _with_plain_answers(messages: list[Json], tokens: list[str]) -> list[Json] | None:
    """Returns the messages with harmless placeholders in the texts of the model and of tools; None if unchanged.

    These texts come back with each further request: once a tool has read a page with such a word, or the model has
    written one, the conversation would be refused from then on.
    """
    found = [_plain_answer(message, tokens) if message["role"] in _ANSWERS else message for message in messages]
    return found if any(new is not old for new, old in zip(found, messages, strict=True)) else None


def _plain_answer(message: Json, tokens: list[str]) -> Json:
    changed: Json = {}
    for name in ("content", "reasoning_content", "reasoning"):
        value = message.get(name)
        if isinstance(value, str):
            changed[name] = plain_text(value, tokens)
        elif isinstance(value, list):
            changed[name] = [
                {**part, "text": plain_text(part["text"], tokens)} if part["type"] == "text" else part for part in value
            ]
    if calls := message.get("tool_calls"):
        changed["tool_calls"] = [_plain_call(call, tokens) for call in calls]
    return {**message, **changed} if any(message[name] != value for name, value in changed.items()) else message


def _plain_call(call: Json, tokens: list[str]) -> Json:
    arguments = call["function"].get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    if (plain := plain_text(text, tokens)) == text:
        return call
    arguments = plain if isinstance(arguments, str) else json.loads(plain)
    return {**call, "function": {**call["function"], "arguments": arguments}}


def _refuse_tokens(prompt: ChatPrompt, tokens: list[str], kinds: Collection[str]) -> None:
    """Raises BadRequest if a string that may enter the prompt contains a tag or a placeholder for an image."""
    places = {"messages": prompt.messages, "tools": prompt.tools, "chat_template_kwargs": prompt.template_kwargs}
    for place, value in places.items():
        for text in _texts(value, kinds):
            if IMAGE_TAG_START in text:
                raise BadRequest("Message contains restricted <ov_genai_image> tag", param=place)
            found = next((token for token in tokens if token in text), None) if "<" in text else None
            if found is not None:
                what = "audio" if "audio" in found else "an image"
                raise BadRequest(f"Message contains {found}, the placeholder of {what}", param=place)


def _texts(value: Any, kinds: Collection[str]) -> Iterator[str]:
    """Yields every string in a JSON value, without recursion, except those in parts of the given types."""
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            stack += value
        elif isinstance(value, dict):
            stack += [*value, *(inner for key, inner in value.items() if key not in kinds)]
