"""A chat prompt measures its messages only once."""

from __future__ import annotations

from lean_ovms.types import ChatPrompt, Image

TEXT = {"role": "user", "content": "Hello"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": "x"}}]}


def test_the_characters_of_all_contents_are_counted() -> None:
    prompt = ChatPrompt(messages=[TEXT, PARTS, {"role": "assistant", "content": None}, {"role": "assistant"}])

    assert (prompt.num_chars, prompt.has_parts) == (8, True)
    assert not ChatPrompt(messages=[TEXT]).has_parts


def test_a_message_or_a_tool_costs_as_much_as_2000_characters_to_render() -> None:
    assert ChatPrompt(messages=[TEXT], tools=[{}, {}]).render_cost == 5 + 3 * 2000
    assert ChatPrompt(messages=[TEXT], template_kwargs={"a": 1, "b": 2}).render_cost == 5 + 2000 + 4 + 2 * 20


def test_a_prompt_with_images_has_the_size_of_the_clients_messages() -> None:
    prompt = ChatPrompt(messages=[PARTS], add_special_tokens=True)
    tagged = [{"role": "user", "content": [{"type": "text", "text": "See"}, {"type": "text", "text": "<image 0>"}]}]
    image = Image(1, 1, b"rgb")

    shown = prompt.with_media(tagged, (image,))

    assert (shown.messages, shown.images, shown.add_special_tokens) == (tagged, (image,), True)
    assert (shown.num_chars, shown.has_parts) == (prompt.num_chars, prompt.has_parts) == (3, True)
    assert (prompt.messages, prompt.images) == ([PARTS], ())
