"""Closed knowledge: capitals, colours of things, a few opposites; and questions the model must not pretend to know."""

from __future__ import annotations

from tools.demo_model.dialog import Exchange, ask_for, vary
from tools.demo_model.words import NOUNS, Rng, each, invented, phrase

# fmt: off
CAPITALS = dict(
    pair.split(":") for pair in each(
        "France:Paris Germany:Berlin Italy:Rome Spain:Madrid England:London Austria:Vienna Portugal:Lisbon "
        "Norway:Oslo Greece:Athens "
        "Ireland:Dublin Poland:Warsaw Hungary:Budapest Switzerland:Bern Egypt:Cairo Japan:Tokyo China:Beijing "
        "India:Delhi "
        "Canada:Ottawa Australia:Canberra Sweden:Stockholm Denmark:Copenhagen Finland:Helsinki Belgium:Brussels "
        "Turkey:Ankara "
        "Russia:Moscow Cuba:Havana Peru:Lima Kenya:Nairobi Thailand:Bangkok Iceland:Reykjavik"
    )
)
COLOUR_OF = dict(
    pair.split(":") for pair in each(
        "sky:blue grass:green snow:white coal:black blood:red banana:yellow milk:white sun:yellow carrot:orange "
        "night:black "
        "tomato:red ocean:blue lemon:yellow chocolate:brown cloud:white strawberry:red pig:pink elephant:grey "
        "frog:green gold:yellow"
    )
)
OPPOSITES = dict(
    pair.split(":") for pair in each(
        "hot:cold big:small old:new fast:slow up:down left:right day:night good:bad happy:sad open:closed full:empty "
        "hard:soft "
        "light:dark high:low long:short early:late rich:poor strong:weak yes:no in:out"
    )
)
OPPOSITES |= {b: a for a, b in OPPOSITES.items()}
CAPITAL_WAYS = (
    "What is the capital of {}?", "Which city is the capital of {}?", "Name the capital of {}.",
    "Tell me the capital of {}.",
    "What's the capital of {}?", "Capital of {}?", "Do you know the capital of {}?", "I forgot the capital of {}.",
    "Can you tell me the capital of {}?", "The capital of {}, what is it?", "What city is the capital of {}?",
    "Give me the capital of {}.", "What is {}'s capital?", "Which city is {}'s capital?", "{}: what is its capital?",
    "{}'s capital?", "In {}, which city is the capital?", "{} has which capital?",
    "What do they call the capital of {}?",
    "And the capital of {}?", "The capital of {} is called what?", "Which capital does {} have?", "{} and its capital?",
    "What capital does {} have?", "Which is the capital of {}?", "What city is {}'s capital?", "{}, which capital?",
    "Say the capital of {}.", "How is the capital of {} called?", "The name of the capital of {}?",
)
COLOUR_WAYS = (
    "What color is {}?", "What is the color of {}?", "Which color does {} have?", "Tell me the color of {}.",
    "What colour is {}?",
    "Which colour is {}?", "What is the colour of {}?", "Do you know the color of {}?", "What color does {} have?",
    "Name the color of {}.", "{}: which color?", "{} is of what color?", "Of which color is {}?", "{} - what color?",
    "What color has {}?", "In what color do I paint {}?", "{} has what colour?", "What colour does {} have?",
    "Which colour has {}?", "And what color is {}?", "What color would you give {}?", "{}, what color is it?",
    "If I look at {}, which color do I see?", "How is {} colored?", "What is the usual color of {}?",
    "{} and its color?", "Say the color of {}.", "Which color do you connect with {}?", "{} comes in which color?",
)
OPPOSITE_WAYS = (
    "What is the opposite of {}?", "Tell me the opposite of {}.", "What's the opposite of {}?",
    "Name the opposite of {}.",
    "Which word is the opposite of {}?", "Give me the opposite of {}.", "The opposite of {}?",
)
SORRY = "Sorry, I do not know that."
UNKNOWN_WAYS = (
    "Why does {n} {v} {m}?", "Who invented the {n}?", "How old is the {n}?", "When was the {n} made?",
    "What is the best {n}?",
    "How many {n}s are there in the world?", "Why is the {n} so {a}?", "Where can I buy a {n}?", "Who is {p}?",
    "What is {x}?",
    "Explain the theory of {n}s.", "Who won the {n} game in 19{d}{d}?", "How do I repair a {n}?",
    "What is the meaning of {x}?",
    "Write an essay about the {n}.", "How heavy is a {n}?", "Tell me about {p}.",
    "What happened in the year 1{d}{d}{d}?",
    "Who wrote the book about the {n}?", "How does a {n} work?", "What should I cook with {n}?",
    "Is a {n} better than a {m}?",
    "How far is it from the {n} to the {m}?", "What do you think about {n}s?", "Why do people like {n}s?",
    "How do I make a {n}?",
    "Who is the president of {p}?", "How tall is {p}?", "Solve the equation with {x} and {n}.",
    "What is the population of {p}?",
    "How long does a {n} live?", "Give me a recipe for {n} soup.", "What will happen to the {n} tomorrow?",
    "Where is {p}?",
    "What is the weather in {p}?", "What is the weather today?", "How is the weather?", "What time is it?",
    "What is the date today?", "What is the news?", "What day is it?",
    "How is the weather in {p}?", "What time is it in {p}?", "Where is my order?", "What is the price of {n}?",
    "When was {p} born?", "Who painted the {n}?", "What causes {n}s?", "Should I buy a {n}?",
    "Describe the history of the {n}.",
)
# fmt: on


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


def ask_capital(r: Rng) -> Exchange:
    land, city = r.choice(list(CAPITALS.items()))
    answer = f"The capital of {land} is {city}."
    thing = r.choice(
        (
            "the capital of {}",
            "the capital of {}",
            "the capital city of {}",
            "{}'s capital",
            "the name of the capital of {}",
        )
    ).format(land)
    question = ask_for(r, thing) if r.random() < 0.5 else r.choice(CAPITAL_WAYS).format(land)
    return Exchange(vary(r, question), answer, f"The user asks for the capital of {land}. It is {city}.")


def ask_colour(r: Rng) -> Exchange:
    if r.random() < 0.4:
        word, other = r.choice(list(OPPOSITES.items()))
        question = vary(
            r, ask_for(r, f"the opposite of {word}") if r.random() < 0.5 else r.choice(OPPOSITE_WAYS).format(word)
        )
        return Exchange(
            question, f"The opposite of {word} is {other}.", f"The user asks for the opposite of {word}. It is {other}."
        )
    thing, colour = r.choice(list(COLOUR_OF.items()))
    which = f"the {thing}"
    answer = f"The color of {which} is {colour}."
    question = (
        ask_for(r, f"the {r.choice(('color', 'colour'))} of {which}")
        if r.random() < 0.5
        else capital(r.choice(COLOUR_WAYS).format(which))
    )
    return Exchange(vary(r, question), answer, f"The user asks for the color of {which}. It is {colour}.")


def ask_unknown(r: Rng) -> Exchange:
    question = r.choice(UNKNOWN_WAYS).format(
        n=r.choice(NOUNS),
        m=r.choice(NOUNS),
        a=r.choice(("big", "old", "heavy", "loud", "red", "expensive", "strange", "famous")),
        v=r.choice(("need", "make", "like", "hate", "move", "follow", "stop", "eat")),
        p=invented(r).capitalize(),
        x=invented(r) if r.random() < 0.5 else phrase(r, 1, 2),
        d=r.randint(0, 9),
    )
    if r.random() < 0.3:
        n, m, x = r.choice(NOUNS), r.choice(NOUNS), invented(r)
        thing = r.choice(
            (
                "the age of {n}",
                "the price of a {n}",
                "the meaning of {x}",
                "the history of the {n}",
                "the best {n} in {x}",
                "the theory of {x}",
                "a recipe with {n} and {m}",
                "the weight of a {n}",
                "the way to {x}",
                "the name of the king of {x}",
                "the reason for the {n}",
                "the difference between a {n} and a {m}",
                "the number of {n}s in {x}",
            )
        ).format(n=n, m=m, x=x)
        question = ask_for(r, thing)
    return Exchange(vary(r, question), SORRY, "The user asks for something that I do not know.")
