"""The chat templates that llama.cpp knows by name (--chat-template chatml), for models whose files have none.

https://github.com/ggml-org/llama.cpp/wiki/Templates-supported-by-llama_chat_apply_template
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
_EXAONE = _loop(
    _roles("[|system|]{trimmed}[|endofturn|]\n", "[|user|]{trimmed}\n", "[|assistant|]{trimmed}[|endofturn|]\n"),
    "[|assistant|]",
)
_GPT4 = "GPT4 Correct %s: {}<|end_of_turn|>"
_LING = ("<role>SYSTEM</role>{}", "<role>HUMAN</role>{}", "<role>ASSISTANT</role>{}")
_GRANITE = _same(
    "<|start_of_role|>", "<|end_of_role|>{}", "<|end_of_text|>\n", "<|start_of_role|>assistant<|end_of_role|>"
)
_KIMI = "<|im_%s|>%s<|im_middle|>"
_PANGU = "[unused9]%s："
TEMPLATES = {
    "bailing": _loop(_roles(*_LING), "<role>ASSISTANT</role>"),
    "bailing-think": _loop(_roles(*_LING), "<role>ASSISTANT</role><think>"),
    "bailing2": "{% if messages[0]['role'] != 'system' %}"
    + _written("<role>SYSTEM</role>detailed thinking off<|role_end|>")
    + "{% endif %}"
    + _loop(_roles(*(text + "<|role_end|>" for text in _LING)), "<role>ASSISTANT</role>"),
    "chatglm3": "[gMASK]sop" + _same("<|", "|>\n {}", "", "<|assistant|>"),
    "chatglm4": "[gMASK]<sop>" + _same("<|", "|>\n{}", "", "<|assistant|>\n"),
    "chatml": _same("<|im_start|>", "\n{}", "<|im_end|>\n", "<|im_start|>assistant\n"),
    "command-r": BOS
    + _loop(
        _roles(*(_COHERE % role + "{trimmed}<|END_OF_TURN_TOKEN|>" for role in ("SYSTEM", "USER", "CHATBOT"))),
        _COHERE % "CHATBOT",
    ),
    "deepseek": BOS + _loop(_roles("{}", "### Instruction:\n{}\n", "### Response:\n{}\n<|EOT|>\n"), "### Response:\n"),
    "deepseek-ocr": BOS + _loop(_roles("{}", "{}", "{}")),
    "deepseek2": BOS + _loop(_roles("{}\n\n", "User: {}\n\n", "Assistant: {}<｜end▁of▁sentence｜>"), "Assistant:"),
    "deepseek3": BOS
    + _loop(_roles("{}\n\n", "<｜User｜>{}", "<｜Assistant｜>{}<｜end▁of▁sentence｜>"), "<｜Assistant｜>"),
    "exaone-moe": _same("<|", "|>\n{trimmed}", "<|endofturn|>\n", "<|assistant|>\n"),
    "exaone3": _EXAONE,
    "exaone4": _EXAONE,
    "falcon3": _same("<|", "|>\n{}", "\n", "<|assistant|>\n"),
    "gemma": _system_in_user(
        "<start_of_turn>user\n",
        "{trimmed}<end_of_turn>\n",
        "<start_of_turn>model\n{trimmed}<end_of_turn>\n",
        "<start_of_turn>model\n",
    ),
    "gigachat": "<s>"
    + _loop(
        _roles(
            "{}<|message_sep|>",
            "user<|role_sep|>{}<|message_sep|>available functions<|role_sep|>[]<|message_sep|>",
            "assistant<|role_sep|>{}<|message_sep|>",
        ),
        "assistant<|role_sep|>",
    ),
    "glmedge": _same("<|", "|>\n{}", "", "<|assistant|>"),
    "gpt-oss": _loop(
        _roles(
            "<|start|>system<|message|>{}<|end|>",
            "<|start|>user<|message|>{}<|end|>",
            "<|start|>assistant<|message|>{}<|return|>",
        ),
        "<|start|>assistant",
    ),
    "granite": _GRANITE,
    "granite-4.0": _GRANITE,
    "granite-4.1": _GRANITE,
    "grok-2": _loop(
        _roles(
            "System: {trimmed}<|separator|>\n\n", "Human: {trimmed}<|separator|>\n\n", "Assistant: {}<|separator|>\n\n"
        ),
        "Assistant:",
    ),
    "hunyuan-dense": BOS
    + _loop(
        _roles(
            "{}<｜hy_place▁holder▁no▁3｜>",
            "<｜hy_User｜>{}<｜hy_Assistant｜>",
            "<｜hy_Assistant｜>{}<｜hy_place▁holder▁no▁2｜>",
        )
    ),
    "hunyuan-moe": _loop(_roles("<|startoftext|>{}<|extra_4|>", "<|startoftext|>{}<|extra_0|>", "{}<|eos|>")),
    "hunyuan-vl": "<｜hy_begin▁of▁sentence｜>"
    + _loop(_roles("{}<｜hy_place▁holder▁no▁3｜>", "{}<｜hy_User｜>", "{}<｜hy_Assistant｜>")),
    "kimi-k2": _loop(
        _roles(*(_KIMI % (role, role) + "{}<|im_end|>" for role in ("system", "user", "assistant"))),
        _KIMI % ("assistant", "assistant"),
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
    "llama4": BOS
    + _same(
        "<|header_start|>",
        "<|header_end|>\n\n{trimmed}",
        "<|eot|>",
        "<|header_start|>assistant<|header_end|>\n\n",
    ),
    "megrez": _same("<|role_start|>", "<|role_end|>{}", "<|turn_end|>", "<|role_start|>assistant<|role_end|>"),
    "minicpm": BOS + _loop(_roles("{trimmed}", "<用户>{trimmed}<AI>", "{trimmed}")),
    "mistral-v1": _turns(" [INST] ", "{}\n\n", "{} [/INST]", " {}</s>"),
    "mistral-v3": _turns("[INST] ", "{}\n\n", "{}[/INST]", " {trimmed}</s>"),
    "mistral-v3-tekken": _turns("[INST]", "{}\n\n", "{}[/INST]", "{}</s>"),
    "mistral-v7": BOS + _loop(_roles("[SYSTEM_PROMPT] {}[/SYSTEM_PROMPT]", "[INST] {}[/INST]", " {}</s>")),
    "mistral-v7-tekken": BOS + _loop(_roles("[SYSTEM_PROMPT]{}[/SYSTEM_PROMPT]", "[INST]{}[/INST]", "{}</s>")),
    "monarch": _same("<s>", "\n{}", "</s>\n", "<s>assistant\n"),
    "openchat": BOS
    + _loop(_roles("{}<|end_of_turn|>", _GPT4 % "User", _GPT4 % "Assistant"), "GPT4 Correct Assistant:"),
    "orion": _system_in_user("Human: ", "{}\n\nAssistant: </s>", "{}</s>"),
    "pangu-embedded": "{% if messages[0]['role'] != 'system' %}"
    + _written(_PANGU % "系统" + "[unused10]")
    + "{% endif %}"
    + _loop(_roles(*(_PANGU % role + "{}[unused10]" for role in ("系统", "用户", "助手"))), _PANGU % "助手"),
    "phi3": _same("<|", "|>\n{}", "<|end|>\n", "<|assistant|>\n"),
    "phi4": _same("<|im_start|>", "<|im_sep|>{}", "<|im_end|>", "<|im_start|>assistant<|im_sep|>"),
    "rwkv-world": _loop(
        _roles("System: {trimmed}\n\n", "User: {trimmed}\n\n", "Assistant: {trimmed}\n\n"), "Assistant:"
    ),
    "seed_oss": _loop(
        _roles(
            "<seed:bos>system\n{}<seed:eos>",
            "<seed:bos>user\n{}<seed:eos>",
            "<seed:bos>assistant\n{trimmed}<seed:eos>",
        ),
        "<seed:bos>assistant\n",
    ),
    "smolvlm": "<|im_start|>"
    + _loop(_roles("{}\n\n", "User: {}<end_of_utterance>\n", "Assistant: {}<end_of_utterance>\n"), "Assistant:"),
    "solar-open": _same("<|begin|>", "<|content|>{}", "<|end|>", "<|begin|>assistant"),
    "vicuna": BOS + _loop(_roles("{}\n\n", "USER: {}\n", "ASSISTANT: {}</s>\n"), "ASSISTANT:"),
    "vicuna-orca": BOS + _loop(_roles("SYSTEM: {}\n", "USER: {}\n", "ASSISTANT: {}</s>\n"), "ASSISTANT:"),
    "yandex": BOS + _loop(_roles("", " Пользователь: {}\n\n", " Ассистент: {}\n\n"), " Ассистент:[SEP]"),
    "zephyr": _same("<|", "|>\n{}", "<|endoftext|>\n", "<|assistant|>\n"),
}
"""The templates by llama.cpp's names."""


def named(text: str) -> str:
    """Returns the template of this name, or the text, which is a file or a template, if it is no name."""
    return TEMPLATES.get(text, text)
