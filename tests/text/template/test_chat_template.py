"""Chat templates: where they are found, which fields clients may set, and how they fail."""

from __future__ import annotations

import pytest

from lean_ovms.errors import BadRequest, StartError
from lean_ovms.repository.model_dir import ModelDir
from lean_ovms.text.template import sandbox
from lean_ovms.text.template.chat_template import ChatTemplate, TemplateSettings
from lean_ovms.types import ChatPrompt

PLAIN = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
HI = [{"role": "user", "content": "Hi"}]


def render(source, messages=HI, **prompt):
    return ChatTemplate(source).render(ChatPrompt(messages=messages, **prompt))


def refusal(source, messages=HI, **prompt):
    with pytest.raises(BadRequest) as error:
        render(source, messages, **prompt)
    return error.value


# --- what a template gets ------------------------------------------------------------------------------------------


TOOLS = "{{ tools is defined }} {{ tools }} {{ documents is none }}"
CONTINUED = {"continue_final_message": True}


@pytest.mark.parametrize(
    ("source", "prompt", "text"),
    [
        (PLAIN, {}, "[user]Hi[assistant]"),
        (PLAIN, {"add_generation_prompt": False}, "[user]Hi"),
        (PLAIN, {"template_kwargs": {"add_generation_prompt": False}}, "[user]Hi"),
        (PLAIN, {"messages": [*HI, {"role": "assistant", "content": None}], **CONTINUED}, "[user]Hi[assistant]"),
        ("{{ bos_token }}{{ pad_token }}{{ eos_token }}.", {}, "<s><p>."),
        (TOOLS, {}, "True None True"),
        (TOOLS, {"tools": [{"a": 1}]}, "True [{'a': 1}] True"),
        (TOOLS, {"template_kwargs": {"documents": []}}, "True None False"),
        ("{{ off }}{{ deep.a[0] }}", {"template_kwargs": {"off": False, "deep": {"a": [7]}}}, "False7"),
        ("{{ self_ }}{{ context }}", {"template_kwargs": {"self_": 1, "context": 2}}, "12"),
        ("{{ messages[0].content }}", {"template_kwargs": dict.fromkeys(("self", "name", "args", "range"), 1)}, "Hi"),
    ],
)
def test_what_a_template_gets(source, prompt, text):
    template = ChatTemplate(source, special_tokens={"bos_token": "<s>", "pad_token": "<p>"})
    assert template.render(ChatPrompt(**{"messages": HI, **prompt})) == text


@pytest.mark.parametrize(
    "name", ["messages", "tools", "bos_token", "eos_token", "chat_template", "tokenize", "conversation", "return_dict"]
)
def test_reserved_arguments_are_refused(name):
    error = refusal(PLAIN, template_kwargs={name: "x", "fine": 1})
    assert error.message == f"chat_template_kwargs must not set {name}"
    assert error.param == "chat_template_kwargs"


def test_the_end_of_a_prompt_is_set_by_true_or_false():
    error = refusal(PLAIN, template_kwargs={"add_generation_prompt": "yes"})
    assert error.message == "add_generation_prompt accepts values true or false"


def test_the_template_for_tools_is_used_with_tools():
    template = ChatTemplate("plain", "tools")
    assert template.render(ChatPrompt(messages=HI)) == "plain"
    assert template.render(ChatPrompt(messages=HI, tools=[{}])) == "tools"
    assert template.source == "plain"


def test_what_a_client_sent_is_never_written_to():
    source = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.arguments.items() | list }}{% endfor %}{% endfor %}"
    )
    call = {"function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [{"role": "assistant", "content": [], "tool_calls": [call]}, *HI]
    text = render(source, messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("[('a', 1)]Hi")
    assert messages == [
        {"role": "assistant", "content": [], "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}]},
        {"role": "user", "content": "Hi"},
    ]


# --- continue_final_message ----------------------------------------------------------------------------------------


def test_the_prompt_ends_inside_the_final_message():
    last = [*HI, {"role": "assistant", "content": "It is "}]
    source = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    assert render(source, last, add_generation_prompt=False, continue_final_message=True) == "<Hi><It is "
    trimmed = source.replace("content", "content | trim")
    assert render(trimmed, last, add_generation_prompt=False, continue_final_message=True) == "<Hi><It is"


@pytest.mark.parametrize(
    ("source", "messages", "says"),
    [
        ("{{ messages[0].content }}", [*HI, {"role": "assistant", "content": "x"}], "changes or drops"),
        ("{{ messages[-1].content | upper }}", HI, "changes or drops"),
        (PLAIN, [*HI, {"role": "assistant", "content": [{"type": "image_url"}]}], "no text to continue"),
        (PLAIN, [], "no text to continue"),
    ],
)
def test_a_final_message_that_cannot_be_continued_is_refused(source, messages, says):
    error = refusal(source, messages, add_generation_prompt=False, continue_final_message=True)
    assert says in error.message
    assert error.param == "continue_final_message"


# --- failures ------------------------------------------------------------------------------------------------------


def test_no_template():
    template = ChatTemplate("")
    with pytest.raises(BadRequest) as error:
        template.render(ChatPrompt(messages=HI))
    assert error.value.message == "Error: Chat template not loaded correctly, so it cannot be applied"
    assert template.problem == error.value.message


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ raise_exception('Roles must alternate') }}", "Roles must alternate"),
        ("{{ messages[5].content }}", "the chat template failed: list object has no element 5"),
        ("{{ nothing.at.all }}", "the chat template failed: 'nothing' is undefined"),
        ("{{ 'a' + 1 }}", "the chat template failed: TypeError: can only concatenate str"),
        ("{{ 1 / 0 }}", "the chat template failed: ZeroDivisionError"),
        ("{{ ''.__class__.mro() }}", "the chat template failed: access to attribute '__class__'"),
        ("{{ messages.append(1) }}", "the chat template failed: access to attribute 'append'"),
        ("{{ 'x' * 10**9 }}", "the chat template failed: it makes a value with more than"),
        ("{{ 'x' | unheard_of }}", "the chat template is invalid: No filter named 'unheard_of'. (line 1)"),
        ("\n{% if %}", "the chat template is invalid: Expected an expression"),
        ("{% endfor %}", "the chat template is invalid: "),
        ("{% include 'a/b' %}", "the chat template failed: "),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested too deeply"),
        ("{{ '' }}", "Final prompt after applying chat template is empty"),
    ],
)
@pytest.mark.slow
def test_every_other_failure_is_one_line_without_paths(source, says):
    message = refusal(source).message
    assert says in message
    assert "\n" not in message
    assert ".py" not in message
    assert len(message) < 1100


def test_an_include_that_is_not_there_does_not_show_the_directory(tmp_path):
    template = ChatTemplate("{% include 'part.jinja' %}", directory=tmp_path)
    with pytest.raises(BadRequest) as error:
        template.render(ChatPrompt(messages=HI))
    assert (
        error.value.message
        == "the chat template failed: it includes part.jinja, which does not exist in the model's directory"
    )


def test_a_prompt_without_end_is_cut_off(monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_CHARS", 1000)
    assert "has more than 1000 characters" in refusal("{% for i in range(200) %}{{ '123456' }}{% endfor %}").message


def test_half_a_surrogate_pair_in_earlier_arguments_does_no_harm():
    template = ChatTemplate(
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}{% endfor %}{% endfor %}"
    )
    call = {"function": {"name": "f", "arguments": '{"a": "x\\ud83dy", "b": "\\ud83d\\ude42"}'}}
    text = template.render(ChatPrompt(messages=[{"role": "assistant", "content": "", "tool_calls": [call]}]))
    assert text == "a=x\ufffdyb=🙂"


@pytest.mark.slow
def test_deeply_nested_arguments_are_an_error_not_a_crash():
    deep: dict = {}
    for _ in range(20_000):
        deep = {"a": deep}
    assert "nested too deeply" in refusal("{{ deep | tojson }}", template_kwargs={"deep": deep}).message


# --- where templates come from -------------------------------------------------------------------------------------


def loaded(directory, **more):
    return ChatTemplate.load(directory, **more).render(ChatPrompt(messages=HI))


def test_the_order_of_sources():
    everything = ModelDir(chat_template="jinja file", fallback_template="json files")
    assert loaded(everything, override="{# #}override", from_tokenizer="tokenizer") == "override"
    assert loaded(everything, from_tokenizer="tokenizer") == "jinja file"
    assert loaded(ModelDir(fallback_template="json files"), from_tokenizer="tokenizer") == "tokenizer"
    assert loaded(ModelDir(fallback_template="json files")) == "json files"


def test_an_override_is_a_file_or_a_text_and_replaces_the_template_for_tools(tmp_path):
    file = tmp_path / "t.jinja"
    file.write_text("\ufefffrom a file")
    assert loaded(ModelDir(chat_template="x"), override=str(file)) == "from a file"
    template = ChatTemplate.load(ModelDir(tool_template="for tools"), override="{{ 'text' }}")
    assert template.render(ChatPrompt(messages=HI, tools=[{}])) == "text"


@pytest.mark.parametrize("override", ["no/such/file.jinja", "{% if %}", "a\0b"])
def test_a_wrong_override_stops_the_start(override):
    with pytest.raises(StartError, match="--chat_template"):
        ChatTemplate.load(ModelDir(), override=override)


def test_a_broken_template_of_the_model_does_not_stop_the_start():
    template = ChatTemplate.load(ModelDir(chat_template="{% if %}"))
    assert "invalid" in template.problem
    assert ChatTemplate.load(ModelDir(chat_template="x")).problem == ""


def test_the_engines_special_tokens_go_before_the_directorys():
    directory = ModelDir(
        chat_template="{{ bos_token }}{{ eos_token }}", special_tokens={"bos_token": "B", "eos_token": "E"}
    )
    assert loaded(directory, bos_token="<s>", eos_token="") == "<s>E"


@pytest.mark.parametrize(("form", "shown"), [("auto", "a\nb"), ("string", "a\nb"), ("openai", "{parts}")])
def test_a_template_that_nobody_asked_gets_what_clients_send(form, shown):
    parts = [{"type": "text", "text": text} for text in "ab"]
    talk = [{"role": role, "content": role} for role in ("user", "user", "system")]
    template = ChatTemplate(
        "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}",
        settings=TemplateSettings(content_format=form),
    )
    text = template.render(ChatPrompt(messages=[{"role": "user", "content": parts}]))
    assert text == f"user:{shown.format(parts=parts)};"
    text = template.render(ChatPrompt(messages=talk, tools=[{"type": "function", "function": {"name": "f"}}]))
    assert [line.partition(":")[0] for line in text.split(";")] == ["user", "user", "system", ""]
    with pytest.raises(BadRequest, match="role must be one of"):
        template.render(ChatPrompt(messages=[{"role": "critic", "content": "x"}]))
