"""Coverage-guided fuzzing with atheris (`pip install ".[fuzz]"`; x86-64, CPython 3.11 to 3.13).

    python -m tests.fuzz.guided                     ten seconds for each target, as in CI
    python -m tests.fuzz.guided session 3600        an hour for one
    python -m tests.fuzz.guided gather 60           a minute for each, and a new corpus of some of what it finds

What breaks a target is written to the current directory as crash-…; put it into the corpus once it is mended.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CI_S = 10
MAX_BYTES = 2048


def fuzz(target: str, folder: Path, *flags: str) -> None:
    """Does not return: libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["lean_ovms", "h11", "websockets"]):
        from tests.fuzz import targets
    atheris.Setup([sys.argv[0], str(folder), f"-max_len={MAX_BYTES}", *flags], targets.TARGETS[target])
    atheris.Fuzz()


def run(target: str, seconds: int) -> int:
    """Fuzz in a process of its own, on a copy of the corpus; its exit status."""
    from tests.fuzz import targets

    with tempfile.TemporaryDirectory() as name:
        for file in (targets.CORPUS / target).iterdir():
            shutil.copy(file, name)
        return in_process(target, Path(name), f"-max_total_time={seconds}", "-verbosity=0", "-print_final_stats=1")


def in_process(target: str, folder: Path, *flags: str) -> int:
    """The exit status of `fuzz` in another process."""
    return subprocess.call([sys.executable, "-m", "tests.fuzz.guided", "fuzz", target, str(folder), *flags])


def gather(target: str, seconds: int, most: int = 40) -> None:
    """Fuzz from the seeds and the corpus, and leave `most` of what reached new code, of all sizes, as the corpus."""
    from tests.fuzz import targets

    folder = targets.CORPUS / target
    with tempfile.TemporaryDirectory() as name:
        found = Path(name)
        for number, data in enumerate([*targets.seeds(target), *(file.read_bytes() for file in folder.iterdir())]):
            (found / f"{number:04}").write_bytes(data)
        in_process(target, found, f"-max_total_time={seconds}", "-verbosity=0")
        files = sorted(found.iterdir(), key=lambda file: (file.stat().st_size, file.name))
        kept = {file.read_bytes() for file in files[:: -(-len(files) // most)]}
    for file in folder.iterdir():
        file.unlink()
    for data in kept:
        (folder / hashlib.sha1(data).hexdigest()[:12]).write_bytes(data)


def main(argv: list[str]) -> int:
    try:
        import atheris  # noqa: F401
    except ImportError:
        print("atheris is not installed here: nothing is fuzzed (the corpus is replayed by the tests)")
        return 0
    if argv[:1] == ["fuzz"]:
        fuzz(argv[1], Path(argv[2]), *argv[3:])
    from tests.fuzz import targets

    if argv[:1] == ["gather"]:
        for target in targets.TARGETS:
            gather(target, int(argv[1]))
        return 0
    chosen = argv[:1] or list(targets.TARGETS)
    seconds = int(argv[1]) if len(argv) > 1 else CI_S
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # each of them is a process of one thread
        return max(pool.map(lambda target: run(target, seconds), chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
