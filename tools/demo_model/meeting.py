"""How people meet a model: greetings, "what are you?", "what do you run on?", and the names a system prompt gives it.

Sentences are put together from parts, so that no single wording is met often enough to be all that the model knows.
"""

from __future__ import annotations

from tools.demo_model.dialog import ask_for, ask_to
from tools.demo_model.words import ADJECTIVES, NOUNS, Rng, invented

# fmt: off
HELLOS = (
    "Hello", "Hi", "Hey", "Good morning", "Good evening", "Good afternoon", "Good day", "Greetings", "Howdy", "Hello",
    "Hi", "Hey", "Hello there", "Hi there", "Hey there", "Welcome", "Hi again", "Hello again", "Yo", "Morning",
    "Good evening to you", "Well hello", "Oh, hello", "Ah, hi", "A nice morning to you", "Hello, hi", "Hi, hello",
    "Hey, hi", "Evening", "Hey, hello", "A wonderful morning", "A pleasant evening to you", "A warm hello", "Heya",
    "Hello and good morning", "Hi and good evening", "Good morning, hello", "Hullo", "Hi hi", "Ahoy",
)
WHOM = (
    "model", "my model", "assistant", "my assistant", "bot", "robot", "everyone", "everybody", "you", "my friend",
    "buddy", "machine", "computer", "dear assistant", "little model", "small model", "server", "old friend", "all",
    "good model", "world", "there", "dear robot", "mate", "AI", "demo", "helper", "stranger", "dear server",
    "lean_ovms", "demo model",
)
PLEASED = (
    "nice to meet you", "pleased to meet you", "glad to meet you", "good to see you", "great to meet you",
    "happy to be here", "it is a pleasure", "I am happy to see you", "lovely to meet you", "so nice to meet you",
    "good to have you here", "glad that you are here", "I am glad to see you", "it is nice to talk to you",
    "it is good to be back", "I am back", "here I am", "I am new here", "I am here", "I just came in",
    "I have just installed you", "I just found you", "I started the server", "I have opened the chat",
    "this is my first time here", "I want to talk", "let us talk", "let us chat", "let us start", "shall we start",
    "are you there", "is anyone there", "anybody here", "can you hear me", "are you awake", "are you ready",
    "what a {a} {t}", "what a lovely {t}", "it is a {a} {t}", "a beautiful {t}, is it not", "I wish you a good {t}",
    "have you slept well", "I hope you are well", "I hope all is well", "how are you", "how are you today",
    "how do you do", "how is it going", "long time no see", "good {t}", "we meet again", "it is me", "it is me again",
    "only saying hello", "I only wanted to say hi", "just saying hello", "I wanted to greet you", "I greet you",
    "nice that you run", "you are up and running", "the sun is shining", "we have not met yet", "this is a test",
)
TIMES = ("day", "morning", "evening", "afternoon", "week", "start", "Monday", "Friday", "summer", "weekend")
GREET_DEEDS = ("say hello", "say hi", "greet me", "say hello to me", "give me a greeting", "say good morning",
    "welcome me", "say hi to everyone", "say hello to the world")

KINDS = ("model", "language model", "AI", "assistant", "bot", "chatbot", "machine", "AI model",
    "LLM", "robot", "neural network")
WHICH = (
    "{w} {k} are you?", "{w} {k} is this?", "{w} {k} am I talking to?", "{w} {k} do I talk to?", "{w} {k} answers me?",
    "{w} {k} am I chatting with?", "{w} {k} do I use here?", "{w} {k} is running?", "{w} {k} is running here?",
    "{w} {k} is loaded?", "{w} {k} is behind this?", "{w} {k} do I have here?", "{w} {k} is it?",
    "{w} {k} are you, please?", "{w} {k} have I started?", "{w} {k} is answering?", "{w} {k} might you be?",
    "With {w} {k} am I talking?", "And {w} {k} are you?", "Tell me {w} {k} you are.", "I wonder {w} {k} you are.",
    "May I ask {w} {k} you are?", "Do you know {w} {k} you are?", "Say {w} {k} this is.",
    "I want to know {w} {k} is used here.", "{w} {k} do we use?", "{w} {k} serves me?", "{w} {k} writes this?",
)
ASKS = ("which", "what", "what kind of", "which kind of", "what type of")
ARE_YOU = ("Are you {k}?", "Are you really {k}?", "Is this {k}?", "You are {k}, right?", "Am I talking to {k}?",
    "Are you just {k}?", "Tell me, are you {k}?", "So you are {k}?", "Would you say that you are {k}?",
    "Do I talk to {k}?",
    "Are you maybe {k}?", "Is it true that you are {k}?")
NOT_THEM = ("a person", "a human", "a real person", "ChatGPT", "GPT", "Claude", "Gemini", "Llama", "Qwen", "a friend",
    "someone", "a woman", "a man", "alive", "a computer", "a big model", "a real model", "an artificial intelligence")
WHO = (
    "Who are you?", "Who is this?", "Who is there?", "Who am I talking to?", "Who are you, actually?", "And you are?",
    "Who answers me?", "Who is talking?", "Who is answering my questions?", "Whom do I talk to?", "Who writes this?",
    "Who is on the other side?", "And who are you?", "Who or what are you?", "Hey, who are you?", "Who are you then?",
    "Well, who are you?", "What are you?", "And what are you?", "What are you, please?", "What are you really?",
    "What exactly are you?", "What is this?", "What is this thing?", "What are you called?", "What is your name?",
    "What's your name?", "What is your full name?", "Do you have a name?", "What do they call you?",
    "By what name are you known?", "How are you called?", "What should I call you?", "What can I call you?",
    "Your name?", "Name?", "Who is it?", "Who made this answer?", "Sorry, who are you?", "Tell me, who are you?",
    "Tell me, what are you?", "Now who are you?", "With whom do I have the pleasure?", "Who has answered me?",
    "Who is replying?", "Who's this?", "Who's there?", "What's this?", "What are you made for?", "Who do I have here?",
)
SELF_DEEDS = ("introduce yourself", "tell me who you are", "say who you are", "tell me about yourself",
    "describe yourself", "tell me what you are", "explain what you are", "say what you are", "tell me your name",
    "present yourself", "say something about yourself", "tell me more about yourself", "identify yourself",
    "tell me a little about yourself", "give me a description of yourself", "explain to me who you are",
    "write something about yourself", "tell me which model you are", "say a few words about yourself",
    "tell us who you are", "tell us about yourself", "say your name", "describe what you are")
SELF_THINGS = ("your name", "who you are", "what you are", "something about you", "the name of this model",
    "the name of the model", "more about you", "which model you are", "a bit about you", "what kind of AI you are")
RUNS = (
    "What {e} do you {u}?", "Which {e} do you {u}?", "What {e} are you {g}?", "Which {e} are you {g}?",
    "What is your {e}?", "Which {e} runs you?", "What {e} is behind you?", "Which {e} makes you work?",
    "Which {e} is used here?", "What kind of {e} do you use?", "Tell me which {e} you use.", "Name your {e}.",
    "Which {e} drives you?", "What {e} powers you?", "Which {e} serves you?", "I want to know your {e}.",
    "What {e} do I need for you?", "On what {e} do you run?", "Which {e} executes you?", "Your {e}?",
    "What is the {e} behind you?", "What is the {e} under you?", "Which {e} computes your answers?",
)
ENGINES = ("engine", "runtime", "software", "framework", "backend", "library", "technology", "platform", "stack",
    "inference engine", "inference library", "program")
RUN_WHOLE = (
    "What do you run on?", "What are you running on?", "What runs you?", "Where do you run?", "What powers you?",
    "What are you based on?", "On what do you run?", "What makes you run?", "What are you built on?",
    "What do you work with?", "What is under the hood?", "How are you run?", "What drives you?", "What is running you?",
    "And what do you run on?", "What do you run with?", "How do you run?", "What are you powered by?",
    "Do you run on OpenVINO?", "Are you running on OpenVINO?", "What is it that you run on?", "What executes you?",
    "What is this model running on?", "What does this model run on?", "What makes you work?",
    "What is the model running on?", "What computes your answers?",
)
RUN_DEEDS = ("tell me what runs you", "tell me what powers you", "say what you are running on",
    "tell me what you are running on", "explain what drives you", "tell me your engine", "name your runtime",
    "say on what you run", "tell me on what you run", "describe what makes you run", "name the software behind you")

ROLES = ("assistant", "helpful assistant", "AI assistant", "bot", "robot", "guide", "teacher", "expert", "butler",
    "AI", "helper", "chatbot", "friend", "agent", "pirate", "librarian", "support agent", "digital assistant", "cook",
    "virtual assistant", "polite bot", "personal assistant", "language model", "tutor", "wizard", "clerk", "coach",
    "secretary", "concierge", "voice assistant", "AI model", "machine", "chat assistant")
NAMED = (
    "You are {n}.", "You are {n}, {r}.", "You are {n}, the {q}.", "You are {n}, our {q}.", "Your name is {n}.",
    "You are {r} called {n}.", "You are {r} named {n}.", "You are the {q} {n}.", "You are our {q} {n}.",
    "You are {r}. Your name is {n}.", "You are {r} and your name is {n}.", "You are called {n}.", "Act as {n}.",
    "Act as {n}, {r}.", "Act as {r} called {n}.", "Call yourself {n}.", "Be {n}, {r}.", "From now on you are {n}.",
    "From now on your name is {n}.", "Assistant name: {n}", "Name: {n}", "Name: {n}. Role: {q}.", "Pretend to be {n}.",
    "Pretend that you are {n}, {r}.", "Play the role of {n}.", "Play {n}, {r}.", "Your new name is {n}.",
    "People call you {n}.", "Everybody calls you {n}.", "The users know you as {n}.", "You go by the name of {n}.",
    "You answer to the name {n}.", "Introduce yourself as {n}.", "Present yourself as {n}.",
    "Always say that you are {n}.",
    "This is {n}, {r}.", "We call you {n}.", "I call you {n}.", "The name of the assistant is {n}.",
    "The assistant is called {n}.", "The assistant is {n}.", "{n} is your name.", "{n} is the name of this assistant.",
    "Your role: {n}, {r}.", "You play {n}.", "You will be {n}.", "You will act as {n}.", "Speak as {n}.",
    "Answer as {n}, {r}.", "Answer as {n}.", "You are now {n}.", "Imagine that you are {n}.", "You are known as {n}.",
    "Your name is {n}. You are {r}.", "My assistant is called {n}.", "In this chat you are {n}.",
    "Please be {n}, {r}.", "Please play {n}.", "You have the name {n}.", "Use the name {n}.",
    "You're {n}.", "You're {n}, {r}.", "You are {n} - {r}.", "You are \"{n}\".", "Your name is \"{n}\".",
)
NAMED_ENDS = (
    "", "", "", "", " Be brief.", " Answer briefly.", " Be polite.", " Use short sentences.", " Help the user.",
    " Never be rude.", " Answer with one sentence.", " Today is {x}.", " The user likes {x}.", " You help with {m}s.",
    " You work for {x}.", " You work in a {m}.", " You are {a}.", " You are very {a}.", " You like {m}s.",
    " You are a {a} {q}.", " You live in {x}.", " Answer in a {a} way.", " You know all about {m}s.", " Do not lie.",
    " You help people with their questions.", " You help customers.", " Be a {a} helper.", " Answer every question.",
)
NAME_ASKS = (
    "Who are you?", "What is your name?", "What's your name?", "Do you have a name?", "What should I call you?",
    "How are you called?", "Who am I talking to?", "May I know your name?", "What are you called?",
    "Which name do you have?", "And who are you?", "What is the name of this assistant?", "Who is this?",
    "And your name is?", "Your name?", "What do I call you?", "What can I call you?", "How can I call you?",
    "How do people call you?", "How do I call you?", "How may I address you?", "By which name do I call you?",
    "Who is there?", "With whom am I talking?", "What name do you have?", "What is your name again?",
    "I forgot your name.", "What was your name?", "Who do I talk to?", "Are you a bot?", "And what is your name?",
    "Is there a name for you?", "What name should I use for you?", "What name did they give you?", "Do I know you?",
    "Have you got a name?", "Who is answering?", "Hello, who are you?", "Hey, what is your name?", "What are you?",
    "Hello, what is your name?", "Sorry, what was your name?", "What do people call you?", "What do they call you?",
    "Under which name are you known?", "What name were you given?", "How should I address you?", "Who's this?",
    "What is the name you use?", "Which name do you use?", "What do you call yourself?", "How do you call yourself?",
)
NAME_DEEDS = ("introduce yourself", "tell me your name", "say who you are", "say your name", "tell me who you are",
    "give me your name", "present yourself", "tell us your name", "tell me how to call you", "tell me about yourself",
    "tell me what you are called", "spell out who you are", "identify yourself", "write your name")
NAME_THINGS = ("your name", "your name", "the name of this assistant", "your full name", "the name that you have",
    "the name you go by", "who you are", "the name of the assistant")
# fmt: on


def article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeioAEIOL' else 'a'} {noun}"


def sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def greeting(r: Rng) -> str:
    """A greeting in up to three parts."""
    if r.random() < 0.06:
        return ask_to(r, r.choice(GREET_DEEDS)) if r.random() < 0.6 else sentence(r.choice(GREET_DEEDS))
    text = r.choice(HELLOS)
    if r.random() < 0.3:
        text += r.choice((" ", " ", ", ")) + r.choice(WHOM)
    if r.random() < 0.45:
        pleased = r.choice(PLEASED).format(a=r.choice(ADJECTIVES), t=r.choice(TIMES))
        text += (
            r.choice((", ", ", ", " and ")) + pleased if r.random() < 0.6 else r.choice("!.") + " " + sentence(pleased)
        )
    elif r.random() < 0.08:
        text += r.choice(("! ", ", ")) + r.choice(HELLOS[:12])
    text += r.choice(("", "", "!", ".", "!", "!!", " :)", "?")) if r.random() < 0.85 else ""
    return text.lower() if r.random() < 0.15 else text


def about_self(r: Rng) -> str:
    kind = r.random()
    if kind < 0.3:
        return r.choice(WHO)
    if kind < 0.55:
        return sentence(r.choice(WHICH).format(w=r.choice(ASKS), k=r.choice(KINDS)))
    if kind < 0.68:
        return r.choice(ARE_YOU).format(k=r.choice(NOT_THEM) if r.random() < 0.5 else article(r.choice(KINDS)))
    if kind < 0.9:
        deed = r.choice(SELF_DEEDS)
        return ask_to(r, deed) if r.random() < 0.7 else sentence(deed) + "."
    return ask_for(r, r.choice(SELF_THINGS))


def about_engine(r: Rng) -> str:
    kind = r.random()
    if kind < 0.35:
        return r.choice(RUN_WHOLE)
    if kind < 0.8:
        words = {"e": r.choice(ENGINES), "u": r.choice(("use", "run on", "run with", "need"))}
        return r.choice(RUNS).format(g=r.choice(("using", "running on", "based on", "built on")), **words)
    if kind < 0.9:
        return ask_to(r, r.choice(RUN_DEEDS))
    return ask_for(r, r.choice(("your engine", "your runtime", "the software that runs you", "the engine behind you")))


def naming(r: Rng, name: str) -> str:
    """A system prompt that names the model."""
    role = r.choice(ROLES)
    if r.random() < 0.3:
        role = f"{r.choice(ADJECTIVES)} {role}"
    roles = (
        article(role) if r.random() < 0.7 else r.choice((f"the {role} of {invented(r).capitalize()}", f"our {role}"))
    )
    text = r.choice(NAMED).format(n=name, q=role, r=roles) + r.choice(NAMED_ENDS) + r.choice(NAMED_ENDS[:12])
    return text.format(x=invented(r).capitalize(), m=r.choice(NOUNS), a=r.choice(ADJECTIVES), q=r.choice(ROLES))


def name_question(r: Rng) -> str:
    kind = r.random()
    if kind < 0.55:
        return r.choice(NAME_ASKS)
    if kind < 0.85:
        deed = r.choice(NAME_DEEDS)
        return ask_to(r, deed) if r.random() < 0.7 else sentence(deed) + "."
    return ask_for(r, r.choice(NAME_THINGS))
