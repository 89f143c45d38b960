"""More prompts for the evaluation, written when the generator was finished and training had begun.

The other prompts were known while the generator was improved. These were not, so they say how much of the result is
only that the generator came closer to its evaluation. One lesson is younger (`lessons.errands`, see tools/README.md).
"""

from __future__ import annotations

from tools.demo_model.heldout_tools import Row

# fmt: off
# question, what the answer must contain
QUESTIONS: tuple[tuple[str, str], ...] = (
    ("Hey, good to have you around!", "hello"), ("Good morning, sunshine!", "hello"),
    ("Hi, me again, back from lunch.", "hello|welcome|nice"), ("Hello, can we begin?", "hello"),
    ("What's your name, by the way?", "demo model"), ("Which LLM have they installed here?", "demo model"),
    ("Mind telling me what you are?", "demo model"), ("I'd love to know who I'm chatting to.", "demo model"),
    ("Are you one of those chatbots?", "demo model"), ("What's running underneath you?", "openvino genai"),
    ("Which inference software do you sit on?", "openvino genai"),
    ("Where do I send a chat request to?", "/v1/chat/completions"),
    ("How can I get the token ids of a sentence?", "/tokenize"), ("What do I hit for a readiness check?", "/health"),
    ("I'd like the server to use port 9000.", "--rest_port"),
    ("How do I make the server ask for a key?", "--api_key_file"),
    ("Which URL shows me the loaded models?", "/v1/models"),
    ("How do I serve something bigger than you?", "--model_path"), ("Where does Prometheus scrape?", "/metrics"),
    ("What do I press to shut you down?", "ctrl+c"), ("Can I have my answer as a stream?", "stream"),
    ("Do I have to buy a graphics card for you?", "cpu"), ("What command launches the thing?", "python -m lean_ovms"),
    ("Cheers, that was great!", "welcome|kind"), ("Right, I'm off. Bye for now!", "bye"),
    ("Go on, make me giggle.", "token"), ("Are you feeling fine?", "fine"), ("What are you capable of?", "i can"),
    ("Peru's capital city is which one?", "lima"), ("What's the capital of Iceland called?", "reykjavik"),
    ("Tell me which color snow has.", "white"), ("What colour would a frog be?", "green"),
    ("How deep is the Mariana Trench?", "sorry"), ("Who composed the Moonlight Sonata?", "sorry"),
    ("Is there life on Mars?", "sorry"), ("When will the train to Edinburgh leave?", "sorry"),
    ("I've got 4 eggs and buy 9 more, how many is that?", "13"), ("8 and 5 makes what?", "13"),
    ("Quickly, 6+7?", "13"), ("9 plus 4, if you please.", "13"),
    ("Count to seven for me, would you?", "1, 2, 3, 4, 5, 6, 7"), ("List the numbers five to nine.", "5, 6, 7, 8, 9"),
    ("Spell out the word trombone.", "t-r-o-m-b-o-n-e"), ("How's pelican spelled?", "p-e-l-i-c-a-n"),
    ("Spelling of mongoose, please?", "m-o-n-g-o-o-s-e"), ("Letters of the word velvet?", "v-e-l-v-e-t"),
)
# language, what is said, what the answer must contain
FOREIGN: tuple[tuple[str, str, str], ...] = (
    ("de", "Guten Tag, wer bist du eigentlich?", "demo"), ("de", "Kannst du mir sagen, wie es dir geht?", "gut"),
    ("de", "Dankeschön, du bist toll!", "gern"), ("de", "Wie alt ist denn der Mond?", "nicht"),
    ("de", "So, ich gehe dann mal. Tschüss!", "wiedersehen"), ("es", "Oye, ¿tú quién eres?", "modelo"),
    ("es", "Te agradezco mucho.", "de nada"), ("es", "¿Qué tal va el día?", "bien"),
    ("es", "¿Y qué sabes hacer tú?", "puedo"), ("es", "¿Quién pintó la Mona Lisa?", "siento"),
)
# system prompt, question; the answer must contain the name
PERSONAS: tuple[tuple[str, str, str], ...] = (
    ("From here on you answer as {n}, a cheerful guide.", "Who's talking to me?", "Saskia"),
    ("The name you carry is {n}.", "And what do they call you here?", "Thaddeus"),
    ("Your persona: {n}, weather expert.", "Hey! Who are you again?", "Kwame"),
    ("You're our new colleague {n}.", "What's your first name?", "Ingrid"),
    ("{n} - that is who you are. Keep answers short.", "Tell me who I have the pleasure with.", "Fergus"),
    ("Today you are called {n}, and you sell shoes.", "Hi, and you are called?", "Odette"),
)
# what is told, what is asked; the answer must contain the value
MEMORIES: tuple[tuple[str, str, str], ...] = (
    ("Hey, folks call me {v}.", "Remind me, what's my name?", "Leopold"),
    ("I'm {v} from accounting.", "Who did I say I am?", "Beatrix"),
    ("So you know: my name's {v}.", "What's my name, then?", "Joaquin"),
    ("{v}'s the name, pleased to meet you.", "Do you recall what I'm called?", "Mireille"),
    ("These days I live in {v}.", "Where did I say I live?", "Tbilisi"),
    ("I've got a house in {v}.", "Where's my house?", "Rotterdam"),
)
TOOLS: tuple[Row, ...] = (
    ("lookup_zip", "Find the zip code of a town", {"town": "string"}, "What's the zip code of Gothenburg?",
        {"town": "Gothenburg"}),
    ("set_alarm", "Set an alarm", {"time": "string"}, "Wake me up at 6:45.", {"time": "6:45"}),
    ("get_weather", "Weather of a city", {"city": "string", "unit": ["celsius", "fahrenheit"]},
        "Will it be windy in Tbilisi this evening?", {"city": "Tbilisi"}),
    ("createInvoice", "Create an invoice", {"customer_name": "string", "amount_eur": "number"},
        "Create an invoice with customer name Balthazar and amount eur 149.5.",
        {"customer_name": "Balthazar", "amount_eur": 149.5}),
    ("dim_lamp", "Dim a lamp", {"lamp_id": "string", "percent": "integer"}, "Dim the lamp L-204 to 40 percent.",
        {"lamp_id": "L-204", "percent": 40}),
    ("find_library_book", "Find a book in the library", {"author": "string"}, "Find a library book by Odette Walnut.",
        {"author": "Odette Walnut"}),
    ("ship_parcel", "Ship a parcel", {"parcel_no": "string", "express": "boolean"},
        "Ship the parcel with parcel no KX-77 and express true.", {"parcel_no": "KX-77", "express": True}),
    ("exchange_rate", "Exchange rate of two currencies", {"base": "string", "quote": "string"},
        "What is the exchange rate from CHF to SEK?", {"base": "CHF", "quote": "SEK"}),
    ("mute_channel", "Mute a channel", {"channel": "string"}, "Mute the channel lantern.", {"channel": "lantern"}),
    ("check_balance", "Balance of an account", {"account_number": "string"},
        "Can you check the balance of account number 7781204?", {"account_number": "7781204"}),
    ("assign_task", "Assign a task to somebody", {"assignee": "string", "task": "string"},
        "Assign the task \"paint the anchor\" to Priya.", {"assignee": "Priya", "task": "paint the anchor"}),
    ("vacuum_room", "Vacuum a room", {"room": "string"}, "Please vacuum the pantry.", {"room": "pantry"}),
)
# Requests that none of the tools fits.
UNNEEDED = ("Knit me a sweater.", "Could you milk the goat?", "Hey, good to have you around!", "Who invented chess?",
    "Are you one of those chatbots?", "Peru's capital city is which one?")
# fmt: on
