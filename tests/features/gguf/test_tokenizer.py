"""Tokenizers made from GGUF metadata return the ids of the model's tokenizer.json, or those that the definition
yields."""

import base64
import json
import random
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("gguf")

from tokenizers import BertWordPieceTokenizer, Regex, Tokenizer, normalizers, pre_tokenizers

from lean_ovms.config import Config
from lean_ovms.engine.loading.text_encoder import SAMPLE_TEXTS
from lean_ovms.errors import StartError
from lean_ovms.features.gguf.child import merges, tokenizer
from lean_ovms.features.gguf.child.tokenizer import COMPOSED, PRE_TOKENIZERS, GgufTokenizer
from tests.makers import zoo_gguf
from tests.makers.make_gguf import words

UNIGRAM = Path(__file__).parents[2] / "data" / "unigram.json"
"""A small SentencePiece model, and the ids that transformers gives texts with it as XLM-RoBERTa's."""
ODD = "\t\n\r\0\u00e9\u0301\u4e2d\u6587\u0645\u200b\u00a0\u3000\ufeff\U0001f600\ue000"
ALPHABET = [*map(chr, range(32, 127)), *ODD]
PARTS = ["<|im_start|>", "<think>", "</s>", "<s>", "  ", "\r\n", "'s", "'LL", "12345", "\u2581", "<0x41>", "x" * 40]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPACE = "\u2581"


def hostile(count=1000):
    dice = random.Random(7)
    return [*SAMPLE_TEXTS, *("".join(dice.choices([*ALPHABET, *PARTS], k=dice.randrange(1, 30))) for _ in range(count))]


@pytest.fixture
def made(tmp_path):
    def made(metadata):
        return GgufTokenizer(zoo_gguf.write(tmp_path / "x.gguf", "llama", **metadata))

    return made


QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
PUBLISHED = {
    "gpt-2": [GPT2],
    "llama-bpe": [pre_tokenizers.Split(Regex(QWEN2.replace("|\\p{N}|", "|\\p{N}{1,3}|")), "isolated"), BYTES],
    "modern-bert": [GPT2],
    "qwen2": [pre_tokenizers.Split(Regex(QWEN2), "isolated"), BYTES],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), GPT2],
}
"""The pre-tokenizers in the tokenizer.json files of GPT-2, Llama 3, ModernBERT, Qwen2 and SmolLM."""


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.slow
def test_hostile_texts_have_the_ids_of_tokenizer_json(made, name):
    ours = made({**words(), "tokenizer.ggml.pre": name})
    theirs = Tokenizer.from_file(str(Config().model_dir / "tokenizer.json"))
    theirs.pre_tokenizer = pre_tokenizers.Sequence(PUBLISHED[name])
    theirs.model.ignore_merges = name == "llama-bpe"
    if name in COMPOSED:
        theirs.normalizer = normalizers.NFC()
    for text in hostile(300):
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, False) == ids, text
        assert ours.decode(ids, False) == theirs.decode(ids, skip_special_tokens=False)


KIND = "tokenizer.ggml.model", "tokenizer.ggml.pre"
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), SPACE, *"abcdehlorwxs1234'"]
TOKENS += ["he", "el", "ll", "lo", "hel", "llo", "hello", SPACE + "w", "or", "ld", "world", SPACE + "hello"]
TOKENS += ["xx", "xxxx", "12"]
KINDS = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(TOKENS) - 259)]
PIECES = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.pre": None,
    "tokenizer.ggml.merges": None,
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": KINDS,
    "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(TOKENS) - 259)],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
}


def best_pairs(text, prefix):
    """Tokenizes by the definition: of all neighbours that form a piece, the first with the best score are joined."""
    ids = {token: i for i, token in enumerate(TOKENS)}
    parts = list((SPACE if prefix and text else "") + text.replace(" ", SPACE))
    while True:
        pairs = [(ids[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ids]
        if not pairs:
            break
        _, place = min(pairs)  # the score falls as the id rises
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return [i for part in parts for i in ([ids[part]] if part in ids else [byte + 3 for byte in part.encode()])]


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.slow
def test_hostile_texts_have_the_pieces_of_the_best_scores(made, prefix):
    tokenizer = made({**PIECES, "tokenizer.ggml.add_space_prefix": prefix})
    for text in hostile():
        if not any(token in text for token in TOKENS[:3]):
            assert tokenizer.encode(text, False) == best_pairs(text, prefix), text
            assert tokenizer.decode(tokenizer.encode(text, False), False) == text.replace(SPACE, " ")


@pytest.mark.slow
def test_the_token_for_unknown_text_can_stand_for_an_image(made):
    tokenizer = made(PIECES)
    assert tokenizer.encode(f"hello{tokenizer.decode([0], False)}world", False).count(0) == 1


@pytest.mark.parametrize("kind", [PIECES, words()], ids=["llama", "gpt2"])
def test_ids_that_fill_up_a_vocabulary_have_no_text(made, kind):
    """Grammars forbid tokens without text, and transformers' tokenizers do not have these."""
    tokens, kinds = kind["tokenizer.ggml.tokens"], kind["tokenizer.ggml.token_type"]
    scores = {"tokenizer.ggml.scores": [*kind["tokenizer.ggml.scores"], 0.0]} if "tokenizer.ggml.scores" in kind else {}
    tokenizer = made(
        {**kind, "tokenizer.ggml.tokens": [*tokens, "[PAD7]"], "tokenizer.ggml.token_type": [*kinds, UNUSED], **scores}
    )
    assert tokenizer.vocabulary.pieces[-1] == b""
    ids = tokenizer.encode("hello", False)
    assert tokenizer.decode([*ids, len(tokens)], False) == "hello"


@pytest.mark.parametrize(("bits", "at_once"), [(20, 4096), (2, 7)])
def test_merges_are_all_cuts_of_a_piece_into_two(monkeypatch, bits, at_once):
    dice = random.Random(3)
    found = {"".join(dice.choices("ab\u4e2d", k=dice.randrange(1, 6))) for _ in range(200)}
    tokens = [*dict.fromkeys(["", "\U0001f600", *sorted(found, key=lambda _: dice.random())])]
    monkeypatch.setattr(merges, "TABLE_BITS", bits)
    monkeypatch.setattr(merges, "AT_ONCE", at_once)
    cuts = ((token[:place], token[place:]) for token in tokens for place in range(1, len(token)))
    pairs = [(tokens.index(first), tokens.index(second)) for first, second in cuts if {first, second} <= {*tokens}]
    assert [*zip(*merges._cuts(tokens), strict=True)] == pairs
    assert len(pairs) > 100


@pytest.mark.parametrize("kind", [("gemma4", None), ("gpt2", "granite-embed-multi-311m")])
def test_merges_of_a_file_join_its_pieces(made, kind):
    merges = [
        f"{token[:cut]} {token[cut:]}"
        for token in TOKENS[259:]
        for cut in range(1, len(token))
        if {token[:cut], token[cut:]} <= {*TOKENS}
    ]
    tokenizer = made({**PIECES, **dict(zip(KIND, kind, strict=True)), "tokenizer.ggml.merges": merges})
    for text in ("hello world", "  12xxxxx\n\n", "hel lo\u00e9\U0001f600"):
        assert tokenizer.encode(text, False) == best_pairs(text, prefix=False)
        assert tokenizer.decode(tokenizer.encode(text, True), True) == text


@pytest.mark.parametrize(("name", "ids"), [("qwen2", [4, 5]), ("glm4", [3]), ("llama-bpe", [0, 3])])
def test_a_word_of_the_vocabulary_may_need_no_merges(made, name, ids):
    words = {"tokenizer.ggml.tokens": ["<s>", "</s>", "<pad>", "AB", "A", "B"], "tokenizer.ggml.token_type": None}
    assert made({**words, "tokenizer.ggml.merges": None, "tokenizer.ggml.pre": name}).encode("AB", True) == ids


def test_control_tokens_are_found_in_a_text_and_hidden(made):
    tokenizer = made(PIECES)
    ids = tokenizer.encode("<s>hello</s>", True)
    assert ids == [1, 1, TOKENS.index(SPACE + "hello"), 2]
    assert tokenizer.decode(ids, True) == "hello"
    assert tokenizer.decode(ids, False) == "<s><s> hello</s>"
    assert tokenizer.vocabulary.special == {0, 1, 2}


@pytest.mark.parametrize(
    ("tokens", "changes", "ends"),
    [
        (["<|im_end|>", "</s>"], {}, {0, 1}),
        (["<|return|>", "<|call|>", "<|end|>"], {}, {0, 1}),
        (["x", "<eos>"], {"tokenizer.ggml.eot_token_id": 0}, {0, 1}),
        (["<turn|>", "<|tool_response>"], {"tokenizer.ggml.model": "gemma4"}, {0, 1}),
        (["<|flush|>", "<|calls|>", "<|end|>"], {}, {0, 1}),
        (["<|fim_pad|>", "<|file_sep|>", "<|repo_name|>", "<|fim_middle|>"], {}, {0, 1, 2}),
        (["x", "y"], {"tokenizer.ggml.fim_sep_token_id": 1}, {1}),
    ],
)
def test_all_tokens_that_end_an_answer_are_known(made, tokens, changes, ends):
    kinds = {"tokenizer.ggml.token_type": [CONTROL] * len(tokens), "tokenizer.ggml.merges": None}
    specials = {f"tokenizer.ggml.{name}_token_id": None for name in ("bos", "eos", "padding")}
    assert made({"tokenizer.ggml.tokens": tokens, **kinds, **specials, **changes}).ends == ends


def test_a_mark_that_the_file_calls_text_ends_an_answer_and_is_hidden(made):
    tokens = ["<|im_end|>", "<think>", "</s>", "x"]
    changes = {"tokenizer.ggml.token_type": [USER_DEFINED] * 3 + [NORMAL], "tokenizer.ggml.merges": None}
    specials = {f"tokenizer.ggml.{name}_token_id": None for name in ("bos", "eos", "padding")}
    found = made({"tokenizer.ggml.tokens": tokens, **changes, **specials})
    assert (found.ends, found.vocabulary.special) == ({0}, {0})
    assert found.encode("x<|im_end|></s>", False) == [3, 0, 2]


@pytest.mark.parametrize("unknown", [CONTROL, UNKNOWN, NORMAL])
def test_tokens_of_bert_that_the_file_calls_text_have_their_own_ids(made, unknown):
    tokens = ["[UNK]", "[CLS]", "[SEP]", SPACE + "he", "llo", SPACE + "foo"]
    kinds = [unknown, CONTROL, CONTROL, NORMAL, NORMAL, USER_DEFINED]
    changes = {"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}
    specials = {
        f"tokenizer.ggml.{name}": None for name in ("merges", "bos_token_id", "eos_token_id", "padding_token_id")
    }
    if unknown == NORMAL:
        with pytest.raises(StartError, match=r"its vocabulary has no \[UNK\] for unknown text"):
            made(changes | specials)
        return
    found = made(changes | specials)
    assert found.encode("hello foo zzz", True) == [1, 3, 4, 5, 0, 2]
    assert max(found.encode(f"x{SPACE}foo hefoo", True)) < len(tokens)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("afmoe", (r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", tokenizer.ASIAN, tokenizer.DEEPSEEK3[-1])),
        ("tiny_aya", (r"\d{1,3}(?=(?:\d{3})*\b)", *tokenizer.GPT4O)),
    ],
)
def test_numbers_are_split_from_their_ends_as_by_the_published_expressions(name, published):
    ours, theirs = (
        pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns])
        for patterns in (PRE_TOKENIZERS[name], published)
    )
    dice, numbers = random.Random(5), ["1", "12", "123", "4567", "\u00b2", "\u2167", "\u0663", "\uff11", "x", "_"]
    for count in range(200):
        text = "".join(dice.choices([*numbers, *ODD, " ", "."] if count % 2 else numbers, k=dice.randrange(1, 12)))
        assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text)
    whole = "1" * 30_000  # the published expressions take half a minute
    assert [part for part, _ in ours.pre_tokenize_str(whole)] == ["111"] * 10_000
    assert len(ours.pre_tokenize_str(f"{whole}x")) == 10_001


@pytest.mark.slow
def test_every_pre_tokenizer_keeps_every_character(made):
    for name in PRE_TOKENIZERS:
        tokenizer = made({**words(), "tokenizer.ggml.pre": name})
        for text in hostile(20):
            kept = unicodedata.normalize("NFC", text) if name in COMPOSED else text
            assert tokenizer.decode(tokenizer.encode(text, False), False) == kept


def test_a_mask_takes_the_spaces_before_it(made):
    """As those of RoBERTa, XLM-RoBERTa and ModernBERT do; a token of several spaces does not come first."""
    tokens = ["<s>", "</s>", "[MASK]", "  ", "\u0120", "a"]
    words = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [3, 3, 3, 4, 1, 1]}
    words |= {"tokenizer.ggml.merges": None, "tokenizer.ggml.pre": "modern-bert"}
    text = "a  a  [MASK] a"
    assert made({**words, "tokenizer.ggml.mask_token_id": 2}).encode(text, False) == [5, 3, 5, 2, 4, 5]
    assert made(words).encode(text, False) == [5, 3, 5, 3, 2, 4, 5]
    words |= {"tokenizer.ggml.mask_token_id": 2, "tokenizer.ggml.pre": "granite-embed-multi-97m"}
    assert made(words).encode(text, False) == [5, 3, 5, 3, 2, 4, 5]
    words = {"tokenizer.ggml.tokens": ["<s>", "</s>", "<pad>", "A", "a"], "tokenizer.ggml.token_type": None}
    words |= {"tokenizer.ggml.merges": None, "tokenizer.ggml.normalizer.lowercase": True}
    assert made(words).encode("Aa", False) == [4, 4]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"tokenizer.ggml.pre": "newest"}, "the pre-tokenizer newest is not supported; serve the original model"),
        ({"tokenizer.ggml.merges": ["AB"]}, "cannot be built"),
        ({"tokenizer.ggml.merges": ["A missing"]}, "cannot be built"),
        ({**PIECES, "tokenizer.ggml.scores": [1.0]}, "its pieces have no scores"),
        (
            {**PIECES, "tokenizer.ggml.tokens": [*PIECES["tokenizer.ggml.tokens"][1:], "x" * 4097]},
            "than 4096 characters",
        ),
    ],
)
def test_what_cannot_be_built_is_refused(made, changes, word):
    with pytest.raises(StartError, match=word):
        made(changes)


@pytest.mark.parametrize(
    ("cased", "said", "accents"),
    [
        *((False, None, None), (True, None, None), (False, True, None), (True, False, None), (True, True, None)),
        *((False, True, False), (True, False, True)),
    ],
)
def test_words_and_their_ends_are_those_of_bert(made, cased, said, accents):
    """If the file does not say whether texts are lowercased, its words show it."""
    words = [*(f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP")), *"abcxyz0123.,!'"]
    words += ["the", "##s", "##x", "##ab", "\u4e2d", "caf\u00e9", "cafe"]
    words += ["The", "##S"] if cased else []
    special = [word.startswith("[") for word in words]
    ours = made(
        {
            "tokenizer.ggml.model": "bert",
            "tokenizer.ggml.pre": None,
            "tokenizer.ggml.merges": None,
            "tokenizer.ggml.tokens": [
                word if mark else word.removeprefix("##") if word.startswith("##") else SPACE + word
                for word, mark in zip(words, special, strict=True)
            ],
            "tokenizer.ggml.token_type": [CONTROL if mark else NORMAL for mark in special],
            "tokenizer.ggml.cls_token_id": 2,
            "tokenizer.ggml.normalizer.lowercase": said,
            "tokenizer.ggml.normalizer.strip_accents": accents,
            **{f"tokenizer.ggml.{name}_token_id": None for name in ("bos", "eos", "padding")},
        }
    )
    lowercase = not cased if said is None else said
    numbers = {word: i for i, word in enumerate(words)}
    theirs = BertWordPieceTokenizer(numbers, lowercase=lowercase, strip_accents=accents)
    texts = [*hostile(300), "The thes abab cafe\u0301 xs CAFE!", "The\u4e2d\u4e2d's"]
    for text in texts:
        assert ours.encode(text, True) == [2, *theirs.encode(text, add_special_tokens=False).ids, 3]
    assert ours.decode(ours.encode("thes, xabab", True), True) == "thes , xabab"


@pytest.mark.parametrize("name", ["jina-v1-en", "jina-v2-code", "roberta-bpe"])
def test_texts_and_pairs_of_roberta_have_its_tokens(made, name):
    tokenizer = made({**words(), "tokenizer.ggml.pre": name, "tokenizer.ggml.seperator_token_id": 3})
    assert (tokenizer.single, tokenizer.between) == (((0,), (2,)), (2, 3))
    tokenizer = made(words())
    assert (tokenizer.single, tokenizer.between) == (((), ()), ())


def test_probable_pieces_are_those_of_transformers(made):
    known = json.loads(UNIGRAM.read_text())
    tokens, scores = zip(*known["pieces"], strict=True)
    metadata = {
        **PIECES,
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": [*tokens, "[PAD402]"],
        "tokenizer.ggml.scores": [*map(float, scores), -10000.0],
        "tokenizer.ggml.token_type": [CONTROL] * 3 + [UNKNOWN] + [NORMAL] * (len(tokens) - 5) + [CONTROL, UNUSED],
        "tokenizer.ggml.precompiled_charsmap": [*base64.b64decode(known["charsmap"])],
        **{f"tokenizer.ggml.{name}_token_id": i for name, i in (("bos", 0), ("eos", 2), ("unknown", 3))},
    }
    tokenizer = made(metadata)
    for text, ids in known["texts"].items():
        assert tokenizer.encode(text, True) == ids, text
    (before, after), between = tokenizer.single, tokenizer.between
    one, other = (tokenizer.encode(text, False) for text in ("one token", "of a step"))
    assert [*before, *one, *between, *other, *after] == known["pair"]
    assert tokenizer.decode(tokenizer.encode("one \ufb01", True), True) == "one fi"
    with pytest.raises(StartError, match="its pieces have no scores"):
        made({**metadata, "tokenizer.ggml.scores": [0.5]})
    with pytest.raises(StartError, match="its vocabulary has no token for unknown text"):
        made({**metadata, "tokenizer.ggml.token_type": None})
    for charsmap in broken(metadata["tokenizer.ggml.precompiled_charsmap"]).values():
        with pytest.raises(StartError, match=r"precompiled_charsmap (is|are) truncated"):
            made({**metadata, "tokenizer.ggml.precompiled_charsmap": charsmap})


def broken(charsmap):
    """Returns damaged character maps by their fault. The library would read out of bounds and crash, sometimes only
    when it encodes."""
    nodes = 4 + int.from_bytes(bytes(charsmap[:4]), "little")
    return {
        "no node": [0] * 400,
        "a short size": [1],
        "no texts": charsmap[:nodes],
        "a first node that leads outside": [*charsmap[:4], *[0xFF] * 4, *charsmap[8:]],
        "nodes that lead outside": [*charsmap[:4], *[0x7F] * (nodes - 4), *charsmap[nodes:]],
        "texts that begin within a letter": [*charsmap[:nodes], *"\u00e9".encode() * 20],
    }
