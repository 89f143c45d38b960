"""`lean-ovms features` lists the features: the state of each, what it does, and the reason if it is left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec

from .. import features as packages
from ..composition import compose, manifests
from ..errors import ExitStatus, StartError
from ..manifest import Feature
from .arguments import own, without_of
from .commands import parser, table

NOTES = """With --without NAME,... the states are those of a server with this option. A host runs the server
inside another program, which starts it."""


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Prints one feature per line. Raises StartError for a name that is not a feature's."""
    _, words, _ = own(parser("features", NOTES), argv)
    if words:
        raise StartError(f"unrecognized arguments: {' '.join(words)} (lean_ovms features --help)")
    left_out = compose(without_of(argv, environ)).left_out
    rows = [_row(one, _state(one, left_out), left_out.get(one.name, "")) for one in manifests()]
    rows += [_row(one, "host") for one in manifests(packages.HOSTS)]
    print(table([("feature", "state", "what it does"), *rows]))
    return ExitStatus.OK


def _state(one: Feature, left_out: Collection[str]) -> str:
    return "off" if one.name in left_out else "essential" if one.essential else "on"


def _row(one: Feature, state: str, reason: str = "") -> tuple[str, str, str]:
    """Returns the name, the state and the sentence of a feature.

    Args:
        one: The feature.
        state: A word for whether the feature is built in.
        reason: The reason why it is left out; "" for none.
    """
    missing = [name for name in one.packages if find_spec(name) is None]
    needs = f"needs the extra {one.extra}" if one.extra else f"some of it needs {', '.join(missing)}"
    notes = "; ".join(filter(None, (reason, needs if missing else "")))
    return one.name, state, f"{one.summary} ({notes})" if notes else one.summary
