"""How much there is in a conversation, before it is rendered."""

from __future__ import annotations

from ..shapes import ChatPrompt


def characters(prompt: ChatPrompt) -> int:
    """Of the content of all messages."""
    contents = [message.get("content") for message in prompt.messages]
    size = sum([len(content) for content in contents if isinstance(content, str)])
    for content in contents:
        if isinstance(content, list):
            size += sum(len(part["text"]) for part in content if isinstance(part.get("text"), str))
    return size


def work(prompt: ChatPrompt) -> int:
    """About how much there is to render, in characters; a message or a tool takes as long as a few thousand."""
    return characters(prompt) + 2000 * (len(prompt.messages) + len(prompt.tools))
