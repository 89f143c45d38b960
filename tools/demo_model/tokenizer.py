"""Trains the tokenizer: byte-level BPE in which a space is a token of its own.

Most tokenizers join the space and the word, so " Paris" in a question and "Paris" in a JSON argument have different
ids, and a tiny model cannot copy a word that it has not seen. Here a word has the same pieces everywhere. Upper and
lower case are split too, so the parts of camelCase names are the words that they consist of.
"""

from __future__ import annotations

import re
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tools.demo_model.corpus import TEMPLATE_FILE, draw, template

VOCABULARY = 2048
DIALOGS = 30_000
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Not special tokens, because a parser must find them in the decoded text.
MARKERS = [f"<{end}{name}>" for name in ("think", "tool_call", "tool_response", "tools") for end in ("", "/")]
FRAME = re.compile("|".join(re.escape(token) for token in SPECIAL + MARKERS))
PIECES = r"\p{Lu}?[\p{Ll}\p{Lo}\p{M}]+|\p{Lu}+|\p{N}|[^\s\p{L}\p{N}\p{M}]{1,4}|\s"


def train_tokenizer(path: Path, seed: int = 77_000_000) -> Tokenizer:
    render = template()
    texts = []
    for i in range(DIALOGS):
        dialog, _ = draw(seed + i)
        text = render.render(messages=dialog.messages, tools=dialog.tools or None)
        texts.append(FRAME.sub("\n", text))  # otherwise parts of the markers would become pieces
    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, letters])
    tokenizer.decoder = decoders.ByteLevel()
    special = SPECIAL + MARKERS
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=12,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # Training marks all of these as special, but decoding must keep the markers.
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKERS])
    tokenizer.save(str(path))
    return tokenizer


def pieces(tokenizer: Tokenizer) -> list[str]:
    """Returns the pieces of the vocabulary that are words or parts of words, in a fixed order."""
    texts = (tokenizer.decode([i]) for i in range(tokenizer.get_vocab_size()))
    return sorted({text for text in texts if text.isalpha() and text.isprintable()})


def wrapped(path: Path) -> PreTrainedTokenizerFast:
    """Returns the tokenizer in the form that transformers and the exporter need, with the chat template."""
    fast = PreTrainedTokenizerFast(
        tokenizer_file=str(path),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        model_max_length=131_072,
    )
    fast.chat_template = TEMPLATE_FILE.read_text(encoding="utf-8")
    return fast
