"""The grammar of a custom tool, in OpenAI's two syntaxes, as the pattern of its text.

https://platform.openai.com/docs/guides/function-calling#context-free-grammars
"""

from __future__ import annotations

from ..errors import GrammarInvalid
from ..text.grammar import lark, regex
from ..text.grammar.ebnf import Ebnf

SYNTAXES = ("regex", "lark")


def pattern(syntax: object, definition: object) -> str:
    """For a JSON schema. Raises GrammarInvalid for what is no regular expression, or none that can be imposed."""
    if syntax not in SYNTAXES or not isinstance(definition, str):
        raise GrammarInvalid(f"it has a syntax, one of {', '.join(SYNTAXES)}, and a definition")
    try:
        expression = definition if syntax == "regex" else lark.as_pattern(definition)
        regex.pattern(expression, Ebnf())
    except regex.NotSupported as error:
        raise GrammarInvalid(str(error)) from None
    return f"^(?:{expression})$"
