"""Names of languages by their codes in Whisper's vocabulary."""

from __future__ import annotations

from collections.abc import Collection

NAMES = {
    "en": "english", "zh": "chinese", "de": "german", "es": "spanish", "ru": "russian", "ko": "korean",
    "fr": "french", "ja": "japanese", "pt": "portuguese", "tr": "turkish", "pl": "polish", "ca": "catalan",
    "nl": "dutch", "ar": "arabic", "sv": "swedish", "it": "italian", "id": "indonesian", "hi": "hindi",
    "fi": "finnish", "vi": "vietnamese", "he": "hebrew", "uk": "ukrainian", "el": "greek", "ms": "malay",
    "cs": "czech", "ro": "romanian", "da": "danish", "hu": "hungarian", "ta": "tamil", "no": "norwegian",
    "th": "thai", "ur": "urdu", "hr": "croatian", "bg": "bulgarian", "lt": "lithuanian", "la": "latin",
    "mi": "maori", "ml": "malayalam", "cy": "welsh", "sk": "slovak", "te": "telugu", "fa": "persian",
    "lv": "latvian", "bn": "bengali", "sr": "serbian", "az": "azerbaijani", "sl": "slovenian", "kn": "kannada",
    "et": "estonian", "mk": "macedonian", "br": "breton", "eu": "basque", "is": "icelandic", "hy": "armenian",
    "ne": "nepali", "mn": "mongolian", "bs": "bosnian", "kk": "kazakh", "sq": "albanian", "sw": "swahili",
    "gl": "galician", "mr": "marathi", "pa": "punjabi", "si": "sinhala", "km": "khmer", "sn": "shona",
    "yo": "yoruba", "so": "somali", "af": "afrikaans", "oc": "occitan", "ka": "georgian", "be": "belarusian",
    "tg": "tajik", "sd": "sindhi", "gu": "gujarati", "am": "amharic", "yi": "yiddish", "lo": "lao",
    "uz": "uzbek", "fo": "faroese", "ht": "haitian creole", "ps": "pashto", "tk": "turkmen", "nn": "nynorsk",
    "mt": "maltese", "sa": "sanskrit", "lb": "luxembourgish", "my": "myanmar", "bo": "tibetan", "tl": "tagalog",
    "mg": "malagasy", "as": "assamese", "tt": "tatar", "haw": "hawaiian", "ln": "lingala", "ha": "hausa",
    "ba": "bashkir", "jw": "javanese", "su": "sundanese", "yue": "cantonese", "fil": "filipino",
}  # fmt: skip
_OTHER_NAMES = {
    "burmese": "my", "valencian": "ca", "flemish": "nl", "haitian": "ht", "letzeburgesch": "lb", "pushto": "ps",
    "panjabi": "pa", "moldavian": "ro", "moldovan": "ro", "sinhalese": "si", "castilian": "es", "mandarin": "zh",
    "jv": "jw", "nb": "no", "iw": "he",
}  # fmt: skip
_CODES = {name: code for code, name in NAMES.items()} | _OTHER_NAMES


WITHOUT_SPACES = ("zh", "ja", "th", "lo", "my", "yue")
"""The languages without spaces between words."""
_UNSPACED = (
    ("\u0e00", "\u0eff"), ("\u1000", "\u109f"), ("\u1780", "\u17ff"), ("\u3000", "\u30ff"), ("\u3400", "\u9fff"),
    ("\uff00", "\uffef"),
)  # fmt: skip
"""Scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana, Han, and their punctuation."""


def separated(text: str) -> str:
    """Puts a space before a text that follows another one, unless it has one or its script is without spaces."""
    if not text or text[0].isspace() or any(first <= text[0] <= last for first, last in _UNSPACED):
        return text
    return f" {text}"


def find(text: str, known: Collection[str]) -> str:
    """Returns the known code of a language named as en, EN, en-US, english or <|en|>, or "" if it is unknown."""
    name = text.strip().removeprefix("<|").removesuffix("|>").lower()
    short = name.replace("_", "-").partition("-")[0]
    for code in (name, _CODES.get(name, ""), short, _CODES.get(short, "")):
        if code and code in known:
            return code
    return ""


def name_of(code: str) -> str:
    """Returns the English name of a language, or its code if the name is not listed."""
    return NAMES.get(code, code)
