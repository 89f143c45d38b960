"""The chat templates that llama.cpp knows by name (--chat-template chatml), for models whose files have none.

https://github.com/ggml-org/llama.cpp/wiki/Templates-supported-by-llama_chat_apply_template. Those of newer families
are left out, since the files of their models have them.
"""

from __future__ import annotations

CONTENT = "message['content']"
PLACES = {"{}": CONTENT, "{trimmed}": f"({CONTENT} | trim)"}
"""The places of a message's content in the texts below, and their expressions."""
BOS = "{{ bos_token }}"


def _written(text: str) -> str:
    """Returns the Jinja code that writes a text, with the content of a message at one of PLACES."""
    for place, expression in PLACES.items():
        before, found, after = text.partition(place)
        if found:
            return f"{{{{ {before!r} + {expression} + {after!r} }}}}"
    return f"{{{{ {text!r} }}}}"


def _roles(system: str, user: str, assistant: str) -> str:
    """Returns the Jinja code that writes a message, given the text for each role."""
    texts = {"system": system, "user": user, "assistant": assistant}
    branches = [f"if message['role'] == '{role}' %}}{_written(text)}" for role, text in texts.items()]
    return "{% " + "{% el".join(branches) + "{% endif %}"


def _loop(body: str, start: str = "") -> str:
    """Returns the Jinja code that applies `body` to each message, and then writes the text that begins an answer."""
    answer = f"{{% if add_generation_prompt %}}{_written(start)}{{% endif %}}" if start else ""
    return f"{{% for message in messages %}}{body}{{% endfor %}}{answer}"


def _same(before: str, between: str, after: str, start: str) -> str:
    """Returns a template in which the messages of all roles look alike."""
    return _loop(f"{{{{ {before!r} + message['role'] }}}}{_written(between + after)}", start)


def _turns(begin: str, system: str, user: str, assistant: str, first: str = "") -> str:
    """Returns a template in which a turn begins with `begin`, the first one with `first` if that is not empty."""
    again = _written(begin)
    opening = f"{{% if loop.first %}}{_written(first)}{{% else %}}{again}{{% endif %}}" if first else again
    begins = "{% if loop.first or messages[loop.index0 - 1]['role'] == 'assistant' %}"
    return BOS + _loop(f"{begins}{opening}{{% endif %}}{_roles(system, user, assistant)}")


def _system_in_user(before: str, user: str, assistant: str, start: str = "") -> str:
    """Returns a template that writes the system message between the two texts of the next message of the user."""
    return (
        BOS
        + "{% set system = namespace(text='') %}"
        + _loop(
            f"{{% if message['role'] == 'system' %}}{{% set system.text = system.text + {CONTENT} | trim + '\\n\\n' %}}"
            f"{{% elif message['role'] == 'user' %}}{_written(before)}{{{{ system.text }}}}{{% set system.text = '' %}}"
            f"{_written(user)}{{% elif message['role'] == 'assistant' %}}{_written(assistant)}{{% endif %}}",
            start,
        )
    )


_SYS = "<<SYS>>\n{}\n<</SYS>>\n\n"
_COHERE = "<|START_OF_TURN_TOKEN|><|%s_TOKEN|>"
_GPT4 = "GPT4 Correct %s: {}<|end_of_turn|>"
TEMPLATES = {
    "chatml": _same("<|im_start|>", "\n{}", "<|im_end|>\n", "<|im_start|>assistant\n"),
    "command-r": BOS
    + _loop(
        _roles(*(_COHERE % role + "{trimmed}<|END_OF_TURN_TOKEN|>" for role in ("SYSTEM", "USER", "CHATBOT"))),
        _COHERE % "CHATBOT",
    ),
    "deepseek": BOS + _loop(_roles("{}", "### Instruction:\n{}\n", "### Response:\n{}\n<|EOT|>\n"), "### Response:\n"),
    "deepseek3": BOS
    + _loop(_roles("{}\n\n", "<｜User｜>{}", "<｜Assistant｜>{}<｜end▁of▁sentence｜>"), "<｜Assistant｜>"),
    "exaone3": _loop(
        _roles("[|system|]{trimmed}[|endofturn|]\n", "[|user|]{trimmed}\n", "[|assistant|]{trimmed}[|endofturn|]\n"),
        "[|assistant|]",
    ),
    "falcon3": _same("<|", "|>\n{}", "\n", "<|assistant|>\n"),
    "gemma": _system_in_user(
        "<start_of_turn>user\n",
        "{trimmed}<end_of_turn>\n",
        "<start_of_turn>model\n{trimmed}<end_of_turn>\n",
        "<start_of_turn>model\n",
    ),
    "llama2": _turns("[INST] ", "{}\n", "{} [/INST]", "{}</s>"),
    "llama2-sys": _turns("[INST] ", _SYS, "{} [/INST]", "{}</s>"),
    "llama2-sys-bos": _turns("<s>[INST] ", _SYS, "{} [/INST]", "{}</s>", first="[INST] "),
    "llama2-sys-strip": _turns("[INST] ", _SYS.replace("{}", "{trimmed}"), "{trimmed} [/INST]", "{trimmed}</s>"),
    "llama3": BOS
    + _same(
        "<|start_header_id|>",
        "<|end_header_id|>\n\n{trimmed}",
        "<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "mistral-v1": _turns(" [INST] ", "{}\n\n", "{} [/INST]", " {}</s>"),
    "mistral-v3": _turns("[INST] ", "{}\n\n", "{}[/INST]", " {trimmed}</s>"),
    "mistral-v3-tekken": _turns("[INST]", "{}\n\n", "{}[/INST]", "{}</s>"),
    "mistral-v7": BOS + _loop(_roles("[SYSTEM_PROMPT] {}[/SYSTEM_PROMPT]", "[INST] {}[/INST]", " {}</s>")),
    "mistral-v7-tekken": BOS + _loop(_roles("[SYSTEM_PROMPT]{}[/SYSTEM_PROMPT]", "[INST]{}[/INST]", "{}</s>")),
    "monarch": _same("<s>", "\n{}", "</s>\n", "<s>assistant\n"),
    "openchat": BOS
    + _loop(_roles("{}<|end_of_turn|>", _GPT4 % "User", _GPT4 % "Assistant"), "GPT4 Correct Assistant:"),
    "orion": _system_in_user("Human: ", "{}\n\nAssistant: </s>", "{}</s>"),
    "phi3": _same("<|", "|>\n{}", "<|end|>\n", "<|assistant|>\n"),
    "phi4": _same("<|im_start|>", "<|im_sep|>{}", "<|im_end|>", "<|im_start|>assistant<|im_sep|>"),
    "vicuna": BOS + _loop(_roles("{}\n\n", "USER: {}\n", "ASSISTANT: {}</s>\n"), "ASSISTANT:"),
    "vicuna-orca": BOS + _loop(_roles("SYSTEM: {}\n", "USER: {}\n", "ASSISTANT: {}</s>\n"), "ASSISTANT:"),
    "zephyr": _same("<|", "|>\n{}", "<|endoftext|>\n", "<|assistant|>\n"),
}
"""The templates by llama.cpp's names."""


def named(text: str) -> str:
    """Returns the template of this name, or the text, which is a file or a template, if it is no name."""
    return TEMPLATES.get(text, text)
