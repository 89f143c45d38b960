"""What a developer says, for models whose chat template does not know that role.

OpenAI's newer clients call their system messages so. Many templates drop such a message without a word, some refuse it;
then it is a system message. Knows models, no endpoint.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from ...errors import BadRequest
from ...models.text_model import TextModel
from ...types import ChatPrompt, Json

_reading: WeakKeyDictionary[TextModel, bool] = WeakKeyDictionary()


def map_developer_role(messages: list[Json], model: TextModel) -> list[Json]:
    """The messages with roles that the model's template shows. Raises RequestError while that is not known."""
    if not any(message["role"] == "developer" for message in messages) or _reads(model):
        return messages
    return [{**message, "role": "system"} if message["role"] == "developer" else message for message in messages]


def _reads(model: TextModel) -> bool:
    if model not in _reading:
        probe = "probe9needle"
        messages = [{"role": "developer", "content": probe}, {"role": "user", "content": "Hey"}]
        try:
            _reading[model] = model.shows(ChatPrompt(messages=messages), probe)
        except BadRequest:
            _reading[model] = False
    return _reading[model]
