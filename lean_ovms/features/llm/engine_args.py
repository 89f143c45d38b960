"""EngineArgs, as in vLLM: the options of LLM on a script's command line."""

from __future__ import annotations

import argparse
from typing import Any, TypeVar

from ...config import listed
from ..foreign_flags import command_line

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)


class EngineArgs:
    """The options of a model that a script reads from its command line.

    Its attributes are the options that were given, so that `LLM(**vars(args))` makes the model.
    """

    def __init__(self, **options: Any) -> None:
        vars(self).update(options)

    @staticmethod
    def add_cli_args(parser: Parser) -> Parser:
        """Adds the options of LLM, and known ones of vLLM, to a script's parser, and returns the parser.

        The parser's results have only the options that are on the command line.
        """
        flags, known = command_line.known(), {row.name: row for row in listed()}
        of_vllm = {name for alias in flags.aliases if "vLLM" in alias.server for name in alias.names}
        for name in sorted({"model", *known, *of_vllm, *flags.ignored}):
            spelt = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))
            # An option without a value is a switch. LLM converts values from text, as the server does.
            parser.add_argument(
                *spelt,
                dest=name,
                nargs="?",
                const=True,
                default=argparse.SUPPRESS,
                help=known[name].metadata["help"].replace("%", "%%") if name in known else argparse.SUPPRESS,
            )
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> EngineArgs:
        """Returns the options among the results of a parser."""
        return cls(**vars(args))
