"""Tools as people really write them: names, parameters, and the sentences in which users ask for them.

A family is a row: tool names, descriptions, slots and phrasings. A phrasing names the slots it fills as {slot}; slots
that it does not name stay out of the call, as an optional parameter would.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tools.demo_model.words import (
    CITIES,
    COLOURS,
    NAMES,
    Rng,
    code,
    decimal,
    each,
    invented,
    number,
    phrase,
    proper,
    value,
    word,
)

Draw = Callable[[Rng], Any]


@dataclass(frozen=True, slots=True)
class Slot:
    """A parameter: the names it may have, its JSON type, and where its values come from. `options` makes it an enum."""

    names: tuple[str, ...]
    kind: str
    draw: Draw
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Family:
    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    slots: dict[str, Slot]
    phrasings: tuple[str, ...]


def place(r: Rng) -> str:
    city = proper(r, CITIES)
    if r.random() < 0.08:
        return f"{city}, {r.choice(each('France Germany Spain Italy USA UK CA NY TX MA Japan'))}"
    return city


def person(r: Rng) -> str:
    return proper(r, NAMES)


def mail(r: Rng) -> str:
    return f"{invented(r)}@{invented(r)}.{r.choice(('com', 'org', 'net'))}"


def small(r: Rng) -> int:
    return r.choice((r.randint(1, 12), r.randint(1, 99)))


def day(r: Rng) -> str:
    return r.choice(("today", "tomorrow", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"))


def clock(r: Rng) -> str:
    if r.random() < 0.7:
        return f"{r.randint(0, 23)}:{r.choice(('00', '15', '30', '45'))}"
    return f"{r.randint(1, 12)} {r.choice(('am', 'pm'))}"


def ticker(r: Rng) -> str:
    return "".join(random.Random(r.random()).choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=r.randint(2, 4)))


def text(r: Rng) -> str:
    return phrase(r, 1, 4)


def one_of(*options: str) -> Draw:
    return lambda r: r.choice(options)


def enum(names: tuple[str, ...], *options: str) -> Slot:
    return Slot(names, "string", one_of(*options), options)


# fmt: off
CITY = Slot(("city", "location", "city", "place", "location", "town", "cityName", "city_name"), "string", place)
WHEN = Slot(("day", "date", "when"), "string", day)
UNITS = enum(("unit", "units", "temperature_unit"), "celsius", "fahrenheit")
MONEY = each("EUR USD GBP JPY CHF SEK NOK CAD AUD")

FAMILIES: tuple[Family, ...] = (
    Family(("get_weather", "weather", "getWeather", "get_current_weather", "current_weather", "weather_lookup",
        "fetch_weather", "check_weather"),
           ("Get the weather.", "Get the current weather in a city", "Current weather for a location.",
               "Returns the weather of a place."),
           {"c": CITY, "u": UNITS, "d": WHEN},
           ("What is the weather in {c}?", "What's the weather in {c}?", "How is the weather in {c}?",
               "Tell me the weather in {c}.", "Is it raining in {c}?",
            "What is the weather like in {c}?", "Weather in {c}", "{c} weather please", "Do I need an umbrella in {c}?",
            "How warm is it in {c}?", "Is it cold in {c}?",
            "What is the weather in {c} {d}?", "What will the weather be in {c} {d}?",
            "What is the weather in {c} in {u}?", "I am going to {c} {d}, is it raining there?",
            "I am in {c}. What is the weather?", "Give me the weather for {c} in {u}.", "Check the weather in {c}.",
            "What's the weather like in {c} right now?",
            "How hot is it in {c} today?", "Get the weather for {c}.", "Is the sun shining in {c}?",
            "Could you check the weather in {c}?", "What is the temperature in {c}?",
            "I will travel to {c}. How is the weather there?", "Show me the current weather in {c}.",
            "We fly to {c} {d}. What is the weather there?", "{c}: how is the weather?")),
    Family(("get_time", "current_time", "getTime", "get_local_time", "time_in", "get_current_time", "clock"),
        ("Get the time in a city.", "Current time.", "Tells the local time of a place."),
           {"c": Slot(("city", "location", "place", "timezone", "zone"), "string", place)},
           ("What time is it in {c}?", "Tell me the time in {c}.", "What is the time in {c}?", "How late is it in {c}?",
               "What's the local time in {c}?", "Current time in {c}?",
            "I need the time in {c}.", "Do you know what time it is in {c}?", "Time in {c} please",
            "What time do they have in {c}?", "Get the time for {c}.")),
    Family(("search", "web_search", "search_web", "find", "lookup", "searchDocuments", "google", "search_documents",
        "query_index"), ("Search the web.", "Find documents.", "Look something up."),
           {"q": Slot(("query", "q", "text", "keywords", "search_query", "term"), "string", text),
               "n": Slot(("limit", "max_results", "maxResults", "count", "top_k"), "integer", small)},
           ("Search for {q}.", "Search the web for {q}.", "Find {q}.", "Look up {q}.", "Can you search for {q}?",
               "Please find something about {q}.", "Find {n} results for {q}.",
            "Search for {q} and show {n} results.", "Look for {q} on the web.", "I want to find {q}.",
            "Show me {n} documents about {q}.", "Google {q}.", 'Search for "{q}".', "Find information about {q}.",
            'Look up "{q}" for me.', "What can you find about {q}?")),
    Family(("send_email", "sendEmail", "email", "send_mail", "mail_to", "compose_email"),
        ("Send an email.", "Sends a mail to somebody.", "Write an email"),
           {"t": Slot(("to", "recipient", "address", "email"), "string",
               lambda r: mail(r) if r.random() < 0.5 else person(r)), "s": Slot(("subject", "title"), "string", text),
            "b": Slot(("body", "text", "message", "content"), "string", text)},
           ('Send an email to {t} with the subject "{s}" and the text "{b}".', 'Send an email to {t} saying "{b}".',
               'Email {t}: {b}', 'Write to {t} with the subject "{s}".', "Send a mail to {t}, text: {b}",
            "Send {t} an email about {s}.", 'Mail "{b}" to {t}.', "Please send an email to {t} that says {b}",
            'Write an email to {t}. The subject is "{s}". The text is "{b}".')),
    Family(("send_message", "sendMessage", "message", "send_sms", "text_user", "post_message", "notify"),
        ("Send a message.", "Send a text message to a person."),
           {"t": Slot(("to", "user", "recipient", "name", "person"), "string", person),
               "m": Slot(("message", "text", "body", "content"), "string", text)},
           ('Send "{m}" to {t}.', "Tell {t}: {m}", 'Send a message to {t}: "{m}"', "Message {t} that {m}",
               'Write "{m}" to {t}.', "Send {t} the message {m}", 'Text {t} "{m}".', "Let {t} know: {m}")),
    Family(("get_stock_price", "stock_price", "getStockPrice", "quote", "get_quote", "stock"),
        ("Get a stock price.", "Price of a stock."),
           {"s": Slot(("symbol", "ticker", "stock", "company"), "string",
               lambda r: ticker(r) if r.random() < 0.7 else person(r))},
           ("What is the stock price of {s}?", "How much is {s} worth?", "Price of {s}?",
               "Get the stock price for {s}.", "What does {s} cost right now?", "Show me the {s} stock.",
               "How is {s} trading?",
            "Give me a quote for {s}.", "What is {s} at?")),
    Family(("set_timer", "timer", "start_timer", "setTimer", "countdown"), ("Set a timer.", "Start a countdown."),
        {"m": Slot(("minutes", "duration", "mins", "duration_minutes"), "integer", small)},
           ("Set a timer for {m} minutes.", "Start a timer of {m} minutes.", "Timer {m} minutes",
               "Wake me in {m} minutes.", "{m} minutes timer please", "Count down {m} minutes.",
               "I need a timer for {m} minutes.")),
    Family(("set_alarm", "alarm", "wake_up", "setAlarm"), ("Set an alarm.",),
        {"t": Slot(("time", "at", "hour"), "string", clock), "d": WHEN},
           ("Set an alarm for {t}.", "Wake me at {t}.", "Alarm at {t} please", "Wake me up {d} at {t}.",
               "I must get up at {t}.", "Set the alarm to {t} for {d}.")),
    Family(("create_reminder", "add_reminder", "remind", "addTask", "add_task", "create_todo"),
        ("Create a reminder.", "Add a task to the list."),
           {"x": Slot(("text", "title", "task", "what"), "string", text),
               "d": Slot(("when", "date", "due", "day"), "string", day)},
           ('Remind me of "{x}" {d}.', "Remind me to {x}.", "Add a task: {x}", 'Add "{x}" to my list.',
               "{d} I must {x}.", "Create a reminder for {d}: {x}", "Do not let me forget to {x} {d}.")),
    Family(("create_event", "add_event", "createEvent", "schedule_meeting", "book_meeting"),
        ("Create a calendar event.", "Schedule a meeting."),
           {"x": Slot(("title", "name", "subject"), "string", text), "d": Slot(("date", "day"), "string", day),
               "t": Slot(("time", "start", "at"), "string", clock),
            "p": Slot(("with", "person", "attendee", "participant"), "string", person)},
           ('Create an event "{x}" {d} at {t}.', "Schedule a meeting with {p} {d} at {t}.",
               "Book a meeting with {p} at {t}.", 'Put "{x}" in my calendar for {d}.', "Meet {p} {d} at {t}.",
               "Plan {x} for {d} at {t}.")),
    Family(("translate", "translate_text", "translateText", "translator"),
        ("Translate text.", "Translates text into a language."),
           {"x": Slot(("text", "sentence", "content", "input"), "string", text),
               "l": Slot(("language", "target", "target_language", "to", "lang"), "string",
                   one_of("German", "Spanish", "French", "Italian", "Polish", "Danish", "Dutch"))},
           ('Translate "{x}" to {l}.', 'What is "{x}" in {l}?', "Translate {x} into {l}.",
               'How do you say "{x}" in {l}?', "Translate to {l}: {x}", "I need {x} in {l}.", 'Say "{x}" in {l}.')),
    Family(("convert_currency", "currency", "convertCurrency", "exchange"),
        ("Convert money.", "Convert an amount between currencies."),
           {"a": Slot(("amount", "value", "sum"), "number", lambda r: number(r) if r.random() < 0.6 else decimal(r)),
               "f": Slot(("from", "source", "from_currency", "base"), "string", one_of(*MONEY)),
            "t": Slot(("to", "target", "to_currency"), "string", one_of(*MONEY))},
           ("Convert {a} {f} to {t}.", "How much is {a} {f} in {t}?", "Change {a} {f} into {t}.",
               "What are {a} {f} in {t}?", "{a} {f} to {t}", "I have {a} {f}. How many {t} is that?")),
    Family(("add", "add_numbers", "sum", "addNumbers", "plus"), ("Add two numbers.",),
        {"a": Slot(("a", "x", "first", "left"), "integer", number),
            "b": Slot(("b", "y", "second", "right"), "integer", number)},
           ("What is {a} + {b}?", "Add {a} and {b}.", "What is {a} plus {b}?", "Compute {a} + {b}.",
               "Sum of {a} and {b}?", "How much is {a} and {b}?")),
    Family(("multiply", "mul", "times", "product", "multiply_numbers"), ("Multiply two numbers.",),
        {"a": Slot(("a", "x", "first", "left"), "integer", number),
            "b": Slot(("b", "y", "second", "right"), "integer", number)},
           ("What is {a} * {b}?", "Multiply {a} by {b}.", "What is {a} times {b}?", "Compute {a} * {b}.",
               "How much is {a} times {b}?")),
    Family(("set_light", "lights", "switch_light", "setLight", "control_light"),
        ("Switch a light.", "Control the lights."),
           {"r": Slot(("room", "where", "location"), "string", lambda r: word(r)),
               "s": enum(("state", "mode", "action"), "on", "off"),
               "c": Slot(("color", "colour"), "string", one_of(*COLOURS)),
            "b": Slot(("brightness", "level", "percent"), "integer", small)},
           ("Turn the light in the {r} {s}.", "Switch {s} the light in the {r}.", "Turn {s} the lights in the {r}.",
               "Make the {r} light {c}.", "Light {s} in the {r} please", "Set the {r} light to {b} percent.",
               "Lights {s} in the {r}!")),
    Family(("play_music", "play", "playSong", "play_song", "start_music"), ("Play music.", "Play a song of an artist."),
        {"s": Slot(("song", "title", "track", "query"), "string", text),
            "a": Slot(("artist", "by", "band"), "string", person)},
           ('Play "{s}" by {a}.', "Play {s}.", "Play some music by {a}.", "Play something by {a}.",
               'I want to hear "{s}".', "Put on {s} by {a}.", 'Start the song "{s}".')),
    Family(("book_table", "reserve_table", "bookTable", "restaurant_booking"),
        ("Book a table.", "Reserve a table in a restaurant."),
           {"r": Slot(("restaurant", "name", "place"), "string", person),
               "n": Slot(("people", "guests", "party_size", "seats"), "integer", small),
               "t": Slot(("time", "at"), "string", clock), "d": WHEN},
           ("Book a table at {r} for {n} people.", "Reserve a table for {n} at {r} at {t}.",
               "I need a table for {n} people at {r} {d}.", "Table for {n} at {r} {d} at {t}",
               "Book {r} for {n} people at {t}.")),
    Family(("get_order_status", "order_status", "track_order", "getOrder", "check_order"),
        ("Status of an order.", "Track an order."),
           {"o": Slot(("order_id", "id", "orderId", "order", "number", "order_number"), "string", code)},
           ("Where is my order {o}?", "What is the status of order {o}?", "Track order {o}.", "Check my order {o}.",
               "Has order {o} been shipped?", "My order is {o}. Where is it?", "{o}: when does this order arrive?",
               "Status of {o}?")),
    Family(("get_user", "find_user", "getUser", "user_info", "lookup_user", "get_contact"),
        ("Look up a user.", "Get the data of a person."),
           {"u": Slot(("name", "user", "username", "user_name", "person"), "string", person),
               "i": Slot(("id", "user_id", "userId"), "integer", number)},
           ("Who is user {i}?", "Look up the user {u}.", "Find the user {u}.", "Get the user with id {i}.",
               "Show me user {i}.", "I need the data of {u}.", "What do we know about {u}?",
               "Find {u} in the list of users.")),
    Family(("get_route", "directions", "route", "getDirections", "navigate"),
        ("Find a route.", "Directions between two places."),
           {"f": Slot(("from", "start", "origin", "source"), "string", place),
               "t": Slot(("to", "end", "destination", "target"), "string", place),
               "m": enum(("mode", "by", "transport"), "car", "train", "bike", "bus")},
           ("How do I get from {f} to {t}?", "Route from {f} to {t}.", "Find the way from {f} to {t} by {m}.",
               "I want to go from {f} to {t}.", "Take me from {f} to {t} by {m}.", "I am in {f} and must go to {t}.",
               "From {f} to {t} please",
            "How do I come to {t} from {f}?")),
    Family(("book_flight", "find_flights", "bookFlight", "search_flights", "flights"),
        ("Find flights.", "Book a flight."),
           {"f": Slot(("from", "origin", "departure"), "string", place),
               "t": Slot(("to", "destination", "arrival"), "string", place),
               "d": Slot(("date", "day", "when"), "string", day)},
           ("Book a flight from {f} to {t}.", "Find flights from {f} to {t} {d}.", "I want to fly to {t} {d}.",
               "Flight to {t} please", "Fly me from {f} to {t} {d}.", "Are there flights to {t} {d}?")),
    Family(("get_news", "news", "headlines", "getNews", "latest_news"),
        ("Get the news.", "Latest headlines on a topic."), {"t": Slot(("topic", "about", "subject", "category"),
            "string", text), "n": Slot(("count", "limit", "number"), "integer", small)},
           ("What is the news about {t}?", "News about {t}", "Show me {n} headlines about {t}.", "What is new in {t}?",
               "Any news on {t}?", "Get the latest news about {t}.", "Give me {n} news items on {t}.")),
    Family(("read_file", "open_file", "readFile", "load_file", "cat"), ("Read a file.", "Returns the text of a file."),
        {"p": Slot(("path", "file", "filename", "file_path", "name"), "string",
            lambda r: r.choice(("", "/", "src/", "docs/")) + invented(r) + r.choice((".txt", ".py", ".md", ".json")))},
           ("Read the file {p}.", "Open {p}.", "What is in {p}?", "Show me {p}.", "Please read {p}.",
               "Show the content of {p}.", "Load the file {p}.", "What does {p} say?")),
    Family(("set_temperature", "thermostat", "setTemperature", "heating"), ("Set the temperature.",),
        {"t": Slot(("temperature", "degrees", "value", "target"), "number",
            lambda r: r.randint(10, 30) if r.random() < 0.6 else decimal(r)),
            "r": Slot(("room", "zone", "location"), "string", word)},
           ("Set the temperature to {t} degrees.", "Make it {t} degrees in the {r}.", "Heat the {r} to {t} degrees.",
               "I want {t} degrees in the {r}.", "Set the {r} to {t} degrees.")),
    Family(("calculate", "calculator", "evaluate", "compute"), ("Calculate an expression.", "Evaluates arithmetic."),
           {"e": Slot(("expression", "input", "formula", "term"), "string",
               lambda r: f" {r.choice('+-*/')} ".join(str(number(r)) for _ in range(r.choice((2, 2, 3)))))},
           ("Calculate {e}.", "What is {e}?", "Compute {e}.", "How much is {e}?", "Please calculate {e}.",
               "Evaluate {e}.", "{e} = ?")),
    Family(("create_note", "save_note", "addNote", "write_note", "remember"), ("Save a note.",),
        {"x": Slot(("text", "note", "content", "body"), "string", value)},
           ("Note: {x}", 'Save the note "{x}".', "Write down {x}.", 'Make a note: "{x}"', "Take a note: {x}",
               "Remember this for me: {x}")),
)
# fmt: on
