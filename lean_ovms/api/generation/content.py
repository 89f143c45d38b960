"""Parts of messages beside text, such as images: who reads them, and how a prompt gets what they mean.

A feature reads the parts of some types (manifest.ContentRow). Its module is imported by the first request that has one.
Tags stand for what is no text in a prompt's text, so a client's text must not contain them or the model's own tokens
for it: they would move images to other places. The rules are OVMS's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ...composition import Composition
from ...errors import BadRequest, RequestError
from ...manifest import named
from ...models.text_model import TextModel
from ...types import IMAGE_TAG_START, ChatPrompt, Json
from ...util.concurrency import INLINE_CHARACTERS
from ..services import Services

PLACE = "messages[{message}].content[{part}].{kind}.url"
"""The field of an image, for errors."""
OF_TOOL = "of_tool"
"""The member of a part that a tool returned, where it stands in a message of the user: templates have no place for it
in a tool's message."""
MOST_LEFT_OUT = 16
"""Parts of tools that are left out of a prompt one by one, since they cannot be loaded; each time the others are loaded
again."""
PLAIN = "words that stand for images are read as plain text in messages of tools and of the assistant"
_ANSWERS = ("assistant", "tool")
"""Roles of messages that a user does not write."""
_T = TypeVar("_T")
_INVALID = "Invalid message structure - "


class MediaPart(NamedTuple):
    """A part of a conversation that is no text."""

    part: Json
    """The part itself."""
    message: int
    """The number of its message."""
    number: int
    """The number of the part in the message."""
    of_tool: bool = False
    """Whether a tool returned it."""

    @property
    def at(self) -> str:
        """The field that it is in, for errors."""
        return f"messages[{self.message}].content[{self.number}]"

    def field(self, place: str) -> str:
        """Returns the name of the request field that this part shows, such as `messages[0].content[1].image_url`.

        Args:
            place: The name with gaps for the message, the part and its kind, such as PLACE.
        """
        return place.format(message=self.message, part=self.number, kind=self.part["type"])


class Reads(NamedTuple):
    """The kinds of content that a model reads beside text."""

    tokens: list[str] | None
    """The texts in its prompts that stand for what is no text; None: it reads text only."""
    context: int
    """The tokens of its context."""
    videos: bool = False
    """Whether it reads videos."""
    audio: bool = False
    """Whether it hears."""

    @classmethod
    def of(cls, model: TextModel) -> Reads:
        """Returns what a model reads, as far as that is known. Raises RequestError if it is not ready."""
        info = model.info if model.known else None
        context, videos = (info.context_length, info.video) if info is not None else (0, False)
        return cls(model.image_tokens, context, videos, model.takes_audio)


@contextmanager
def named_errors(part: MediaPart) -> Iterator[None]:
    """Makes errors name this part."""
    try:
        yield
    except RequestError as error:
        error.param = part.at
        raise


def left_out(kind: str, why: str) -> str:
    """Returns the text that stands for a part that a tool returned, and that is not read.

    Args:
        kind: The type of the part.
        why: The reason.
    """
    return f"[The tool returned content of the type {kind[:40]} here. It is left out: {why}]"


def text_for(part: MediaPart, error: RequestError, notices: list[str]) -> str:
    """Returns the text that stands for a part that cannot be read, if a tool returned it.

    Agents send what a tool returned with all further requests: refused once, they could not go on.

    Args:
        part: The part.
        error: Why it cannot be read.
        notices: Gets a line about it.

    Raises:
        RequestError: The error, where the user sent the part, or where it may be read at another time.
    """
    if not part.of_tool or error.status not in (400, 501):
        raise error
    notices.append(f"{part.at}, which a tool returned, is left out: {error.message}")
    return left_out(part.part["type"], error.message)


class ContentReader:
    """Reads the parts of messages of some types."""

    def checked(self, part: Json, param: str) -> Json:
        """Returns a part in the form of the chat API.

        Args:
            part: The part as the client sent it.
            param: The name of its field, for errors.

        Raises:
            BadRequest: It is not well-formed.
        """
        return part

    def refusal(self, found: MediaPart, place: str, why: str) -> BadRequest:
        """Returns the error of a part where text alone is read.

        Args:
            found: The part.
            place: The form of the fields of images.
            why: The reason, where the endpoint has one of its own for images.
        """
        raise NotImplementedError

    async def as_text(self, prompt: ChatPrompt, model: TextModel, services: Services) -> tuple[ChatPrompt, list[str]]:
        """Returns a prompt with texts in place of the parts that its model cannot read, and a line about each.

        Raises RequestError. Cancelling it stops the work.
        """
        return prompt, []

    async def load(
        self, prompts: Sequence[ChatPrompt], places: Sequence[str], reads: Reads, services: Services
    ) -> list[ChatPrompt]:
        """Returns the prompts of one request with what their parts show, and tags in place of the parts.

        Args:
            prompts: The prompts; no text in them contains a tag.
            places: For each prompt the form of the fields of images, such as PLACE.
            reads: What the model reads.
            services: The services of the server.

        Raises:
            RequestError: The model cannot read a part, or it cannot be loaded.
        """
        raise NotImplementedError


def checked_part(part: Any, param: str, composition: Composition, *, of_tool: bool = False) -> Json:
    """Returns a part of a message's content in the form of chat, if it is well-formed.

    Args:
        part: The part; also one of the Responses API, which vLLM takes in chat, or a refusal.
        param: The field that it is in.
        composition: The features, of which some read parts that are no text.
        of_tool: Whether a tool returned it. Then a text takes the place of what is no text and cannot be read, such as
            a file by its id.

    Raises:
        BadRequest: It is not well-formed, or nothing reads parts of its type, and it is not such a part of a tool.
    """
    if not isinstance(part, dict):
        raise BadRequest(f"{_INVALID}content array should contain objects", param=param)
    kind = part.get("type")
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
    """Raises BadRequest unless what a part has by the name of its type is an object with a text in this member."""
    kind = part["type"]
    value = part.get(kind)
    if not isinstance(value, dict) or not isinstance(value.get(member), str):
        raise BadRequest(f"{_INVALID}{kind} does not have {member} field", param=f"{param}.{kind}")


def media_parts(messages: list[Json], kinds: Collection[str] = ()) -> Iterator[MediaPart]:
    """Yields the parts of these types, or of all but text where none is named."""
    for m, message in enumerate(messages):
        content = message.get("content")
        for p, part in enumerate(content if isinstance(content, list) else ()):
            if part["type"] in kinds if kinds else part["type"] != "text":
                yield MediaPart(part, m, p, message["role"] == "tool" or OF_TOOL in part)


async def parts_of(prompt: ChatPrompt, kinds: Collection[str], services: Services) -> list[MediaPart]:
    """Returns the parts of these types in a conversation, of which a long one is searched in a worker thread."""
    search = partial(lambda messages: [*media_parts(messages, kinds)], prompt.messages)
    return await services.offload.run(prompt.render_cost, search, inline_below=INLINE_CHARACTERS)


def with_texts(message: Json, kinds: Collection[str], texts: Iterator[str]) -> Json:
    """Returns the message with the next texts in place of its parts of these types."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = [{"type": "text", "text": next(texts)} if part["type"] in kinds else part for part in content]
    return {**message, "content": parts}


def refuse_media(messages: list[Json], why: str, composition: Composition, place: str = PLACE) -> None:
    """Raises BadRequest if there is a part that is no text.

    Args:
        messages: The messages of a chat.
        why: The reason that the error gives for images; parts of other types have reasons of their own.
        composition: The features that are built in.
        place: The form of the fields of images, for the error.
    """
    for found in media_parts(messages):
        raise _reader(found.part["type"], found.at, composition).refusal(found, place, why)


async def read_media(prompt: ChatPrompt, model: TextModel, services: Services) -> tuple[ChatPrompt, list[str]]:
    """Returns the prompt of an answer with all that its parts show, or texts in place of them, and lines about these.

    Raises RequestError.
    """
    notices: list[str] = []
    if not prompt.has_parts and model.image_tokens is None:
        return prompt, notices  # as nearly always
    if prompt.has_parts:

        async def find(prompt: ChatPrompt) -> list[ContentReader]:
            return await _readers([prompt], None, services)

        prompt, readers = await _leaving_out(prompt, find, notices, services)
        for reader in readers:
            prompt, lines = await reader.as_text(prompt, model, services)
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
    """Does some work with a prompt, in which texts replace the parts of tools' results that the work refuses.

    Args:
        prompt: The prompt.
        work: The work, which is done again for each such part.
        notices: Gets a line about each.
        services: The services of the server.

    Returns:
        The prompt that the work has taken, and its result.

    Raises:
        RequestError: The work refuses something else, or too many parts.
    """
    for _ in range(MOST_LEFT_OUT):
        try:
            return prompt, await work(prompt)
        except RequestError as error:
            prompt = await _without_part(prompt, error, notices, services)
    return prompt, await work(prompt)


async def _without_part(prompt: ChatPrompt, error: RequestError, notices: list[str], services: Services) -> ChatPrompt:
    """Returns the prompt with a text in place of the part that an error is about.

    Args:
        prompt: The prompt.
        error: The error.
        notices: Gets a line about the part.
        services: The services of the server.

    Raises:
        RequestError: The error, where it is about no part that a tool returned.
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
    """Returns the prompts of one request with what their parts show; long prompts are searched in a worker thread.

    Raises RequestError. The parameters are those of ContentReader.load.
    """
    if reads.tokens is None and not any(prompt.has_parts for prompt in prompts):
        return [*prompts]
    found = [*prompts]
    for reader in await _readers(found, reads.tokens, services):
        found = await reader.load(found, places, reads, services)
    return found


async def _readers(prompts: list[ChatPrompt], tokens: list[str] | None, services: Services) -> list[ContentReader]:
    """Returns what reads the parts of prompts that are no text, in the order of the features.

    Args:
        prompts: The prompts of one request.
        tokens: Texts that stand for what is no text, which nothing in a prompt may contain; None: all of the prompts is
            read as text.
        services: What the server's parts share.

    Raises:
        BadRequest: A text contains one of the tokens, or nothing reads parts of a type.
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
    """Returns what reads parts of a type, imported. Raises BadRequest for a type that no feature reads."""
    row = composition.contents.get(kind)
    if row is None:
        words = ["text", *(word for row in dict.fromkeys(composition.contents.values()) for word in row.words)]
        listed = " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
        verb = "are" if len(words) > 1 else "is"
        raise BadRequest(f"Unsupported content type: {listed} {verb} read, not {kind[:40]!r}", param=param)
    found: ContentReader = named(row.package, row.reader)
    return found


def plain_text(text: str, tokens: Iterable[str]) -> str:
    """Returns a text in which nothing stands for an image: such words get a zero-width space behind their first letter.

    Args:
        text: The text.
        tokens: The texts that stand for images in prompts of a model.
    """
    for token in (IMAGE_TAG_START, *tokens):
        if token in text:
            text = text.replace(token, f"{token[0]}\u200b{token[1:]}")
    return text


def _with_plain_answers(messages: list[Json], tokens: list[str]) -> list[Json] | None:
    """Returns the messages with the texts of the model and of tools as plain text; None: they are already.

    These come with each further request: a conversation in which a tool has read a page with such a word, or in which
    the model has written one, would be refused from then on.
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
    if not isinstance(arguments, str):
        return call
    return {**call, "function": {**call["function"], "arguments": plain_text(arguments, tokens)}}


def _refuse_tokens(prompt: ChatPrompt, tokens: list[str], kinds: Collection[str]) -> None:
    """Raises BadRequest if a string that may enter the prompt contains a tag, or a token that stands for an image."""
    places = {"messages": prompt.messages, "tools": prompt.tools, "chat_template_kwargs": prompt.template_kwargs}
    for place, value in places.items():
        for text in _texts(value, kinds):
            if IMAGE_TAG_START in text:
                raise BadRequest("Message contains restricted <ov_genai_image> tag", param=place)
            found = next((token for token in tokens if token in text), None) if "<" in text else None
            if found is not None:
                what = "audio" if "audio" in found else "an image"
                raise BadRequest(f"Message contains {found}, which stands for {what}", param=place)


def _texts(value: Any, kinds: Collection[str]) -> Iterator[str]:
    """Yields every string in a JSON value but what parts of these types have; iterative: clients choose the depth."""
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            stack += value
        elif isinstance(value, dict):
            stack += [*value, *(inner for key, inner in value.items() if key not in kinds)]
