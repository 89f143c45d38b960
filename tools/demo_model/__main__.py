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

ROOT = Path(__file__).resolve().parents[2]
STEPS = ("tokenizer", "train", "export", "tune", "evaluate", "draft")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.demo_model", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("steps", nargs="*", metavar="step", help=f"any of {', '.join(STEPS)}; by default all of them")
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "demo_model", help="folder for checkpoints (default: %(default)s)"
    )
    parser.add_argument(
        "--target",
        type=Path,
        default=ROOT / "lean_ovms" / "demo_model",
        help="folder of the finished model (default: %(default)s)",
    )
    parser.add_argument(
        "--draft-target",
        type=Path,
        default=ROOT / "tests" / "data" / "demo_draft",
        help="folder of the draft model (default: %(default)s)",
    )
    parser.add_argument(
        "--eager", action="store_true", help="train without torch.compile (no C++ compiler needed; slower)"
    )
    parser.add_argument(
        "--max-steps",
        type=int,
        metavar="N",
        help="end each training after N steps, to try the recipe: the model answers nothing, and evaluate fails",
    )
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


def run_train(options: argparse.Namespace) -> None:
    from tokenizers import Tokenizer

    from tools.demo_model import model, train

    tokenizer = Tokenizer.from_file(str(options.work / "tokenizer.json"))
    plan = train.MAIN_PLAN.cut(options.max_steps)
    train.train(tokenizer, plan, model.MAIN, options.work / "model.pt", compiled=not options.eager)


def run_tune(options: argparse.Namespace) -> None:
    """Trains the weights in the target folder further, and writes them back."""
    import torch
    from tokenizers import Tokenizer

    from tools.demo_model import model, train
    from tools.demo_model.published import published

    tokenizer = Tokenizer.from_file(str(options.target / "tokenizer.json"))
    schemas, kept = options.work / "schemas.pt", options.work / "kept.pt"
    before, compiled = published(options.target), not options.eager
    train.train(tokenizer, train.TUNE_PLAN.cut(options.max_steps), model.MAIN, schemas, compiled, begin=before)
    after = torch.load(schemas, map_location="cpu")["model"]
    mixed = train.mixture(before, after, train.TUNED_SHARE)
    train.train(
        tokenizer, train.KEEP_PLAN.cut(options.max_steps), model.MAIN, kept, compiled, begin=mixed, teacher=before
    )
    after = torch.load(kept, map_location="cpu")["model"]
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
    from tokenizers import Tokenizer

    from tools.demo_model import model, train

    tokenizer = Tokenizer.from_file(str(options.work / "tokenizer.json"))
    plan = train.DRAFT_PLAN.cut(options.max_steps)
    train.train(tokenizer, plan, model.DRAFT, options.work / "draft.pt", compiled=not options.eager)
    _export(options, "draft.pt", options.draft_target, "DRAFT")


if __name__ == "__main__":
    main()
