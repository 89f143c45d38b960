"""python -m tools.demo_model [step ...] makes the demo model. Without steps, it runs all of them in order.

tokenizer   draw dialogs, train the vocabulary                     under a minute
train       train the model, or continue from a checkpoint         about eighty minutes on one CPU core
export      convert the checkpoint to an int8 OpenVINO folder      under a minute
tune        train further on schemas and long prompts, export      some minutes
evaluate    answer held-out prompts with openvino_genai            a minute
draft       train and export the draft model                       a few minutes

Intermediate files (tokenizer, checkpoints) are in the work folder; only the folder of `--target` is meant to be kept.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STEPS = ("tokenizer", "train", "export", "tune", "evaluate", "draft")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.demo_model", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("steps", nargs="*", metavar="step", help=f"any of {', '.join(STEPS)}; by default all of them")
    for name, path, what in (
        ("--work", "build/demo_model", "checkpoints"),
        ("--target", "lean_ovms/demo_model", "the finished model"),
        ("--draft-target", "tests/data/demo_draft", "the draft model"),
    ):
        parser.add_argument(name, type=Path, default=ROOT / path, help=f"folder of {what} (default: %(default)s)")
    parser.add_argument("--eager", action="store_true", help="train without torch.compile, which needs a C++ compiler")
    few = "end each training after N steps, to try the recipe: the model answers nothing, and evaluate fails"
    parser.add_argument("--max-steps", type=int, metavar="N", help=few)
    options = parser.parse_args()
    unknown = set(options.steps) - set(STEPS)
    if unknown:
        parser.error(f"unknown step {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    options.work.mkdir(parents=True, exist_ok=True)
    for step in options.steps or STEPS:
        print(f"== {step}", flush=True)
        globals()[f"run_{step}"](options)


# The imports are inside the functions: each step needs different heavy packages, and `evaluate` needs no torch.


def run_tokenizer(options: argparse.Namespace) -> None:
    from tools.demo_model.tokenizer import train_tokenizer

    path = options.work / "tokenizer.json"
    if path.exists():
        print(f"kept {path}: a trained model belongs to its vocabulary; delete it to train another")
    else:
        print(f"{train_tokenizer(path).get_vocab_size()} tokens in {path}")


def _train(options: argparse.Namespace, plan: str, checkpoint: str, tokenizer: Path, **more: Any) -> None:
    """Trains the draft model or the main one by a plan, with the tokenizer in a folder."""
    from tokenizers import Tokenizer

    from tools.demo_model import model, train

    sizes, steps = model.DRAFT if plan == "DRAFT_PLAN" else model.MAIN, getattr(train, plan).cut(options.max_steps)
    known = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    train.train(known, steps, sizes, options.work / checkpoint, compiled=not options.eager, **more)


def run_train(options: argparse.Namespace) -> None:
    _train(options, "MAIN_PLAN", "model.pt", options.work)


def run_tune(options: argparse.Namespace) -> None:
    """Trains the weights in the target folder further, and writes them back."""
    import torch

    from tools.demo_model import train

    before = train.published(options.target)
    _train(options, "TUNE_PLAN", "schemas.pt", options.target, begin=before)
    after = torch.load(options.work / "schemas.pt", map_location="cpu")["model"]
    mixed = train.mixture(before, after, train.TUNED_SHARE)
    _train(options, "KEEP_PLAN", "kept.pt", options.target, begin=mixed, teacher=before)
    after = torch.load(options.work / "kept.pt", map_location="cpu")["model"]
    tuned = train.narrowed(before, after, train.CHANGE_RANK)
    torch.save({"model": tuned | {"lm_head.weight": tuned["model.embed_tokens.weight"]}}, options.work / "tuned.pt")
    _export(options, "tuned.pt", options.target, "MAIN")


def run_export(options: argparse.Namespace) -> None:
    _export(options, "model.pt", options.target, "MAIN")


def _export(options: argparse.Namespace, checkpoint: str, target: Path, sizes: str) -> None:
    import torch
    from tokenizers import Tokenizer

    from tools.demo_model import export, model
    from tools.demo_model.tokenizer import wrapped

    path = options.work / "tokenizer.json"
    network = model.build(Tokenizer.from_file(str(path)), getattr(model, sizes))
    network.load_state_dict(torch.load(options.work / checkpoint, map_location="cpu")["model"])
    size = export.save(network, wrapped(path), target)
    print(f"{size / 1e6:.2f} MB in {target}")


def run_evaluate(options: argparse.Namespace) -> None:
    from tools.demo_model.evaluate import evaluate, missed

    if below := missed(evaluate(options.target)):
        raise SystemExit(f"below the target: {', '.join(below)}")


def run_draft(options: argparse.Namespace) -> None:
    _train(options, "DRAFT_PLAN", "draft.pt", options.work)
    _export(options, "draft.pt", options.draft_target, "DRAFT")


if __name__ == "__main__":
    main()
