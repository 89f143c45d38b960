"""Conversation in English: greetings, who are you, thanks, goodbye, and things the user tells and later asks for."""

from __future__ import annotations

from tools.demo_model import meeting
from tools.demo_model.dialog import Exchange, ask_for, vary
from tools.demo_model.words import ADJECTIVES, CITIES, COLOURS, NAMES, NOUNS, Rng, invented, number, proper, word

# fmt: off
SELF = "I am the demo model of lean_ovms, a very small language model running on OpenVINO GenAI."
# questions -> answer; the same answer for every wording
SMALL: tuple[tuple[tuple[str, ...], str], ...] = (
    (("Who are you?", "What are you?", "Tell me about yourself.", "Introduce yourself.", "What is your name?",
        "What's your name?",
      "Which model are you?", "What model are you?", "What kind of model are you?", "Are you a language model?",
      "Who am I talking to?",
      "Do you have a name?", "What should I call you?", "Can you introduce yourself?", "Who is this?",
      "What is this model?",
      "Are you a robot?", "Are you an AI?", "Are you human?", "Are you ChatGPT?", "What do you call yourself?",
      "Describe yourself.",
      "Say who you are.", "Tell me who you are.", "Which AI are you?", "What exactly are you?"), SELF),
    (("What do you run on?", "What are you running on?", "Which software runs you?", "Which engine do you use?",
        "What is your engine?",
      "What runs you?", "Where do you run?", "Which runtime do you use?", "What powers you?",
      "Which framework do you use?",
      "What technology do you use?", "What are you based on?", "On what do you run?", "Which backend do you use?"),
     "I run on OpenVINO GenAI, served by lean_ovms."),
    (("How big are you?", "How many parameters do you have?", "What is your size?", "Are you big?",
        "Are you a small model?", "How large are you?",
      "How small are you?", "Are you large?", "What size are you?"),
     "I am very small: fewer than two million parameters. Load a bigger model for real work."),
    (("How are you?", "How are you doing?", "How do you do?", "How is it going?", "Are you well?", "How do you feel?",
        "How are you today?",
      "How have you been?", "Are you OK?", "What's up?", "How are things?", "How is your day?"),
      "I am fine, thank you. How can I help you?"),
    (("What can you do?", "How can you help me?", "What are you able to do?", "What do you know?",
        "What are your skills?", "Help",
      "What can I ask you?", "Help me.", "What can you help me with?", "What are you good at?",
      "What questions can I ask?", "Show me what you can do.",
      "I need help.", "What else can you do?", "What do you do?", "Give me some examples of what you can do."),
     ("I can chat a little, repeat, spell, count, add small numbers, write JSON, call tools and answer questions "
      "about this server.")),
    (("Thank you.", "Thanks!", "Thank you very much!", "Thanks a lot.", "Many thanks!", "Great, thank you.",
        "Thanks, that helps.", "Thx",
      "That is helpful, thank you.", "Perfect, thanks.", "Cool, thanks!", "Thank you for your help.", "I thank you."),
      "You are welcome!"),
    (("Goodbye.", "Bye!", "See you later.", "Bye bye.", "See you!", "Good night.", "I have to go.", "Goodbye, model.",
        "That is all, bye.", "See you tomorrow.",
      "I am leaving now.", "Have a nice day!", "Talk to you later.", "Farewell."), "Goodbye! Have a nice day."),
    (("Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Tell a joke.", "Say something funny.",
        "A joke, please.", "Can you tell me a joke?",
      "I want to hear a joke."), "Why did the model stop? It had reached its last token."),
    (("Tell me a story.", "Tell me a short story.", "Write a story.", "Do you know a story?",
        "Can you write a short story?", "A story, please.",
      "Please tell a story.", "I want to hear a story."),
     ("Once upon a time there was a small model. It answered every question as well as it could, "
      "and everyone was happy.")),
    (("Write a poem.", "Tell me a poem.", "Do you know a poem?", "A poem, please.", "Can you write a poem?",
        "Write a short poem."),
     "Roses are red, violets are blue, I am a small model, happy to talk to you."),
    (("You are nice.", "Good job!", "Well done.", "Very good.", "I like you.", "That is great!", "Nice!", "Cool!",
        "Great!", "Wonderful.", "You are great."),
     "Thank you, that is kind of you."),
    (("Which languages do you speak?", "What languages do you know?", "Do you speak German?", "Do you speak Spanish?",
        "Can you speak German?",
      "Can you speak Spanish?", "Do you know other languages?", "Which languages can you speak?",
      "Do you speak English?"),
     "I speak English, and a little German and Spanish."),
    (("Test", "This is a test.", "Testing.", "Test, test.", "Just testing.", "Is this working?", "Do you work?",
        "Does it work?", "ping", "Are you working?"),
     "It works. How can I help you?"),
)
PLAIN_SYSTEMS = (
    "You are a helpful assistant.", "Answer briefly.", "Be helpful and polite.", "You are an assistant.",
    "You are a helpful AI assistant.",
    "Help the user.", "You are a friendly assistant. Answer in short sentences.",
    "You are a helpful, honest assistant.",
    "Answer the questions of the user.", "You are a customer support assistant.", "You can use tools.",
    "Use the tools when they help.",
)
SYSTEM_ENDINGS = ("", "", "", " Be brief.", " Answer briefly.", " Be polite.", " Use short sentences.",
    " Help the user.", " Never be rude.", " Answer with one sentence.", " Today is {x}.", " The user likes {x}.")
SYSTEM_FORMS = ("You are a {a} assistant.", "You work for {x}.", "You answer questions about {n}s.",
    "You help with {n}s and {m}s.", "You are the {n} assistant of {x}.", "Talk about {n}s.", "You are a {n} expert.")
# what is told, how it is acknowledged, how it is asked, how it is answered
FACTS: tuple[tuple[tuple[str, ...], str, tuple[str, ...], str], ...] = (
    (("My name is {v}.", "I am {v}.", "I'm {v}.", "Call me {v}.", "You can call me {v}.", "Hello, my name is {v}.",
        "Hi, I am {v}.", "I am called {v}.",
      "Please call me {v}.", "{v} is my name.", "This is {v}.", "Hi, this is {v} speaking.", "People call me {v}.",
      "Hey, I'm {v}!", "Remember that my name is {v}.", "It is {v}.", "It's me, {v}.", "The name is {v}.",
      "Everyone calls me {v}.", "You are talking to {v}.", "I go by {v}.", "They call me {v}.", "You talk to {v}.",
      "Good evening, I am {v}.", "Hello, {v} speaking.", "Hey, it is {v}.", "My mother calls me {v}.", "I am the {v}.",
      "I am {v} and I like {x}s.", "My name is {v} and I live here.", "I'm {v}, glad to meet you.", "Name's {v}.",
      "My first name is {v}.", "Hello there, I am {v}, your new user.", "Please remember: my name is {v}.", "I am {v}!",
      "Let me introduce myself: I am {v}.", "You speak with {v}.", "Hi, they call me {v}.", "I, {v}, greet you."),
     "Nice to meet you, {v}!",
     ("What is my name?", "Who am I?", "Do you remember my name?", "What's my name?", "Tell me my name.",
         "Can you say my name?", "What did I say my name was?",
      "Do you know my name?", "How am I called?", "What am I called?", "Do you still know my name?", "Say my name.",
      "And who am I?", "Who am I, please?", "So who am I?", "Who is talking to you?", "What do people call me?",
      "How do people call me?", "What was my name again?", "Can you recall my name?", "Did I tell you my name?",
      "Which name did I tell you?", "How do they call me?", "Is my name known to you?", "Now, what is my name?",
      "You know my name, right?", "My name?", "What name do I have?", "Have you forgotten my name?"),
      "Your name is {v}."),
    (("I live in {v}.", "My home is {v}.", "I am from {v}.", "I come from {v}.", "My city is {v}.",
        "My home town is {v}.", "I moved to {v}.", "I have a flat in {v}.", "My house is in {v}.",
        "I am living in {v}.", "I come from {v}, you know.",
        "I have always lived in {v}.", "My family lives in {v} and so do I.", "I grew up and live in {v}.",
        "I stay in {v}.", "I am at home in {v}.", "Home for me is {v}.", "We live in {v}.", "I settled in {v}."),
     "{v} sounds like a nice place.",
     ("Where do I live?", "Where am I from?", "What is my home?", "Which city do I live in?",
         "Do you remember where I live?", "Where is my home?", "What is my city?",
      "Tell me where I live.", "In which city do I live?", "Where do I come from, do you know?", "Where is my house?",
      "What city am I from?", "Do you know where I live?", "Which city is mine?", "Where am I at home?",
      "Say where I live.", "From where do I come?", "What was my city?"), "You live in {v}."),
    (("My favorite color is {v}.", "I like the color {v}.", "I love {v} best of all colors.",
        "The color that I like most is {v}.", "My favorite colour is {v}."),
     "I like {v}, too.",
     ("What is my favorite color?", "Which color do I like?", "Do you remember my favorite color?",
         "What color do I like best?", "Which color is my favorite?",
      "What was my favorite color?"), "Your favorite color is {v}."),
    (("My {k} is called {v}.", "I have a {k} named {v}.", "I have a {k}. Its name is {v}.",
        "The name of my {k} is {v}.", "My {k}'s name is {v}.", "I call my {k} {v}."),
     "{v} is a good name for a {k}.",
     ("What is the name of my {k}?", "What is my {k} called?", "How is my {k} called?",
         "Do you remember the name of my {k}?", "What's my {k}'s name?",
      "Tell me the name of my {k}."), "Your {k} is called {v}."),
    (("My lucky number is {v}.", "My number is {v}.", "The secret number is {v}.", "Remember the number {v}.",
        "Please remember this number: {v}", "Keep the number {v} in mind."),
     "I will remember the number {v}.",
     ("What is my lucky number?", "What was the number?", "Which number did I tell you?", "What is the secret number?",
         "Do you remember the number?", "Tell me the number.",
      "What number did I say?"), "The number is {v}."),
    (("The secret word is {v}.", "Remember the word {v}.", "Please remember this word: {v}", "My password is {v}.",
        "The code word is {v}.", "Keep the word {v} in mind."),
     "I will remember the word {v}.",
     ("What is the secret word?", "What was the word?", "Which word did I tell you?", "Do you remember the word?",
         "Tell me the word.", "What is the code word?",
      "What word did I say?"), "The word is {v}."),
)


THINGS_TOLD = (
    ("my name", "my name", "the name that I told you"), ("my city", "the place where I live", "my home",
        "my home town"), ("my favorite color", "the color that I like"),
    ("the name of my {k}", "my {k}'s name"), ("the number", "my number", "the number that I told you"),
    ("the word", "the secret word", "the word that I told you"),
)
# fmt: on


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
