"""Selects the files of a repository that make a model that can be served, or says what to do instead."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from ...composition import compose
from ...observability.logging import safe
from ...repository import model_file
from ...repository.model_config import TEXT_NETWORKS, TOKENIZERS, needed_networks, networks
from ...repository.model_dir import missing_files
from .client import Listing, PullError, RemoteFile

OTHER_WEIGHTS = (
    ".safetensors", ".gguf", ".pt", ".pth", ".h5", ".msgpack", ".ckpt", ".onnx", ".onnx_data", ".tflite", ".ot",
)  # fmt: skip
"""Weights for other engines: gigabytes that this server does not read."""

TORCH = re.compile(r"pytorch_model.*\.bin|[^/]+\.pth")
"""Weights as torch saves them, of transformers and of libraries whose models optimum-cli knows, too."""
SENTENCE_FILES = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")
SENTENCE_MODULE = re.compile(r"\d+_[A-Za-z]+[^/]*/config\.json|\d+_Dense[^/]*/model\.safetensors")
MAX_SENTENCE_BYTES = 1 << 26
SHOWN = 24
"""The most file names that a message shows."""


class NotOpenVino(PullError):
    """Raised for a repository without an OpenVINO model."""

    def __init__(self, message: str, *, checkpoint: bool) -> None:
        """Keeps the reason, and whether the repository has a checkpoint that optimum-cli can convert."""
        super().__init__(message)
        self.checkpoint = checkpoint


def model_files(listing: Listing) -> list[RemoteFile]:
    """Returns the files of an OpenVINO model. Raises NotOpenVino, or PullError for an incomplete model."""
    names = {file.path for file in listing.files}
    if not names & set(networks()):
        raise _not_openvino(listing)
    missing = missing_files(names)
    present = [name for name in needed_networks() if name in names]
    missing += [weights for name in present if (weights := name[:-3] + "bin") not in names]
    if missing:
        raise PullError(
            f"{listing.repo} is not a complete OpenVINO model: {', '.join(missing)} missing"
            + ("" if missing[0] not in TOKENIZERS else "; convert_tokenizer --with-detokenizer creates the tokenizers")
        )
    return [file for file in _with_safe_names(listing.files) if _is_needed(file.path)]


def pooling_files(listing: Listing) -> list[RemoteFile]:
    """Returns sentence-transformers' files about pooling, which exporters leave out."""
    named = (file for file in listing.files if file.path in SENTENCE_FILES or SENTENCE_MODULE.fullmatch(file.path))
    return [file for file in _with_safe_names(named) if file.size <= MAX_SENTENCE_BYTES]


def single_file(listing: Listing, name: str) -> list[RemoteFile]:
    """Returns the model file with a name, and its other parts if it is the first of several. Raises PullError."""
    there = {file.path: file for file in listing.files if model_file.is_one(PurePosixPath(file.path))}
    wanted = shards(name)
    missing = [part for part in wanted if part not in there]
    if name in missing:
        raise no_such_file(listing, name)
    if missing:
        raise PullError(f"{listing.repo} has {name}, but not its other parts {', '.join(missing[:SHOWN])}")
    return _with_safe_names(there[part] for part in wanted)


def vision_file(listing: Listing, name: str) -> list[RemoteFile]:
    """Returns the mmproj file for the model file with a name in a list, or [] if the repository has none."""
    there = {file.path: file for file in listing.files}
    return _with_safe_names(there[found] for found in model_file.vision_files(there, name)[:1])


def usual_of(listing: Listing) -> str:
    """Returns the name of the model file to pull from a repository that has only model files, or "" for other ones."""
    try:
        model_files(listing)
    except NotOpenVino as missing:
        return "" if missing.checkpoint else model_file.usual(file.path for file in listing.files)
    except PullError:
        return ""  # pulling reports what is missing
    return ""


def shards(name: str) -> list[str]:
    """Returns the names of all parts of a model file, given an unsplit file or the first part. Raises PullError."""
    path = PurePosixPath(name)
    form = compose().format_of(path)
    if form is not None and not model_file.whole_or_first([name]):
        raise PullError(f"--{form.option} {safe(name)}: name the first part, NAME-00001-of-0000N{form.suffix}")
    return [part.as_posix() for part in model_file.parts(path)]


def _is_needed(path: str) -> bool:
    name = PurePosixPath(path).name
    others = name.endswith(OTHER_WEIGHTS) and not SENTENCE_MODULE.fullmatch(path)
    return not (path.startswith(".") or others or TORCH.fullmatch(name))


def _with_safe_names(files: Iterable[RemoteFile]) -> list[RemoteFile]:
    """Returns the files if no name leads out of the target directory; the hub chooses names. Raises PullError."""
    chosen = list(files)
    for file in chosen:
        parts = file.path.split("/")
        if "\0" in file.path or "\\" in file.path or any(part in ("", ".", "..") for part in parts):
            raise PullError(f"the hub lists a file with an unsafe name: {safe(file.path)}")
    return chosen


def _not_openvino(listing: Listing) -> NotOpenVino:
    names = sorted(file.path for file in listing.files)
    here = f"{listing.repo} contains no OpenVINO model"
    below = sorted({path.rpartition("/")[0] for path in names if path.rpartition("/")[2] in TEXT_NETWORKS})
    if below:
        where = ", ".join(below)
        return NotOpenVino(
            f"{here} at its top level, but one in {where}: download it and use --model_path", checkpoint=False
        )
    for form in compose().formats:
        if any(path.endswith(form.suffix) for path in names):
            how = f"for a {form.name} file give --{form.option}; {_model_files(names)}"
            return NotOpenVino(f"{here}; {how}", checkpoint=False)
    if any(path.endswith(".safetensors") or TORCH.fullmatch(path) for path in names):
        return NotOpenVino(
            f'{here} but a PyTorch checkpoint: pip install "optimum-intel[openvino]" to have it converted, '
            f"or convert it with: optimum-cli export openvino --model {listing.repo} --weight-format int8 DIRECTORY "
            "and serve that with --model_path; converted models are at https://huggingface.co/OpenVINO",
            checkpoint=True,
        )
    shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    return NotOpenVino(f"{here}; it contains {shown}" if names else f"{listing.repo} is empty", checkpoint=False)


def no_such_file(listing: Listing, wanted: str) -> PullError:
    """Returns the error for a file or a quantization that the repository does not have."""
    there = _model_files(file.path for file in listing.files)
    return PullError(f"{listing.repo} has no {safe(wanted)}; {there}")


def _model_files(there: Iterable[str]) -> str:
    """Returns a list, for messages, of the model files that can be named: whole files and first parts."""
    names = model_file.whole_or_first(there)
    if not names:
        return f"it has no {' or '.join(form.name for form in compose().formats)} files"
    return f"it has {', '.join(names[:SHOWN])}" + (", ..." if len(names) > SHOWN else "")
