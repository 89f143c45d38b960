"""Records what Hugging Face transformers renders: python tests/text/template/record_templates.py (needs transformers).

The result, tests/vectors/templates.json, has the rendered text of every template and conversation, or null if
transformers raises an error. The date is fixed.
"""

from __future__ import annotations

import json

from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from tests.text.template.template_cases import DATA, TEMPLATES, TOKENS, VECTORS, Case, FixedDate, for_transformers


def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_file=str(DATA / "llama_sp" / "tokenizer.json"), **TOKENS)


def rendered(tokenizer: PreTrainedTokenizerFast, source: str, case: Case) -> str | None:
    """Returns transformers' text, or None if it raises an error."""
    try:
        text = tokenizer.apply_chat_template(
            case.messages,
            tools=case.tools,
            chat_template=source,
            tokenize=False,
            add_generation_prompt=case.add_generation_prompt,
            continue_final_message=case.continue_final_message,
            **case.kwargs,
        )
    except Exception:
        return None
    return str(text)


def render_all() -> dict[str, dict[str, str | None]]:
    one = tokenizer()
    rows = {name: for_transformers(name) for name in TEMPLATES}
    return {
        name: {case: rendered(one, source, ask) for case, ask in cases.items()}
        for name, (source, cases) in rows.items()
    }


if __name__ == "__main__":
    chat_template_utils.datetime = FixedDate
    VECTORS.write_text(json.dumps(render_all(), ensure_ascii=False, indent=1) + "\n")
