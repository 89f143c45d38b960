"""Makes a small SentencePiece unigram model, and records the ids that transformers gives texts for XLM-RoBERTa.

python -m tests.makers.make_unigram   writes tests/data/unigram.json (needs sentencepiece and transformers)
"""

from __future__ import annotations

import base64
import json
import random
import tempfile
from pathlib import Path

DATA = Path(__file__).parents[1] / "data"
FILE = DATA / "unigram.json"
RULES = {
    "\ufb01": "fi",
    "\u2460": "1",
    "\t": " ",
    "\n": " ",
    "\u3000": " ",
    "\uff21": "A",
    "e\u0301": "\u00e9",
    "\u200b": "",
}
"""Replacements before a text is divided: a few of those of XLM-RoBERTa."""
PARTS = [
    "  ",
    "\r\n",
    "token",
    "step",
    "<s>",
    "</s>",
    "<unk>",
    "\u2581",
    "x" * 20,
    "\u4e2d\u6587",
    "\U0001f600",
    *RULES,
]


def main() -> None:
    """Trains the model on the sentences in this folder's modules, and records the ids."""
    import sentencepiece
    from transformers import XLMRobertaTokenizerFast
    from transformers.convert_slow_tokenizer import import_protobuf

    lines = [
        line.strip() for file in sorted(Path(__file__).parent.glob("*.py")) for line in file.open() if line.strip()
    ]
    with tempfile.TemporaryDirectory() as folder:
        rules, model = Path(folder, "rules.tsv"), Path(folder, "unigram")
        rows = [" ".join(f"{ord(one):X}" for one in text) for pair in RULES.items() for text in pair]
        rules.write_text("".join(f"{old}\t{new}\n" for old, new in zip(rows[::2], rows[1::2], strict=True)))
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_prefix=str(model),
            vocab_size=400,
            model_type="unigram",
            normalization_rule_tsv=str(rules),
            minloglevel=2,
        )
        proto = import_protobuf().ModelProto()
        proto.ParseFromString(model.with_suffix(".model").read_bytes())
    charsmap = proto.normalizer_spec.precompiled_charsmap
    marks = [(mark, 0.0) for mark in ("<s>", "<pad>", "</s>", "<unk>")]
    pieces = [*marks, *((each.piece, round(each.score, 4)) for each in proto.pieces[3:]), ("<mask>", 0.0)]
    tokenizer = XLMRobertaTokenizerFast(vocab=pieces, _spm_precompiled_charsmap=charsmap)
    dice, letters = random.Random(7), [*map(chr, range(32, 127))]
    texts = ["", " ", "one token of a step"]
    texts += ["".join(dice.choices([*letters, *PARTS], k=dice.randrange(1, 30))) for _ in range(100)]
    found = {
        "pieces": pieces,
        "charsmap": base64.b64encode(charsmap).decode(),
        "texts": {text: tokenizer(text)["input_ids"] for text in texts},
        "pair": tokenizer("one token", "of a step")["input_ids"],
    }
    FILE.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
