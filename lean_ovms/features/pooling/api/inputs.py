"""Reads and checks the field `input` in all its forms, and the texts of documents and of pairs.

The rules and the error texts are those of OVMS (src/embeddings/embeddings_api.cpp) where it has the field, else vLLM's.
"""

from __future__ import annotations

from typing import Any

from ....api.fields import whole
from ....errors import BadRequest
from ....types import Json
from ..fields import MULTIMODAL_DATA, PROMPT_STRING
from ..types import TextOrTokens

INT32_MAX = 2**31 - 1


def is_conversation(value: Any) -> bool:
    """Returns whether the value is a list of messages, or a list of such lists."""
    return _is_messages(value) or (isinstance(value, list) and bool(value) and _is_messages(value[0]))


def _is_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def conversations(value: list[Any]) -> list[list[Json]]:
    """Returns a list of conversations, whether the value is such a list or the messages of one conversation."""
    return value if _is_messages(value[0]) else [value]


def with_texts(value: Any, name: str) -> Any:
    """Returns one input, or a list of several, in which each object with an input is replaced by that input.

    The objects are {"content": [parts]} of llama.cpp and OpenRouter, llama.cpp's {"prompt_string": input}, and Jina's
    {"text": text} and {"image": URL}. A list with images becomes one of conversations, each with an image or a text. An
    object with a role is a message.

    Args:
        value: The value of the field.
        name: The name of the field, for errors.

    Raises:
        BadRequest: An object has content other than text.
    """
    if not isinstance(value, list):
        return _with_text(value, name)
    if dict not in set(map(type, value)) or (isinstance(value[0], dict) and "role" in value[0]):
        return value
    found = [_with_text(item, f"{name}[{i}]") for i, item in enumerate(value)]
    return [_message(item) for item in found] if any(map(_is_image, found)) else found


def _is_image(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"image"}


def _message(value: Any) -> Any:
    """Returns the conversation of a text or an image among inputs with images. Other values are returned unchanged."""
    if _is_image(value):
        value = [{"type": "image_url", "image_url": {"url": value["image"]}}]
    elif not isinstance(value, str):
        return value
    return [{"role": "user", "content": value}]


def _with_text(value: Any, param: str) -> Any:
    if not isinstance(value, dict) or "role" in value:
        return value
    if PROMPT_STRING in value and MULTIMODAL_DATA not in value:
        return value[PROMPT_STRING]
    if value.keys() == {"text"} and isinstance(value["text"], str):
        return value["text"]
    if "content" not in value:
        return value
    return content_text(value, param, between="", why="images and audio are read from messages")


def read_inputs(value: Any, most: int, name: str = "input") -> list[TextOrTokens]:
    """Reads a field that has a string, several strings, the token ids of one input, or lists of token ids.

    Args:
        value: The value of the field.
        most: The most inputs that a request may have.
        name: The name of the field, for errors.

    Returns:
        The inputs, each a string or token ids.

    Raises:
        BadRequest: The value has none of these forms, or has too many inputs.
    """
    if value is None:
        raise BadRequest(f"{name} field is required", param=name)
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise BadRequest(f"{name} should be string, array of strings or array of integers", param=name)
    if not value:
        raise BadRequest(f"{name} array should not be empty", param=name)
    kinds = _kinds(value)
    if kinds == {int}:
        return [_tokens(value, name, name)]
    check_count(len(value), most, name)
    if kinds == {str}:
        return list(value)
    if kinds == {list}:
        if {type(tokens[0]) for tokens in value if tokens} == {int, str}:
            raise BadRequest(f"{name} must be homogeneous", param=name)
        return [_inner(tokens, name, f"{name}[{i}]") for i, tokens in enumerate(value)]
    raise BadRequest(_wrong_kinds(name, kinds), param=name)


def _kinds(values: list[Any]) -> set[type]:
    """Returns the types of the values. A float that is a whole number is replaced by an integer in the list."""
    kinds = set(map(type, values))
    if float in kinds:
        values[:] = map(whole, values)
        kinds = set(map(type, values))
    return kinds


def _wrong_kinds(name: str, kinds: set[type]) -> str:
    if len(kinds) > 1 and kinds <= {str, int, list}:
        return f"{name} must be homogeneous"
    return f"every element in {name} array should be either string or int"


def _inner(tokens: list[Any], name: str, param: str) -> list[int]:
    """Checks one input that is a list of token ids, and returns the ids."""
    if not tokens:
        raise BadRequest(f"inner arrays in {name} should not be empty", param=param)
    kinds = _kinds(tokens)
    if kinds == {str}:
        raise BadRequest(f"{name} must be either array of strings or array of array of integers", param=param)
    if len(kinds) > 1 and type(tokens[0]) in (str, int):
        raise BadRequest(f"{name} must be homogeneous", param=param)
    if kinds != {int}:
        raise BadRequest(_wrong_kinds(name, kinds), param=param)
    return _tokens(tokens, name, param)


def _tokens(tokens: list[int], name: str, param: str) -> list[int]:
    """Returns the ids if all fit in 32 bits, else raises BadRequest. The engine checks the vocabulary later."""
    if max(tokens) > INT32_MAX or min(tokens) < -INT32_MAX - 1:
        raise BadRequest(f"every element in {name} array should be either string or int", param=param)
    return tokens


def check_count(count: int, most: int, name: str) -> None:
    """Raises BadRequest if there are more than `most` elements."""
    if count > most:
        raise BadRequest(
            f"{name} has {count} elements; the maximum allowed count is {most}", param=name, code="too_many_inputs"
        )


def content_text(value: Any, param: str, *, between: str = "\n", why: str = "this model reads text only") -> str:
    """Returns the text of a string or of an object {"content": [parts]}.

    Args:
        value: The string or object.
        param: The path of the value in the body, for errors.
        between: The text between the texts of two parts.
        why: The reason why other parts are refused, for errors.

    Raises:
        BadRequest: The value is something else, or has parts that are not texts.
    """
    if isinstance(value, str):
        return value
    content = value.get("content") if isinstance(value, dict) else None
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise BadRequest(f"{param} is neither a string nor an object with content", param=param)
    return between.join(_part(part, f"{param}.content[{i}]", why) for i, part in enumerate(content))


def _part(part: Any, param: str, why: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise BadRequest(f"{param} is not a part of type text: {why}", param=param)
    text: str = part["text"]
    return text
