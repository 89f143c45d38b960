"""python -m tests.makers.whisper_words [recordings | train | pack ...] runs all steps, or the named ones, in --work.

    apt-get install espeak-ng && pip install ".[train]" && python -m tests.makers.whisper_words

recordings takes seconds. train takes about 30 minutes on one core: 260 speakers, then steps of 16 utterances, then the
export with int8 weights. pack writes tests/data/whisper_words.zip from the results of both.
"""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path

from . import recordings

OUT = Path(__file__).parents[3] / "tests" / "data" / "whisper_words.zip"
NAMED = ("config.json", "generation_config.json", "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json",
         "special_tokens_map.json")  # fmt: skip
DATE = (2026, 1, 1, 0, 0, 0)


def pack(work: Path) -> None:
    """Packs the model's files and the recordings. Raises ValueError if the exported tokenizer differs from that of
    the training."""
    from .check import check

    print(check(work / "model"), "texts and times are the same in both tokenizers")
    model = [path for path in sorted((work / "model").iterdir()) if path.name in NAMED or "openvino" in path.name]
    with zipfile.ZipFile(OUT, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for path in (*model, *sorted((work / "speech").iterdir())):
            entry = zipfile.ZipInfo(str(path.relative_to(work)), DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(entry, path.read_bytes(), compresslevel=9)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.makers.whisper_words", description=__doc__)
    parser.add_argument("steps", nargs="*", default=["recordings", "train", "pack"])
    parser.add_argument("--work", type=Path, default=Path("whisper_words"))
    parser.add_argument("--training_steps", type=int, default=3900)
    args = parser.parse_args()
    if "recordings" in args.steps:
        recordings.write(args.work / "speech")
    if "train" in args.steps:
        from . import train

        train.run(args.work, args.training_steps)
    if "pack" in args.steps:
        pack(args.work)


if __name__ == "__main__":
    main()
