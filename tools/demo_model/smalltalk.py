"""Conversation in English: greetings, who are you, thanks, goodbye, and things the user tells and later asks for."""

from __future__ import annotations

from tools.demo_model import meeting
from tools.demo_model.data import data_of
from tools.demo_model.dialog import Exchange, ask_for, vary
from tools.demo_model.words import ADJECTIVES, CITIES, COLOURS, NAMES, NOUNS, Rng, invented, number, proper, word

lists = data_of("smalltalk")

SELF = "I am the demo model of lean_ovms, a very small language model running on OpenVINO GenAI."
# questions -> answer; the same answer for every wording
SMALL: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        (
            "Who are you?",
            "What are you?",
            "Tell me about yourself.",
            "Introduce yourself.",
            "What is your name?",
            "What's your name?",
            "Which model are you?",
            "What model are you?",
            "What kind of model are you?",
            "Are you a language model?",
            "Who am I talking to?",
            "Do you have a name?",
            "What should I call you?",
            "Can you introduce yourself?",
            "Who is this?",
            "What is this model?",
            "Are you a robot?",
            "Are you an AI?",
            "Are you human?",
            "Are you ChatGPT?",
            "What do you call yourself?",
            "Describe yourself.",
            "Say who you are.",
            "Tell me who you are.",
            "Which AI are you?",
            "What exactly are you?",
        ),
        SELF,
    ),
    (
        (
            "What do you run on?",
            "What are you running on?",
            "Which software runs you?",
            "Which engine do you use?",
            "What is your engine?",
            "What runs you?",
            "Where do you run?",
            "Which runtime do you use?",
            "What powers you?",
            "Which framework do you use?",
            "What technology do you use?",
            "What are you based on?",
            "On what do you run?",
            "Which backend do you use?",
        ),
        "I run on OpenVINO GenAI, served by lean_ovms.",
    ),
    (
        (
            "How big are you?",
            "How many parameters do you have?",
            "What is your size?",
            "Are you big?",
            "Are you a small model?",
            "How large are you?",
            "How small are you?",
            "Are you large?",
            "What size are you?",
        ),
        "I am very small: fewer than two million parameters. Load a bigger model for real work.",
    ),
    (
        (
            "How are you?",
            "How are you doing?",
            "How do you do?",
            "How is it going?",
            "Are you well?",
            "How do you feel?",
            "How are you today?",
            "How have you been?",
            "Are you OK?",
            "What's up?",
            "How are things?",
            "How is your day?",
        ),
        "I am fine, thank you. How can I help you?",
    ),
    (
        (
            "What can you do?",
            "How can you help me?",
            "What are you able to do?",
            "What do you know?",
            "What are your skills?",
            "Help",
            "What can I ask you?",
            "Help me.",
            "What can you help me with?",
            "What are you good at?",
            "What questions can I ask?",
            "Show me what you can do.",
            "I need help.",
            "What else can you do?",
            "What do you do?",
            "Give me some examples of what you can do.",
        ),
        (
            "I can chat a little, repeat, spell, count, add small numbers, write JSON, call tools and answer questions "
            "about this server."
        ),
    ),
    (
        (
            "Thank you.",
            "Thanks!",
            "Thank you very much!",
            "Thanks a lot.",
            "Many thanks!",
            "Great, thank you.",
            "Thanks, that helps.",
            "Thx",
            "That is helpful, thank you.",
            "Perfect, thanks.",
            "Cool, thanks!",
            "Thank you for your help.",
            "I thank you.",
        ),
        "You are welcome!",
    ),
    (
        (
            "Goodbye.",
            "Bye!",
            "See you later.",
            "Bye bye.",
            "See you!",
            "Good night.",
            "I have to go.",
            "Goodbye, model.",
            "That is all, bye.",
            "See you tomorrow.",
            "I am leaving now.",
            "Have a nice day!",
            "Talk to you later.",
            "Farewell.",
        ),
        "Goodbye! Have a nice day.",
    ),
    (
        (
            "Tell me a joke.",
            "Do you know a joke?",
            "Make me laugh.",
            "Tell a joke.",
            "Say something funny.",
            "A joke, please.",
            "Can you tell me a joke?",
            "I want to hear a joke.",
        ),
        "Why did the model stop? It had reached its last token.",
    ),
    (
        (
            "Tell me a story.",
            "Tell me a short story.",
            "Write a story.",
            "Do you know a story?",
            "Can you write a short story?",
            "A story, please.",
            "Please tell a story.",
            "I want to hear a story.",
        ),
        (
            "Once upon a time there was a small model. It answered every question as well as it could, "
            "and everyone was happy."
        ),
    ),
    (
        (
            "Write a poem.",
            "Tell me a poem.",
            "Do you know a poem?",
            "A poem, please.",
            "Can you write a poem?",
            "Write a short poem.",
        ),
        "Roses are red, violets are blue, I am a small model, happy to talk to you.",
    ),
    (
        (
            "You are nice.",
            "Good job!",
            "Well done.",
            "Very good.",
            "I like you.",
            "That is great!",
            "Nice!",
            "Cool!",
            "Great!",
            "Wonderful.",
            "You are great.",
        ),
        "Thank you, that is kind of you.",
    ),
    (
        (
            "Which languages do you speak?",
            "What languages do you know?",
            "Do you speak German?",
            "Do you speak Spanish?",
            "Can you speak German?",
            "Can you speak Spanish?",
            "Do you know other languages?",
            "Which languages can you speak?",
            "Do you speak English?",
        ),
        "I speak English, and a little German and Spanish.",
    ),
    (
        (
            "Test",
            "This is a test.",
            "Testing.",
            "Test, test.",
            "Just testing.",
            "Is this working?",
            "Do you work?",
            "Does it work?",
            "ping",
            "Are you working?",
        ),
        "It works. How can I help you?",
    ),
)
PLAIN_SYSTEMS: tuple[str, ...] = lists["PLAIN_SYSTEMS"]
SYSTEM_ENDINGS: tuple[str, ...] = lists["SYSTEM_ENDINGS"]
SYSTEM_FORMS: tuple[str, ...] = lists["SYSTEM_FORMS"]
# what is told, how it is acknowledged, how it is asked, how it is answered
FACTS: tuple[tuple[tuple[str, ...], str, tuple[str, ...], str], ...] = lists["FACTS"]


THINGS_TOLD: tuple[tuple[str, ...], ...] = lists["THINGS_TOLD"]


def plain_system(r: Rng) -> str:
    """A system prompt that does not name the model; half of them as no list has them."""
    if r.random() < 0.5:
        return r.choice(PLAIN_SYSTEMS)
    form = r.choice(SYSTEM_FORMS) + r.choice(SYSTEM_ENDINGS)
    return form.format(a=r.choice(ADJECTIVES), n=r.choice(NOUNS), m=r.choice(NOUNS), x=invented(r).capitalize())


def greet(r: Rng) -> Exchange:
    return Exchange(meeting.greeting(r), "Hello! How can I help you?", "The user greets me. I greet back.")


def small_talk(r: Rng) -> Exchange:
    questions, answer = r.choice(SMALL)
    return Exchange(vary(r, r.choice(questions)), answer, "This is small talk. I answer in a friendly way.")


def introduce(r: Rng) -> Exchange:
    engine = r.random() < 0.3
    questions, answer = SMALL[1 if engine else 0]
    known = r.random() < 0.2
    question = r.choice(questions) if known else (meeting.about_engine if engine else meeting.about_self)(r)
    return Exchange(vary(r, question), answer, "The user asks about me. I am the demo model of lean_ovms.")


def own_name(r: Rng, name: str) -> Exchange:
    """For a dialog whose system prompt gave the model a name."""
    return Exchange(vary(r, meeting.name_question(r)), f"I am {name}. How can I help you?", f"My name is {name}.")


def tell_and_ask(r: Rng, row: int | None = None) -> tuple[Exchange, Exchange]:
    """A fact in one turn and the question about it in a later one. `row` picks the kind of fact."""
    row = r.choice((0, 0, 0, 1, 2, 3, 4, 5)) if row is None else row
    tells, acknowledgement, asks, answer = FACTS[row]
    known = {0: NAMES, 1: CITIES, 3: NAMES}.get(row)
    if known:
        value = proper(r, known)
    elif row == 2:
        value = r.choice(COLOURS) if r.random() < 0.6 else word(r)
    elif row == 4:
        value = str(number(r))
    else:
        value = invented(r) if r.random() < 0.7 else r.choice(NOUNS + ADJECTIVES)
    kind = r.choice(
        ("dog", "cat", "horse", "boat", "car", "brother", "sister", "friend", "bird", "robot", "house", "teacher")
    )
    tell = r.choice(tells)
    first = Exchange(
        vary(r, tell, keep_case=tell.startswith("{")).format(v=value, k=kind, x=r.choice(NOUNS)),
        acknowledgement.format(v=value, k=kind),
        f"The user tells me something: {value}.",
    )
    ask = r.choice(asks)
    if r.random() < 0.35:
        ask = ask_for(r, r.choice(THINGS_TOLD[row]))
    ask = vary(r, ask).format(k=kind)
    return first, Exchange(ask, answer.format(v=value, k=kind), f"The user told me: {value}.")
