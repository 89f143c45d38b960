"""Builds a tokenizer from the metadata of a GGUF file, with the library `tokenizers`.

A vocabulary is of the kind "gpt2" (bytes, with merges), "llama" (SentencePiece: pieces with scores), "gemma4" (pieces
with merges), "t5" (SentencePiece: pieces with probabilities) or "bert" (WordPiece: words and suffixes). A file of the
kind "gpt2" names its pre-tokenizer; the regular expressions for llama.cpp's names are listed in this module.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ....engine.loading.text_encoder import JsonTokenizer
from ....engine.loading.vocabulary import byte_fallback, text_to_bytes
from ....errors import StartError
from ....types.engine import Vocabulary
from .. import header as gguf
from ..header import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from ..model_file import header_of
from . import merges

log = logging.getLogger("lean_ovms.gguf")

APOSTROPHES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*%s"
CASED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",)
DIGITS = (r"\p{N}", *GPT2)
LLAMA3 = (rf"{APOSTROPHES}|{WORD}|\p{{N}}{{1,3}}|{REST}",)
QWEN2 = (rf"{APOSTROPHES}|{WORD}|\p{{N}}|{REST}",)
WORDS_AND_SIGNS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
)
CHINESE_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
DEEPSEEK3 = (
    r"\p{N}{1,3}", CHINESE_AND_KANA, rf"{WORDS_AND_SIGNS}[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)  # fmt: skip
ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e00-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
"""The scripts in which Trinity splits no words."""
KOREAN_AND_CHINESE = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f"
    "\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)
"""The scripts in which Youtu-LLM splits no words, and their punctuation."""
CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""The letters with an upper and a lower case, as deepseek-llm's own expression lists them."""
DEEPSEEK_WORDS = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK = (
    r"[\r\n]",
    rf"\s?[{CASED_LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    DEEPSEEK_WORDS,
    r"\p{N}+",
)
ENDED = CASED % ((APOSTROPHES + "?",) * 2)
GPT4O = (rf"{ENDED}|\p{{N}}{{1,3}}|{CASED_REST}",)
THOUSANDS = r"(?<!\d)\d++\b", rf"\A\d{{4,}}\z|{GPT4O[0]}", r"\A\d{1,3}(?=(?:\d{3})+\z)", r"\d{3}"
"""The expressions of Cohere 2 with experts and Tiny Aya, which count the digits of a number in threes from its end.

The models use `\\d{1,3}(?=(?:\\d{3})*\\b)`, then the expression of GPT-4o. The former reads the rest of a number again
for each three digits, which takes half a minute for 32,000 digits. The ones here give the same parts: they isolate
numbers, then all other parts, then the first digits of each number, then threes.
"""
NO_HAN = r"&&[^\p{Han}]]"
KIMI = (rf"\p{{Han}}+|{ENDED.replace('M}]', 'M}' + NO_HAN)}|\p{{N}}{{1,3}}|{REST}",)
"""The expression of Kimi K2, whose words have no Chinese characters."""
FINNISH = r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
LLAMA3_WORDS = (
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "jina-v5-nano",
)
GLM = ("glm4", "glm5")
GRANITE = GRANITE_SMALL, GRANITE_LARGE = "granite-embed-multi-97m", "granite-embed-multi-311m"
"""The pre-tokenizers of Granite's multilingual embedding models; that of the larger one has Gemma's kind of pieces."""
ROBERTA = ("roberta-bpe", "jina-v1-en", "jina-v2-code")
"""The names of RoBERTa's pre-tokenizer. Its texts are between two tokens, and the texts of a pair have
two between them."""
COMPOSED = ("modern-bert",)
"""The pre-tokenizers whose texts are normalized to composed characters (NFC), which files do not say."""
ALIGNED = (512, 256, 128, 64, 32, 16, 8, 4, "1,2")
"""Lengths of spaces that Jais 2 keeps together."""
PRE_TOKENIZERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*LLAMA3_WORDS, *GLM, "dbrx", "smaug-bpe", "chatglm-bpe"), LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "solar-open", "grok-2"), QWEN2),
    **dict.fromkeys(("kormo", "f2llmv2"), QWEN2),
    "ufakzeka": (rf"{WORD}|\p{{N}}|{REST}",),
    "laguna": (r"[^\n]+|\n+", *QWEN2),
    "qwen35": (
        rf"{APOSTROPHES}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    **dict.fromkeys(
        ("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4", "mellum"), GPT2
    ),
    **dict.fromkeys(
        ("a.x-4.0", "gigachat", "jina-v2-de", "jina-v2-es", "jina-de", "jina-es", *ROBERTA, *COMPOSED), GPT2
    ),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"), DIGITS),
    "mellum2": DIGITS,
    "afmoe": (r"(?<!\p{N})\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", r"\p{N}{3}", ASIAN, DEEPSEEK3[-1]),
    **dict.fromkeys(("cohere2moe", "tiny_aya"), THOUSANDS),
    "kimi-k2": KIMI,
    "spark2_5": (*DEEPSEEK3[:2], rf"{WORDS_AND_SIGNS}|[\r\n]|\s+(?!\S)|\s+", r"\p{N}"),
    "youtu": (KOREAN_AND_CHINESE, rf"{ENDED}|\p{{N}}|{CASED_REST}"),
    "deepseek-llm": DEEPSEEK,
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_WORDS, r"\p{N}"),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), DEEPSEEK3),
    **dict.fromkeys(
        ("bailingmoe", "bailingmoe2", "llada-moe"),
        (
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
            r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        ),
    ),
    "exaone-moe": (
        rf"{APOSTROPHES}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    ),
    "jais-2": (
        LLAMA3[0].removesuffix(r"\s+(?!\S)|\s+") + "".join(rf"\s{{{count}}}(?!\S)|" for count in ALIGNED) + r"\s",
    ),
    "minicpm5": (r"\p{N}{1,3}", rf"{APOSTROPHES}|{WORD}|\p{{N}}+|{REST}"),
    "seed-coder": (rf"{APOSTROPHES}|{WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), (FINNISH,)),
    "viking": (FINNISH, r"\p{N}"),
    "tekken": (rf"{CASED % ('', '')}|\p{{N}}|{CASED_REST}",),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2", GRANITE_SMALL), GPT4O),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", *GPT2, "[0-9][0-9][0-9]"),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", *GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
}
"""The expressions that split a text, one after the other, by llama.cpp's name. Matches and texts between are parts."""
BEGUN = (*LLAMA3_WORDS, "tekken")
"""The pre-tokenizers whose texts begin with the token bos unless the file says otherwise."""
WHOLE_WORDS = (*BEGUN, *GLM, "minicpm5", "youtu", GRANITE_SMALL)
"""The pre-tokenizers that take a whole word from the vocabulary without merges."""
ENDS = frozenset(
    (
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
        *("<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<eos>"),
        *("<turn|>", "[e~[", "<end_of_utterance>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
        *("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<reponame>"),
        "<|file_sep|>",
    )
)
"""Control tokens that end an answer, whatever the metadata says of them; as in llama.cpp. Those in the last two lines
end code that was filled in."""
MARKS = frozenset(token for token in ENDS if token.startswith("<|"))
"""The tokens in ENDS that are control tokens even if the file calls them user-defined text; others may be tags of
HTML."""
TOOL_RESPONSE = "<|tool_response>"
"""The text that ends an answer of Gemma 4 with calls, although it is not a control token."""
IN_MESSAGES = {"<|return|>", "<|call|>"}, {"<|calls|>", "<|flush|>"}
"""If a vocabulary has two such tokens (of gpt-oss, Solar Open), they end an answer, and <|end|> only ends one of its
messages."""
NAMED = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
"""The tokens that end an answer by their names in the metadata."""
LOWERCASE = "normalizer.lowercase"
"""The key of whether texts are lowercased."""
STRIP_ACCENTS = "normalizer.strip_accents"
"""The key of whether texts lose their accents."""
SPECIAL = (CONTROL, UNKNOWN, USER_DEFINED)
"""The types of tokens that are recognized anywhere in a text."""
SPACE = "\u2581"
CAPITAL = re.compile("[A-Z]")


class TokenizerKind(NamedTuple):
    """The kind of tokenizer that a file describes."""

    model: str
    """The name of the algorithm: gpt2, llama, gemma4, t5 or bert."""
    pre: str | None
    """llama.cpp's name of the pre-tokenizer; None if the file has none."""
    pieces: bool
    """Whether the tokens are texts with SPACE for blanks, and not bytes in the notation of GPT-2."""
    lists_merges: bool
    """Whether the file lists the merges of pieces; otherwise they follow from the scores."""
    prefix: bool
    """Whether a space is put before texts."""

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> TokenizerKind:
        """Returns the kind that the metadata of a file describes."""
        model, pre = metadata["tokenizer.ggml.model"], metadata.get("tokenizer.ggml.pre")
        lists_merges = model == "gemma4" or pre == GRANITE_LARGE
        pieces = model != "gpt2" or lists_merges
        prefix = pieces and bool(metadata.get("tokenizer.ggml.add_space_prefix", not lists_merges))
        return cls(model, pre, pieces, lists_merges, prefix)

    @property
    def words(self) -> bool:
        """Whether the tokens are words and suffixes (WordPiece)."""
        return self.model == "bert"

    @property
    def unigram(self) -> bool:
        """Whether words are divided into the most probable pieces."""
        return self.model == "t5"

    @property
    def framed(self) -> bool:
        """Whether texts begin and end with special tokens unless the file says otherwise."""
        return self.unigram or self.pre in ROBERTA


class TokenizerData:
    """The metadata of a GGUF file from which its tokenizer is built."""

    def __init__(self, header: gguf.Header) -> None:
        """Reads the tokens of a file, and the kind of tokenizer that it describes."""
        self.header = header
        self.tokens: Sequence[str] = header.strings("tokenizer.ggml.tokens")
        """The texts of the vocabulary's tokens."""
        stated = self.get("token_type") or [NORMAL] * len(self.tokens)
        self.types = [
            CONTROL if each == USER_DEFINED and token in MARKS else each
            for token, each in zip(self.tokens, stated, strict=True)
        ]
        """The type of each token. The tokens in MARKS are control tokens if the file calls them user-defined."""
        self.kind = TokenizerKind.of(header.metadata)

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a value of the tokenizer's metadata, or the default if the file has none."""
        return self.header.metadata.get(f"tokenizer.ggml.{name}", default)

    def id(self, name: str) -> int:
        """Returns the id of the special token with this name, such as "eos"; -1 if the file has none."""
        value = self.get(f"{name}_token_id")
        return value if type(value) is int and 0 <= value < self.header.vocab_size else -1


class GgufTokenizer:
    """The tokenizer of a GGUF file, with those methods of openvino_genai.Tokenizer that engine.loading calls."""

    def __init__(self, path: Path) -> None:
        """Builds the tokenizer that a file describes. Raises StartError if that is not possible."""
        header = header_of(path)
        for name in header.lost_tokens:
            log.warning("%s: its %s token is not in its vocabulary, and not used", path.name, name)
        data = TokenizerData(header)
        self.single, self.between = _special_tokens(data)
        try:
            made = _built(data)
        except Exception as error:  # the library raises Exception itself
            raise StartError(f"{path}: its tokenizer cannot be built: {error}; {gguf.EXPORT}") from error
        self.library = JsonTokenizer(made)
        self.vocabulary = Vocabulary(
            pieces=_pieces(data),
            special=frozenset(i for i, each in enumerate(data.types) if each in (CONTROL, UNKNOWN)),
            strip_leading_space=data.kind.prefix,
        )
        self.ends = _ends(data)
        # What is needed later, so that the header with its vocabulary and scores (tens of megabytes) can be freed.
        self._ids = {name: data.id(name) for name in ("eos", "padding")}
        self._texts = {name: header.token(name) for name in ("bos", "eos")}
        template = header.metadata.get(gguf.TEMPLATE)
        self._template = template if isinstance(template, str) else ""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Returns the token ids of a text."""
        ids = self.library.encode(text)
        return [*self.single[0], *ids, *self.single[1]] if add_special_tokens else ids

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        pieces = self.vocabulary.pieces
        hidden = self.vocabulary.special if skip_special_tokens else ()
        data = b"".join(pieces[i] for i in tokens if i < len(pieces) and i not in hidden)
        data = data.removeprefix(b" ") if self.vocabulary.strip_leading_space else data
        return data.decode("utf-8", "replace")

    def get_vocab(self) -> Sequence[bytes]:
        return self.vocabulary.pieces

    def get_eos_token_id(self) -> int:
        return self._ids["eos"]

    def get_pad_token_id(self) -> int:
        return self._ids["padding"]

    def get_bos_token(self) -> str:
        return self._texts["bos"]

    def get_eos_token(self) -> str:
        return self._texts["eos"]

    def get_original_chat_template(self) -> str:
        return self._template


def _special_tokens(data: TokenizerData) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, ...]]:
    """Returns the ids before and after a text, and those between the texts of a pair."""
    kind = data.kind
    if kind.words:
        end = _mark(data, "seperator", "[SEP]")
        return (_mark(data, "cls", "[CLS]"), end), end
    end = _frame(data, "eos", kind.framed)
    between = end
    if data.get("add_sep_token", kind.framed):
        between += _mark(data, "seperator", "</s>")
    return (_frame(data, "bos", kind.pieces or kind.framed), end), between


def _built(data: TokenizerData) -> Any:
    """Builds the library's tokenizer. Raises Exception if it refuses the vocabulary."""
    kind, tokens = data.kind, data.tokens
    if kind.words:
        made = _wordpiece(data)
        tokens = [token.removeprefix(SPACE) for token in tokens]
    elif kind.unigram:
        made = _unigram(data)
    elif kind.pieces:
        made = _sentencepiece(data)
    else:
        made = _bytes(data)
    _add_tokens(made, tokens, data.types, -1 if kind.words or kind.pre in GRANITE else data.id("mask"))
    return made


def _ends(data: TokenizerData) -> set[int]:
    """Returns the ids of the tokens that end an answer."""
    ends = {token: i for i, token in enumerate(data.tokens) if data.types[i] == CONTROL and token in ENDS}
    ends |= {token: i for i, token in enumerate(data.tokens) if data.kind.lists_merges and token == TOOL_RESPONSE}
    if any(ends.keys() >= both for both in IN_MESSAGES):
        ends.pop("<|end|>", None)
    return {i for i in (*ends.values(), *map(data.id, NAMED)) if i >= 0}


def _mark(data: TokenizerData, name: str, usual: str) -> tuple[int, ...]:
    """Returns a special token that every text has at one end, as a tuple of its id, or () if the file has none.

    Args:
        data: The metadata of the file.
        name: The name of the special token in the metadata.
        usual: The usual text of the token, by which it is found if the metadata has no id.
    """
    if (found := data.id(name)) >= 0:
        return (found,)
    return tuple(data.tokens.index(text) for text in [usual] if text in data.tokens)


def _frame(data: TokenizerData, name: str, default: bool) -> tuple[int, ...]:
    """Returns the token that every text begins or ends with, as a tuple of its id, or () if there is none.

    Args:
        data: The metadata of the file.
        name: The name of the special token in the metadata.
        default: Whether texts have the token if the file does not say so.
    """
    default = default or (name == "bos" and data.kind.pre in BEGUN)
    found = data.id(name)
    return (found,) if data.get(f"add_{name}_token", default) and found >= 0 else ()


def _bytes(data: TokenizerData) -> Any:
    """Builds a tokenizer of the kind gpt2."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    name = str(data.kind.pre or "default")
    if name not in PRE_TOKENIZERS:
        raise ValueError(f"the pre-tokenizer {name} is not supported")
    vocab = {token: i for i, token in enumerate(data.tokens)}
    pairs = merges.listed(data.header)
    made = Tokenizer(models.BPE(vocab=vocab, merges=pairs, ignore_merges=name in WHOLE_WORDS))
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PRE_TOKENIZERS[name]]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
    steps: list[Any] = [normalizers.NFC()] if name in COMPOSED else []
    steps += [normalizers.Lowercase()] if data.get(LOWERCASE) is True else []
    if steps:
        made.normalizer = normalizers.Sequence(steps)
    return made


def _sentencepiece(data: TokenizerData) -> Any:
    """Builds a tokenizer of the kind llama or gemma4."""
    from tokenizers import Tokenizer, models, normalizers

    kind, tokens, vocab = data.kind, data.tokens, {token: i for i, token in enumerate(data.tokens)}
    pairs = merges.listed(data.header) if kind.lists_merges else merges.from_scores(data.header, vocab)
    unknown = data.get("unknown_token_id", 0)
    name = tokens[unknown] if type(unknown) is int and 0 <= unknown < len(tokens) else None
    made = Tokenizer(models.BPE(vocab=vocab, merges=pairs, unk_token=name, fuse_unk=True, byte_fallback=True))
    steps = [normalizers.Prepend(SPACE)] if kind.prefix else []
    made.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    return made


def _unigram(data: TokenizerData) -> Any:
    """Builds a tokenizer of the kind t5, which divides a word into the most probable pieces.

    As in transformers, white space always separates words, since llama.cpp's converter writes the value of another
    setting for that into the file. Special tokens get the probability of the rarest piece, since a smaller one would
    raise the cost of unknown text.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    tokens, types, scores = data.tokens, data.types, data.get("scores")
    if not isinstance(scores, list) or len(scores) < len(tokens):
        raise ValueError("its pieces have no scores")
    rarest = min((score for score, each in zip(scores, types, strict=False) if each == NORMAL), default=0.0)
    if (unknown := next((number for number, each in enumerate(types) if each == UNKNOWN), None)) is None:
        raise ValueError("its vocabulary has no token for unknown text")
    vocab = [(token, max(score, rarest)) for token, score in zip(tokens, scores, strict=False)]
    made = Tokenizer(models.Unigram(vocab=vocab, unk_id=unknown))
    charsmap = data.get("precompiled_charsmap")
    if isinstance(charsmap, list) and charsmap:
        replacing = bytes(each & 0xFF for each in charsmap)
        _check_charsmap(replacing)
        made.normalizer = normalizers.Precompiled(replacing)
    pieces = pre_tokenizers.Metaspace(SPACE, prepend_scheme="always" if data.kind.prefix else "never")
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pieces])
    return made


def _check_charsmap(data: bytes) -> None:
    """Raises ValueError if SentencePiece's table of replacements would make the library read beyond its end and crash.

    The table has three parts: the size of the second one in bytes, a double-array trie of 32-bit nodes, and the texts
    to which the trie leads. A node consists of

    - bits 10 and above: the distance to its children in nodes,
    - bit 9: whether that distance is to be multiplied by 256,
    - bit 8: whether its first child is a position in the texts instead of a node.
    """
    size = int.from_bytes(data[:4], "little") // 4 * 4
    nodes = np.frombuffer(data[4 : 4 + min(size, len(data) // 4 * 4 - 4)], "<u4").astype(np.int64)
    texts = np.frombuffer(data[4 + size :], np.uint8)
    read = nodes < 1 << 31  # other nodes are positions of texts; the first one is always a node
    read[:1] = True
    places = np.flatnonzero(read)
    found = nodes[places]
    children = places ^ (found >> 10 << ((found & 1 << 9) >> 6))
    if not nodes.size or (children | 0xFF).max(initial=0) >= nodes.size:
        raise ValueError("its tokenizer.ggml.precompiled_charsmap is truncated")
    begins = nodes[children[found & 1 << 8 > 0]] & ~(1 << 31)
    if begins.max(initial=0) >= max(texts.size, 1) or (texts[begins] & 0xC0 == 0x80).any():
        raise ValueError("the texts of its tokenizer.ggml.precompiled_charsmap are truncated")


def _wordpiece(data: TokenizerData) -> Any:
    """Builds a tokenizer of the kind bert.

    In the file, words begin with a space, and suffixes do not begin with ##, unlike in BERT's own vocabulary. If the
    file does not say whether texts are lowercased, they are if no word has a capital letter.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    typed = [*zip(data.tokens, data.types, strict=True)]
    words = [token for token, each in typed if each == NORMAL]
    vocab = {
        token.removeprefix(SPACE) if each in SPECIAL or token.startswith(SPACE) else f"##{token}": number
        for number, (token, each) in enumerate(typed)
    }
    unknown = (data.header.token("unknown") or "[UNK]").removeprefix(SPACE)
    if unknown not in vocab:
        raise ValueError(f"its vocabulary has no {unknown} for unknown text")
    made = Tokenizer(models.WordPiece(vocab=vocab, unk_token=unknown, max_input_chars_per_word=100))
    lowercase = data.get(LOWERCASE, not any(CAPITAL.search(word) for word in words)) is True
    accents = data.get(STRIP_ACCENTS)  # if the file does not say it, lowercased texts lose their accents
    made.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=accents)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made


def _add_tokens(made: Any, tokens: Sequence[str], types: Sequence[int], mask: int) -> None:
    """Makes the tokenizer recognize special and user-defined tokens anywhere in a text.

    Args:
        made: The tokenizer.
        tokens: The texts of the vocabulary's tokens.
        types: The type of each token, such as normal or control.
        mask: The id of the token that takes the spaces before it, as the mask of RoBERTa, XLM-RoBERTa and ModernBERT
            does; -1 if there is none.
    """
    from tokenizers import AddedToken

    for added in SPECIAL:
        special = added != USER_DEFINED
        found = [i for i, (token, each) in enumerate(zip(tokens, types, strict=True)) if each == added and token]
        add = made.add_special_tokens if special else made.add_tokens
        # Normalized tokens are found last, so that spaces before a mask belong to it, not to a token of spaces.
        late = mask >= 0 and not special
        add([AddedToken(tokens[i], special=special, normalized=late, lstrip=i == mask) for i in found])


def _pieces(data: TokenizerData) -> list[bytes]:
    """Returns the bytes of each token's text."""
    tokens, pieces = data.tokens, data.kind.pieces
    if pieces:
        found = "\0".join(tokens).replace(SPACE, " ").encode().split(b"\0")  # all at once, which is ten times as fast
        if len(found) != len(tokens):
            found = [token.replace(SPACE, " ").encode() for token in tokens]
    else:
        found = [*map(text_to_bytes, tokens)]
    for number, each in enumerate(data.types):
        if each in (CONTROL, UNKNOWN) or (each == USER_DEFINED and not pieces):
            found[number] = tokens[number].encode()
        elif each == BYTE and pieces:
            found[number] = byte_fallback(tokens[number].encode())
        elif each == UNUSED:
            found[number] = b""  # such as [PAD151754], an id with which the converter filled up the vocabulary
    return found
