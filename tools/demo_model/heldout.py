"""The words and wordings of the evaluation. None of them may occur in the generator's lists; a test compares them.

Tool rows are written by hand: tools as people would declare them, asked for as people would ask.
"""

from __future__ import annotations

import re
from typing import Any

from tools.demo_model.words import each

# fmt: off
NAMES = each(
    "Quentin Saskia Ottilie Balthazar Priya Kwame Ingrid Thaddeus Yolanda Fergus "
    "Mireille Dmitri Aoife Ravi Leopold Beatrix Odette Zephyr Kerstin Joaquin"
)
CITIES = each(
    "Zanzibar Timbuktu Samarkand Valparaiso Ljubljana Tbilisi Bratislava Marrakesh "
    "Adelaide Calgary Edinburgh Salzburg Cordoba Gothenburg Rotterdam Winnipeg"
)
CITIES += ["Buenos Aires", "Kuala Lumpur", "Santa Cruz", "Port Louis"]
WORDS = each(
    "giraffe bonnet candle blanket pumpkin violin lantern compass feather hammer "
    "pillow rocket saddle teapot walnut zipper anchor dolphin marble cactus"
)
SENTENCES = (
    "the quick brown fox", "purple elephants dance", "never trust a pirate", "we meet at noon",
    "hello world from the moon", "knights guard the castle gate", "my umbrella is broken",
    "seven hungry dolphins", "Open the pod bay doors", "rockets fly above the clouds", "fresh pumpkin pie",
    "The quarterly figures look fine", "jazz hands", "zebra crossing ahead", "please water the cactus",
)
GREETINGS = (
    "Hiya!", "Good day to you!", "Hello, nice to see you!", "Hey, good morning!", "Hi, what a nice day!", "Hello hello",
    "Good morning to you", "Hi there, friend!", "Hey hey!", "Hello, dear model",
    "A very good evening!", "Hi, I have just started you.",
)
ABOUT = (
    "Please tell me what you are.", "What sort of model are you?", "Could you say who you are?",
    "I would like to know who you are.", "Who is speaking?", "Can you tell me about yourself?",
    "What model am I using?",
    "Which language model is this?", "Explain who you are.", "Tell me something about yourself.",
    "So what are you exactly?", "Are you some kind of AI?",
)
RUNTIME = (
    "What software are you running on?", "Which runtime runs you?", "What do you run on, please?",
    "Which engine are you using?", "What powers this model?", "Tell me what you run on.",
)
# question, what the answer must contain
SERVER: tuple[tuple[str, str], ...] = (
    ("What endpoint do I need for chat?", "/v1/chat/completions"),
    ("Where do I POST my chat messages?", "/v1/chat/completions"),
    ("Which URL answers chat requests?", "/v1/chat/completions"),
    ("Could you name the endpoint for completions?", "/v1/completions"),
    ("What path completes a prompt?", "/v1/completions"), ("Which endpoint lists the models?", "/v1/models"),
    ("How can I see the list of models?", "/v1/models"), ("Where do I find all model names?", "/v1/models"),
    ("Which endpoint tokenizes text?", "/tokenize"), ("How do I count tokens?", "/tokenize"),
    ("What endpoint turns text into tokens?", "/tokenize"), ("Which endpoint turns tokens into text?", "/detokenize"),
    ("How do I check the health of the server?", "/health"), ("What is the endpoint for a health check?", "/health"),
    ("Where are the metrics?", "/metrics"), ("Which endpoint should Prometheus use?", "/metrics"),
    ("Where can I read the server version?", "/version"), ("Which endpoint should agents use?", "/v1/responses"),
    ("How do I change the port?", "--rest_port"), ("Which flag changes the port number?", "--rest_port"),
    ("I want the server on another port, which flag is that?", "--rest_port"),
    ("How do I change the model name?", "--model_name"),
    ("What flag gives the model another name?", "--model_name"),
    ("How do I point the server at my own model?", "--model_path"),
    ("Which flag tells where the model is?", "--model_path"),
    ("How do I protect the server with an API key?", "--api_key_file"),
    ("Which flag is for authentication?", "--api_key_file"), ("How do I require a key from clients?", "--api_key_file"),
    ("How do I turn on speculative decoding?", "--draft_model_path"),
    ("What do I do to load a bigger model?", "--model_path"), ("Can I get a larger model here?", "--model_path"),
    ("You seem small. Can I load a bigger model?", "--model_path"), ("How would I run a better model?", "--model_path"),
    ("What is the command to start the server?", "python -m lean_ovms"),
    ("How do I start this server?", "python -m lean_ovms"), ("How can the server be stopped?", "Ctrl+C"),
    ("What is lean_ovms, please?", "OpenVINO GenAI"),
    ("Can I stream the answers?", "stream"), ("Do you support tool calling?", "tools"),
    ("Can I use the OpenAI Python client?", "OpenAI"), ("Do I need a GPU for you?", "CPU"),
    ("What are the endpoints of this server?", "/v1/models"),
    ("Please explain --rest_port.", "port"), ("What is the use of /health?", "ready"),
    ("What does the flag --api_key_file do?", "key"),
)
PERSONAS = ("You are {n}, the helpful robot.", "You are an AI named {n}.", "Your name is {n} and you are very polite.",
    "Please act as {n}, our assistant.", "You are the assistant {n}.")
PERSONA_QUESTIONS = ("So what is your name?", "Could you tell me who you are?", "How should I call you?",
    "Hi, who are you?", "What name do you go by?", "Please tell me your name.")
# what is told, what comes between, what is asked
MEMORIES = (
    ("Hi there, my name is {v}.", (), "What is my name?"), ("Hello! I am {v} and I am new here.", (),
        "Do you know my name?"), ("You may call me {v}.", (), "What was my name?"),
        ("My name is {v}, nice to meet you.", (), "Can you tell me my name?"),
    ("Good morning, I'm {v}.", ("What is the capital of France?",), "So what is my name?"),
    ("My name is {v}.", ("Count to 4.",), "Please tell me my name."),
    ("My friends call me {v}.", (), "How do my friends call me?"),
    ("Hi, {v} here.", (), "Who am I?"), ("I am {v}.", ("Tell me a joke.",), "Do you still remember my name?"),
    ("My name is {v}", ("Thank you.",), "what is my name"),
)
CITY_MEMORIES = (("I live in {v} now.", (), "Where do I live?"),
    ("I come from {v}, by the way.", (), "Where do I come from?"),
    ("My home is in {v}.", ("What is 2 + 2?",), "Where is my home?"),
    ("I was born and live in {v}.", (), "Which city do I live in?"))
REPEATS = ("Please repeat this: {}", "Repeat these words: {}", 'Say "{}" please.', "Now repeat: {}",
    'Please write "{}".', 'Could you say "{}"?', "Echo this: {}", "Say it after me: {}")
SPELLS = ("Please spell the word {}.", "Could you spell {}?", "How is {} spelled?", "Spell {} for me.",
    "Tell me the letters of {}.", "How do I spell {}?")
COUNTS = ("Count from {a} up to {b}.", "Could you count from {a} to {b}?", "Please give me the numbers {a} to {b}.",
    "Tell me all numbers from {a} to {b}.", "I want you to count from {a} to {b}.")
SUMS = ("What's {a} + {b}?", "How much is {a} and {b}?", "Please add {a} and {b}.",
    "Can you tell me what {a} plus {b} is?", "{a}+{b}=?", "Could you compute {a} + {b}?",
    "What is {a} plus {b}, please?")
CAPITAL_WAYS = ("Which city is the capital city of {}?", "Please name {}'s capital.",
    "What is the name of the capital of {}?", "Could you tell me the capital of {}?")
COLOUR_WAYS = ("Which color is the {}?", "Can you tell me the color of the {}?", "The {} has which color?")
UNKNOWN = (
    "Why is the ocean salty?", "Who discovered penicillin?", "What is quantum entanglement?",
    "How do airplanes stay in the air?", "Who was the first man on the moon?", "How many bones does a shark have?",
    "What is the best pizza in town?",
    "Explain the theory of relativity.", "Who wrote Hamlet?", "How tall is Mount Everest?",
    "What is the meaning of life?", "How do I fix a leaking tap?", "When did the war end?",
    "Which team won the cup last year?", "What is the weather in Timbuktu?",
)
# language, what is said, what the answer must contain
FOREIGN: tuple[tuple[str, str, str], ...] = (
    ("de", "Guten Morgen, wie geht's?", "hallo|gut"), ("de", "Hallo du!", "hallo"),
    ("de", "Sag mir, wer du bist.", "demo"), ("de", "Wer bist du denn?", "demo"),
    ("de", "Hey, wie geht es dir?", "gut"), ("de", "Danke sehr!", "gern"),
    ("de", "Vielen lieben Dank!", "gern"), ("de", "Tschüss, bis später!", "wiedersehen"),
    ("de", "Was kannst du für mich tun?", "kann"), ("de", "Kannst du Deutsch sprechen?", "deutsch"),
    ("de", "Sag mir die Hauptstadt von Italien.", "rom"),
    ("de", "Was ist bitte die Hauptstadt von Spanien?", "madrid"), ("de", "Erzähl einen Witz!", "token"),
    ("de", "Wie alt ist der Papst?", "nicht"), ("es", "¡Hola, buenos días!", "hola"), ("es", "Hola, buenas", "hola"),
    ("es", "Dime quién eres.", "modelo"), ("es", "¿Quién eres tú?", "modelo"), ("es", "¿Cómo estás hoy?", "bien"),
    ("es", "¡Muchísimas gracias!", "de nada"), ("es", "Gracias, amigo.", "de nada"),
    ("es", "¡Adiós, hasta luego!", "adiós"),
    ("es", "¿Qué puedes hacer por mí?", "puedo"), ("es", "¿Puedes hablar español?", "español"),
    ("es", "¿Sabes cuál es la capital de Francia?", "parís"), ("es", "Por favor, dime la capital de Italia.", "roma"),
    ("es", "Cuenta un chiste.", "token"),
    ("es", "¿Cuántos años tiene el rey?", "siento"),
)
FOREIGN_MEMORIES = (
    ("de", "Guten Tag, mein Name ist {v}.", "Wie heiße ich?"), ("de", "Hi, ich bin die {v}.", "Wie ist mein Name?"),
    ("de", "Ich heiße {v}!", "Weißt du, wie ich heiße?"), ("es", "Buenos días, me llamo {v}.", "¿Cómo me llamo?"),
    ("es", "¡Hola! Mi nombre es {v}.", "¿Sabes cómo me llamo?"), ("es", "Yo soy {v}.", "¿Cuál es mi nombre?"),
)
JSON_REQUESTS: tuple[tuple[str, Any], ...] = (
    ("Give me a JSON object with name Quentin and age 41.", {"name": "Quentin", "age": 41}),
    ("Please return JSON with city Tbilisi.", {"city": "Tbilisi"}),
    ("Answer in JSON: animal giraffe, legs 4", {"animal": "giraffe", "legs": 4}),
    ("I want a JSON object with color = purple and size = 7.", {"color": "purple", "size": 7}),
    ("Write JSON: title: pumpkin, pages: 120", {"title": "pumpkin", "pages": 120}),
    ("Put name Saskia and job painter in JSON.", {"name": "Saskia", "job": "painter"}),
    ("JSON with the keys name and age: Priya and 23", {"name": "Priya", "age": 23}),
    ("Could you give me JSON with tool hammer and weight 3?", {"tool": "hammer", "weight": 3}),
    ("As JSON please: user Fergus, id 5512", {"user": "Fergus", "id": 5512}),
    ("Turn this into a JSON object: fruit walnut, count 12", {"fruit": "walnut", "count": 12}),
    ("Create a JSON object with item lantern and price 19.", {"item": "lantern", "price": 19}),
    ("Return JSON only: country Georgia, city Tbilisi", {"country": "Georgia", "city": "Tbilisi"}),
    ("Make a JSON array of giraffe, dolphin and walnut.", ["giraffe", "dolphin", "walnut"]),
    ("Give me a JSON list with anchor and rocket.", ["anchor", "rocket"]), ("Please show me some JSON.", None),
    ("Give me an example of JSON.", None), ("Answer with JSON, please.", None),
    ("Can you answer in JSON?", None), ("Generate JSON with street Elmwood and number 8.",
        {"street": "Elmwood", "number": 8}), ("Extract JSON: name is Ravi, age is 66", {"name": "Ravi", "age": 66}),
)
# fmt: on


def plain_words(text: str) -> str:
    """The words of a text, lower case, for comparing wordings."""
    return " " + " ".join(re.findall(r"[^\W_]+|[/_-]", text.lower())) + " "


# Whole questions, whose wording is what is held out. (Elsewhere the names, words and numbers in the question are.)
WORDINGS = frozenset(
    plain_words(text)
    for text in (
        *GREETINGS,
        *ABOUT,
        *RUNTIME,
        *UNKNOWN,
        *(row[0] for row in SERVER),
        *(row[1] for row in FOREIGN),
        *(row[0] for row in JSON_REQUESTS),
    )
)


def held_out(text: str) -> bool:
    """Whether a user's turn contains one of the evaluation's questions, politeness around it or not."""
    words = plain_words(text)
    return any(wording in words for wording in WORDINGS)
