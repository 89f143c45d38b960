"""Coverage-guided fuzzing with atheris (`pip install ".[fuzz]"`; x86-64, CPython 3.11 to 3.13).

    python -m tests.fuzz.guided                     ten seconds for each target, as in CI
    python -m tests.fuzz.guided session 3600        an hour for one target
    python -m tests.fuzz.guided gather 60           a minute for each, and a new corpus of some of the inputs found

Input that breaks a target is written to the current directory as crash-…; add it to the corpus when the bug is fixed.
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
    """Fuzzes in this process. Does not return, because libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=["lean_ovms", "h11", "websockets"]):
        from tests.fuzz import targets
    atheris.Setup([sys.argv[0], str(folder), f"-max_len={MAX_BYTES}", *flags], targets.TARGETS[target])
    atheris.Fuzz()


def run(target: str, seconds: int) -> int:
    """Fuzzes in another process on a copy of the corpus. Returns its exit status."""
    from tests.fuzz import targets

    with tempfile.TemporaryDirectory() as name:
        for file in (targets.CORPUS / target).iterdir():
            shutil.copy(file, name)
        return in_process(target, Path(name), f"-max_total_time={seconds}", "-verbosity=0", "-print_final_stats=1")


def in_process(target: str, folder: Path, *flags: str) -> int:
    """Runs `fuzz` in another process. Returns its exit status."""
    return subprocess.call([sys.executable, "-m", "tests.fuzz.guided", "fuzz", target, str(folder), *flags])


def gather(target: str, seconds: int, most: int = 40) -> None:
    """Fuzzes from the seeds and the corpus, and keeps `most` inputs of all sizes that reached new code as the
    corpus."""
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
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # each target is a process with one thread
        return max(pool.map(lambda target: run(target, seconds), chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
