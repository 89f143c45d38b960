"""Exercises that need practice: spelling, counting and sums. The words to spell contain every piece of the
vocabulary."""

from __future__ import annotations

from tools.demo_model.data import data_of
from tools.demo_model.dialog import Exchange, ask_for, ask_to, vary
from tools.demo_model.words import LEXICON, NAMES, NOUNS, Rng, invented, letters, patch, word

(
    SPELL_WAYS, SPELL_DEEDS, SPELL_MANY, FIRST_WAYS, COUNT_WAYS, COUNT_TO_WAYS, COUNT_DEEDS, DOWN_WAYS, ADD_WAYS,
    ADD_DEEDS, TAKE_WAYS, NUMBERS, SPELL_THINGS, ADD_THINGS, held_out_sums, held_out_counts
) = data_of("drills").values()  # fmt: skip
HELD_OUT_SUMS, HELD_OUT_COUNTS = frozenset(held_out_sums), frozenset(held_out_counts)

PIECES: list[str] = []  # the vocabulary's pieces that consist of letters; filled when training starts


def speller(r: Rng) -> str:
    """Returns a word to spell. Most consist of vocabulary pieces drawn evenly, so that the model learns the letters of
    each."""
    kind = r.random()
    if kind < 0.45 and PIECES:
        text = "".join(r.choice(PIECES) for _ in range(r.choice((1, 1, 2, 2, 3))))
        return text if r.random() < 0.8 else text.lower()
    if kind < 0.6:
        return r.choice(LEXICON)
    if kind < 0.7:
        return r.choice(NAMES) if r.random() < 0.5 else word(r)
    if kind < 0.8:
        return letters(r, 2, 8)
    if kind < 0.85:
        return patch(r) + invented(r)
    return invented(r) if r.random() < 0.8 else invented(r).upper()


def spell(r: Rng) -> Exchange:
    if r.random() < 0.3:
        return spell_many(r)
    text = speller(r)
    way = r.choice(SPELL_WAYS)
    if r.random() < 0.4:
        way = ask_to(r, r.choice(SPELL_DEEDS))
    elif r.random() < 0.15:
        way = ask_for(r, r.choice(SPELL_THINGS))
    if r.random() < 0.06:
        place = r.choice(("first", "last"))
        letter = text[0 if place == "first" else -1]
        return Exchange(
            vary(r, r.choice(FIRST_WAYS), keep_case=True).format(place, text),
            f"The {place} letter of {text} is {letter}.",
            f"The user wants one letter of {text}.",
        )
    answer = "-".join(text)
    return Exchange(vary(r, way, keep_case=True).format(text), answer, f"The user wants the letters of {text}.")


def spell_many(r: Rng) -> Exchange:
    """Asks for the spelling of several words, which users do, and which gives the most practice per token."""
    texts = [speller(r) for _ in range(r.choice((2, 2, 3, 4)))]
    listed = ", ".join(texts[:-1]) + r.choice((" and ", ", ")) + texts[-1]
    question = vary(r, r.choice(SPELL_MANY), keep_case=True).format(listed)
    return Exchange(question, ", ".join("-".join(t) for t in texts), "The user wants the letters of several words.")


def spell_list(r: Rng) -> Exchange:
    """Asks for the spelling of many words, mostly made of vocabulary pieces: the letters of 1,800 pieces must be
    learned."""
    texts = [speller(r) for _ in range(r.randint(5, 12))]
    question = r.choice(SPELL_MANY).format(", ".join(texts))
    return Exchange(question, ", ".join("-".join(t) for t in texts), "The user wants the letters of several words.")


def add_list(r: Rng) -> Exchange:
    """Asks for many sums."""
    pairs = [pair for pair in (summands(r) for _ in range(r.randint(4, 11))) if pair not in HELD_OUT_SUMS]
    sign = r.choice((" + ", " + ", " plus ", "+"))
    listed = ", ".join(f"{a}{sign}{b}" for a, b in pairs or [(1, 1)])
    answer = ", ".join(f"{a} + {b} = {a + b}" for a, b in pairs or [(1, 1)]) + "."
    ways = ("What is {}?", "Compute {}.", "Calculate {}.", "Add: {}", "Solve {}.", "{}", "How much is {}?", "Sums: {}")
    return Exchange(r.choice(ways).format(listed), answer, "The user wants several sums.")


def digits_or_words(r: Rng, *values: int) -> list[str]:
    spoken = r.random() < 0.3 and max(values) <= 20
    return [NUMBERS[v] if spoken else str(v) for v in values]


def count(r: Rng) -> Exchange:
    if r.random() < 0.08:
        high = r.randint(3, 12)
        down = ", ".join(str(i) for i in range(high, 0, -1)) + "."
        way = r.choice(DOWN_WAYS).format(a=digits_or_words(r, high)[0])
        return Exchange(vary(r, way), down, f"The user wants to count down from {high}.")
    low = 1 if r.random() < 0.35 else r.randint(0, 30)
    high = low + (r.randint(1, 9) if r.random() < 0.85 else r.randint(10, 20))
    if (low, high) in HELD_OUT_COUNTS:
        return count(r)
    a, b = digits_or_words(r, low, high)
    question = r.choice(COUNT_TO_WAYS if low == 1 and r.random() < 0.6 else COUNT_WAYS)
    if r.random() < 0.35:
        question = ask_to(r, r.choice(COUNT_DEEDS))
    elif r.random() < 0.15:
        question = ask_for(r, "the numbers from {a} to {b}")
    thought = f"The user wants the numbers from {low} to {high}."
    question = vary(r, question.format(a=a, b=b))
    if high <= 20 and r.random() < 0.08:
        question = question.rstrip(".?!") + r.choice((" in words.", " in words", ", in words please."))
        return Exchange(question, ", ".join(NUMBERS[low : high + 1]) + ".", thought)
    return Exchange(question, ", ".join(str(i) for i in range(low, high + 1)) + ".", thought)


def summands(r: Rng) -> tuple[int, int]:
    """Draws two numbers to add: small ones, as people ask, and larger ones, which show how digits add up."""
    kind = r.random()
    if kind < 0.4:
        return r.randint(0, 12), r.randint(0, 12)
    if kind < 0.6:
        return r.randint(0, 30), r.randint(0, 30)
    if kind < 0.7:
        return (r.randint(0, 9), r.randint(10, 99))[:: r.choice((1, -1))]  # type: ignore[return-value]
    return r.randint(0, 99), r.randint(0, 99)


def add(r: Rng) -> Exchange:
    if r.random() < 0.08:
        return subtract(r)
    a, b = summands(r)
    if (a, b) in HELD_OUT_SUMS:
        return add(r)
    x, y = digits_or_words(r, a, b) if r.random() < 0.3 else (str(a), str(b))
    noun = r.choice(NOUNS)
    question = r.choice(ADD_WAYS).format(a=x, b=y, n=noun)
    if r.random() < 0.35:
        if r.random() < 0.5:
            question = ask_for(r, r.choice(ADD_THINGS).format(a=x, b=y))
        else:
            question = ask_to(r, r.choice(ADD_DEEDS).format(a=x, b=y))
    question = vary(r, question.replace(" + ", "+") if r.random() < 0.2 else question, keep_case=True)
    return Exchange(question, f"{a} + {b} = {a + b}.", f"The user wants a sum. {a} + {b} = {a + b}.")


def subtract(r: Rng) -> Exchange:
    b = r.randint(0, 10)
    a = b + r.randint(0, 10)
    question = vary(r, r.choice(TAKE_WAYS).format(a=a, b=b), keep_case=True)
    return Exchange(question, f"{a} - {b} = {a - b}.", f"The user wants a difference. {a} - {b} = {a - b}.")
