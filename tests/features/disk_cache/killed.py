"""python -m tests.features.disk_cache.killed DIRECTORY ROUNDS SEED runs engines that write to one directory, and kills
them at random moments.

After each, the answers of another engine are checked. The exit status is 0 if all were right. Each engine is a fork of
this process, which has no threads.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from lean_ovms.features.disk_cache.child.block_store import BlockStore
from lean_ovms.features.disk_cache.child.tier import DiskTier
from lean_ovms.features.disk_cache.records import DiskCacheAction
from tests.engine.paged.harness import Params
from tests.engine.paged.network import FakeNetwork, HybridNetwork
from tests.engine.paged.test_engine import alone, engine, prompt, run

PROMPTS = [prompt(61, seed) + prompt(40, 100 + seed % 3) for seed in range(8)]
ASKED = Params(max_tokens=5)


def tiered(path, kind):
    made = engine(60, kind=kind, interval=16, **({"states": 12} if kind is HybridNetwork else {}))
    tier = DiskTier(BlockStore(path, bytes(32), 1 << 19), made.network, made.blocks, made.states)
    tier.join(made.hooks)
    return made, tier


def write(path, kind, dice):
    """Answers prompts until the process is killed, with more blocks than fit into memory."""
    made, tier = tiered(path, kind)
    while True:
        run(made, made.add(dice.choice(PROMPTS), ASKED))
        tier.writer.call(DiskCacheAction(1, "save"))
        if dice.random() < 0.05:
            tier.close(60.0)
            made, tier = tiered(path, kind)


def check(path, kind):
    """Checks answers, and returns how many tokens came from disk."""
    made, tier = tiered(path, kind)
    tier._worth = lambda tokens, size: 60.0
    for ids in PROMPTS:
        assert run(made, made.add(ids, ASKED)) == [alone(ids, ASKED)]
    tier.close(60.0)
    return tier.hit_tokens


def forked(action, *args):
    """Runs a function in a fork. Its exit status is 0, 1 after an exception, or 2 if the function returns something
    other than 0."""
    pid = os.fork()
    if not pid:
        try:
            os._exit(2 if action(*args) else 0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    return pid


def main(path, rounds, seed):
    dice, hits = random.Random(seed), 0
    for number in range(rounds):
        kind = (FakeNetwork, HybridNetwork)[number % 2]
        where = Path(path) / kind.__name__
        pid = forked(write, where, kind, random.Random(dice.random()))
        time.sleep(dice.random() * 0.3)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        status = os.waitstatus_to_exitcode(os.waitpid(forked(check, where, kind), 0)[1])
        if status not in (0, 2):
            raise SystemExit(f"round {number}: an answer was wrong")
        hits += status == 2
    print(f"{rounds} rounds; blocks of killed engines were used in {hits}")
    if not hits:
        raise SystemExit("no block was ever read")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
