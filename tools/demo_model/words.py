"""The words of the training text, and invented words.

Training may only use these lists. `heldout.py` has the evaluation's words, and a test checks that the two are disjoint.
A tiny model that only sees known words memorizes them. About half of all values that it must copy are therefore
invented, so that copying is easier to learn than memorizing.
"""

from __future__ import annotations

import random

from tools.demo_model.data import data_of

NAMES, CITIES, NOUNS, ADJECTIVES, VERBS, THINGS, PARAMS, COMMON, EDGES = data_of("words").values()

Rng = random.Random


def each(words: str) -> list[str]:
    return words.split()


COLOURS = each("red blue green yellow black white orange purple pink brown grey")
CONSONANTS = "bcdfghjklmnpqrstvwxyz"
VOWELS = "aeiou"
ACCENTED = "áéíóúàèäëïöüâêôãõñçåøæßłşğžčšńć"


def syllables(r: Rng) -> str:
    """Returns a pronounceable word without a meaning."""
    word = ""
    for _ in range(r.choice((1, 2, 2, 2, 3, 3))):
        onset = r.choice(EDGES) if r.random() < 0.2 else r.choice(CONSONANTS) if r.random() < 0.9 else ""
        coda = r.choice(CONSONANTS) if r.random() < 0.4 else ""
        word += onset + r.choice(VOWELS) + coda
    return word if len(word) > 1 else word + r.choice(CONSONANTS)


def splice(r: Rng) -> str:
    """Joins the beginning of one known word to the end of another, with letter groups that `syllables` never makes."""
    a, b = (r.choice(r.choice((NOUNS, VERBS, PARAMS, THINGS, NAMES))).lower() for _ in range(2))
    return a[: r.randint(1, len(a))] + b[r.randint(0, len(b) - 1) :]


LEXICON: list[str] = []  # every word of the generator's sentences, filled by `corpus`


def patch(r: Rng) -> str:
    """Joins the beginning of one word of the sentences to the end of another.

    A frequent word is one piece of the vocabulary, and its parts ("Cal" of "Calculate") are pieces that occur nowhere
    else. Without these values the model would never have copied such a piece, and would fail at "Calgary".
    """
    a, b = r.choice(LEXICON), r.choice(LEXICON)
    return a[: r.randint(1, len(a))] + b[r.randint(0, len(b) - 1) :].lower()


def letters(r: Rng, low: int = 2, high: int = 7) -> str:
    return "".join(r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(r.randint(low, high)))


def code(r: Rng) -> str:
    """Returns an order number, part number or id of letters, digits and dashes."""
    alphabet = r.choice(("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", "abcdefghijklmnopqrstuvwxyz0123456789", "0123456789"))
    parts = ["".join(r.choice(alphabet) for _ in range(r.randint(2, 5))) for _ in range(r.choice((1, 1, 1, 2)))]
    return r.choice("-_/.").join(parts)


def invented(r: Rng) -> str:
    """Returns an invented word in lower case."""
    return r.choice((syllables, syllables, syllables, splice, splice, patch, patch, patch, letters))(r)


def word(r: Rng) -> str:
    """Returns a word in lower case, invented half of the time."""
    return invented(r) if r.random() < 0.5 else r.choice(r.choice((NOUNS, ADJECTIVES, THINGS)))


def proper(r: Rng, known: list[str]) -> str:
    """Returns a capitalized word from a list, or invented; sometimes two of them, or all in capitals."""
    if r.random() < 0.4:
        return r.choice(known)
    name = invented(r).capitalize()
    if r.random() < 0.06:
        i = r.randrange(len(name))
        name = name[:i] + r.choice(ACCENTED) + name[i + 1 :]
    kind = r.random()
    if kind < 0.12:
        return name + r.choice((" ", " ", "-")) + invented(r).capitalize()
    return name.upper() if kind < 0.16 else name


def phrase(r: Rng, low: int = 1, high: int = 4) -> str:
    """Returns several words, like a message or a title."""
    if r.random() < 0.25:
        words = [r.choice(COMMON) if r.random() < 0.6 else word(r) for _ in range(r.randint(low, high + 2))]
        return " ".join(words) if r.random() < 0.6 else " ".join(words).capitalize()
    words = [word(r) if r.random() < 0.8 else r.choice(ADJECTIVES) for _ in range(r.randint(low, high))]
    if r.random() < 0.15:
        words[0] = words[0].capitalize()
    if r.random() < 0.05:
        words = [w.capitalize() for w in words]
    text = " ".join(words)
    return text + r.choice("!?.") if r.random() < 0.06 else text


def value(r: Rng) -> str:
    """Returns any short string that a tool could take as an argument."""
    kind = r.random()
    if kind < 0.30:
        return word(r)
    if kind < 0.55:
        return proper(r, CITIES + NAMES)
    if kind < 0.70:
        return code(r)
    if kind < 0.93:
        return phrase(r, 2, 4)
    if kind < 0.945:
        return foreign_script(r)
    if kind < 0.965:
        return f"{invented(r)}@{invented(r)}.{r.choice(('com', 'org', 'net', 'de'))}"
    if kind < 0.98:
        return f"20{r.randint(10, 39)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}"
    return f"{r.randint(0, 23)}:{r.randint(0, 59):02d}"


def foreign_script(r: Rng) -> str:
    """Returns characters of several bytes each, so that pieces of the vocabulary that are parts of characters are
    trained too."""
    scripts = (0x3041, 0x3093), (0x4E00, 0x4FFF), (0x1F600, 0x1F64F), (0x1F300, 0x1F37F)
    first, last = r.choice((*scripts, (0x430, 0x44F), (0x3B1, 0x3C9), (0xC0, 0xFF)))
    return "".join(chr(r.randint(first, last)) for _ in range(r.randint(1, 4)))


def number(r: Rng) -> int:
    return r.choice((r.randint(0, 12), r.randint(0, 99), r.randint(100, 999), r.randint(1000, 9999)))


def decimal(r: Rng) -> float:
    return round(r.randint(0, 99) + r.choice((0.5, 0.25, 0.1, 0.75, r.randint(1, 9) / 10)), 2)


def snake(parts: list[str]) -> str:
    return "_".join(parts)


def camel(parts: list[str]) -> str:
    return parts[0] + "".join(p.capitalize() for p in parts[1:])
