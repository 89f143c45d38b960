"""Completion of flags for a shell: `lean_ovms --completion bash`, printed for the shell to read."""

from __future__ import annotations

from ..config import shown
from ..errors import StartError
from .commands import commands

NAMES = ("lean_ovms", "lean-ovms")
"""Names under which the command is installed."""


def script(shell: str) -> str:
    """Returns the script for bash, zsh or fish. Raises StartError for another shell."""
    if shell not in SHELLS:
        raise StartError(f"--completion must be one of: {', '.join(SHELLS)}, not {shell!r}")
    return SHELLS[shell]()


def _choices() -> dict[str, tuple[str, ...]]:
    """Returns the allowed values of every flag; () if any text is allowed."""
    truth = ("true", "false")
    return {
        "--" + row.name: truth if isinstance(row.default, bool) else tuple(filter(None, row.metadata["choices"]))
        for row in shown()
    } | {"--help": (), "--version": ()}


def _bash() -> str:
    flags = _choices()
    cases = "\n".join(f"    {flag}) words='{' '.join(values)}' ;;" for flag, values in flags.items() if values)
    return f"""_lean_ovms() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} words=''
  case ${{COMP_WORDS[COMP_CWORD-1]}} in
{cases}
  esac
  ((COMP_CWORD == 1)) && words='{" ".join(commands())}'
  [[ $current == -* ]] && words='{" ".join(flags)}'
  COMPREPLY=()
  [[ $words ]] && COMPREPLY=($(compgen -W "$words" -- "$current"))
  [[ ! $words || $COMP_CWORD == 1 ]] && COMPREPLY+=($(compgen -f -- "$current"))
}}
complete -o filenames -F _lean_ovms {" ".join(NAMES)}
"""


def _zsh() -> str:
    return f"autoload -U +X bashcompinit && bashcompinit\n{_bash()}"


def _fish() -> str:
    flags = [f"-l {flag[2:]}" + (f" -xa '{' '.join(values)}'" if values else "") for flag, values in _choices().items()]
    words = [f"-n __fish_use_subcommand -a {name}" for name in commands()]
    return "".join(f"complete -c {name} {rest}\n" for name in NAMES for rest in words + flags)


SHELLS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
