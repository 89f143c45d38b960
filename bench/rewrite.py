"""An agent that rewrites a file of its prompt, with draft tokens from n-grams and without, in turns.

The model is the demo model with ballast, as in bench.drafts, so a step costs what a larger one's does. What it answers
is given, by a grammar that allows one token at a time: the file with some tokens replaced, or a text of which each
three tokens occurred before and went on in another way, so that no draft token is accepted. CPU time, ratios by round.

python -m bench.rewrite [--weights i4] [--ballast_mb 200] [--streams 1,4] [--tokens 2000] [--changed 0,0.02,0.1]
[--rounds 3] [options of the server]
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from pathlib import Path

from bench.drafts import BITS, FIRST, LAST, load, loaded_with, once
from lean_ovms.cli.arguments import parse


def rewritten(changed: float, tokens: int, dice: random.Random) -> tuple[list[int], list[int]]:
    """A file, and the file with this share of its tokens replaced."""
    file = [dice.randrange(FIRST, LAST) for _ in range(tokens)]
    return file, [dice.randrange(FIRST, LAST) if dice.random() < changed else token for token in file]


def misleading(tokens: int, dice: random.Random) -> tuple[list[int], list[int]]:
    """A prompt and an answer in which what follows three tokens is never what followed them before."""
    text = [token for _ in range(tokens // 2) for token in (3, 4, 5, dice.randrange(FIRST, LAST))]
    return text[:tokens], text[tokens:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", choices=BITS, default="i4")
    parser.add_argument("--streams", default="1,4")
    parser.add_argument("--changed", default="0,0.02,0.1")
    for name, value in (("--ballast_mb", 200), ("--tokens", 2000), ("--rounds", 3)):
        parser.add_argument(name, type=int, default=value)
    arguments, rest = parser.parse_known_args()
    config = parse(rest, {})
    with tempfile.TemporaryDirectory() as directory:
        config = config.replace(model_path=str(loaded_with(arguments.ballast_mb, Path(directory), arguments.weights)))
        pipes = [load(config.replace(ngram_speculation=drafts)) for drafts in (False, True)]
        for count in map(int, arguments.streams.split(",")):
            for changed in [*map(float, arguments.changed.split(",")), None]:
                ratios, walls, steps = [], [], [0, 0]
                for number in range(arguments.rounds):
                    dice = random.Random(number)
                    texts = [
                        misleading(arguments.tokens, dice)
                        if changed is None
                        else rewritten(changed, arguments.tokens, dice)
                        for _ in range(count)
                    ]
                    found = {}
                    for drafts in (0, 1) if number % 2 else (1, 0):
                        found[drafts] = once(pipes[drafts], texts)
                        steps[drafts] = found[drafts][2]
                    ratios.append(found[0][0] / found[1][0])
                    walls.append(found[0][1] / found[1][1])
                name = "misleading" if changed is None else f"{changed:.2f} changed"
                print(
                    f"{arguments.weights} {count:3} streams  {name:12} {steps[0]} -> {steps[1]} steps  "
                    f"CPU {statistics.median(ratios):5.2f}  wall {statistics.median(walls):5.2f} of plain's speed",
                    flush=True,
                )


if __name__ == "__main__":
    main()
