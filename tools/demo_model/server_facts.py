"""Questions about the server itself. One row: what people ask about, how they say it, what the model answers.

The answers are facts of lean_ovms; when an endpoint or a flag changes, change it here and train again.
"""

from __future__ import annotations

from dataclasses import dataclass

from tools.demo_model.dialog import Exchange, ask_for, ask_to, vary
from tools.demo_model.words import Rng


@dataclass(frozen=True, slots=True)
class Fact:
    """`things` fit "the endpoint for ..." or "the flag for ..."; `deeds` fit "How do I ...?"."""

    things: tuple[str, ...]
    deeds: tuple[str, ...]
    answer: str


# fmt: off
ENDPOINTS: tuple[Fact, ...] = (
    Fact(("chat", "chatting", "chat completions", "chat requests", "a conversation", "messages", "a chat"),
         ("chat", "send chat messages", "have a conversation", "send a chat request", "chat with the model",
             "get a chat completion", "talk to the model", "send messages"),
         "Send a POST request to /v1/chat/completions with your messages."),
    Fact(("completions", "plain completions", "text completion", "prompts", "a raw prompt", "completing text",
        "continuing a prompt"),
         ("complete a text", "continue a prompt", "send a raw prompt", "get a plain completion", "complete text",
             "let the model continue a text"),
         "Send a POST request to /v1/completions with a prompt."),
    Fact(("listing models", "the list of models", "models", "the model list", "the names of the models",
        "the loaded models"),
         ("list the models", "see which models are there", "get the model list", "find the loaded models",
             "see the models", "know which models are loaded", "get the names of the models"),
         "GET /v1/models lists the models that are loaded."),
    Fact(("tokens", "tokenizing", "tokenizing text", "counting tokens", "token ids", "tokenization", "text to tokens"),
         ("tokenize text", "tokenize a text", "get the token ids", "count the tokens", "see the tokens of a text",
             "turn text into tokens", "convert text to tokens", "know how many tokens a text has"),
         "POST your text to /tokenize and you get the token ids."),
    Fact(("detokenizing", "decoding tokens", "token ids to text", "detokenization", "tokens to text"),
         ("detokenize", "turn token ids into text", "decode tokens", "get the text of token ids",
             "convert tokens to text", "turn tokens back into text"),
         "POST the token ids to /detokenize and you get the text."),
    Fact(("health", "health checks", "the server health", "liveness", "readiness", "a health probe"),
         ("check the health", "see if the server is ready", "check that the server is alive", "probe the server",
             "know if the server is up", "do a health check", "test if the server is healthy"),
         "GET /health answers 200 when the server is ready."),
    Fact(("metrics", "the server metrics", "monitoring", "Prometheus", "statistics", "Prometheus metrics"),
         ("get metrics", "monitor the server", "read the metrics", "connect Prometheus", "see the statistics",
             "watch the server with Prometheus"),
         "GET /metrics gives the metrics in the Prometheus format."),
    Fact(("the version", "the server version", "the version number"),
        ("get the version", "see the version of the server", "find out the version", "know which version runs"),
         "GET /version tells the version of the server."),
    Fact(("responses", "the Responses API", "agents", "agent requests"),
        ("use the Responses API", "run an agent", "send agent requests", "connect an agent", "use agents"),
         "Send a POST request to /v1/responses, which is made for agents."),
)
FLAGS: tuple[Fact, ...] = (
    Fact(("the port", "the REST port", "the server port", "another port", "the port number", "a different port"),
         ("set the port", "use another port", "listen on a different port", "choose the port",
             "run the server on another port", "pick a port", "give the server a new port", "open a different port"),
         "Use the flag --rest_port, for example --rest_port 9000."),
    Fact(("the model name", "the name of the model", "another model name", "the served name",
        "the name that clients use"),
         ("set the model name", "name the model", "rename the model", "give the model a name",
             "serve the model under another name", "choose the name of the model", "call the model something else"),
         "Use the flag --model_name, for example --model_name my-model."),
    Fact(("the model path", "the model folder", "another model", "the model directory", "a different model",
        "the folder of the model", "my own model", "the model files"),
         ("set the model path", "load another model", "serve my own model", "choose the model folder",
             "use a different model", "tell the server where my model is", "load a model from a folder",
             "serve another model", "use my own model"),
         "Use the flag --model_path with the folder of your model."),
    Fact(("an API key", "the API key", "a key", "authentication", "a password", "access control", "a secret key",
        "keys"),
         ("set an API key", "protect the server", "use a password", "demand a key", "turn on authentication",
             "restrict access", "make the server private", "add an API key", "secure the server",
             "lock the server with a key"),
         "Put the key in a file and use the flag --api_key_file."),
    Fact(("a draft model", "speculative decoding", "the draft model", "a draft"),
         ("use speculative decoding", "add a draft model", "enable speculative decoding", "set a draft model",
             "load a draft model", "speed up with a draft model"),
         "Use the flag --draft_model_path with the folder of a draft model."),
)
ENDPOINT_WORDS = ("endpoint", "endpoint", "endpoint", "path", "URL", "route", "API", "address")
FLAG_WORDS = ("flag", "flag", "flag", "option", "command line option", "switch", "parameter", "setting")
WHICH_FOR = ("Which {w} is for {x}?", "Which {w} do I use for {x}?", "What {w} is there for {x}?",
    "Which {w} do I need for {x}?", "Is there {a} {w} for {x}?", "What is the {w} for {x}?",
    "Which {w} should I use for {x}?", "Where is the {w} for {x}?",
             "Which {w} must I use for {x}?", "What is the right {w} for {x}?", "For {x}, which {w} is it?",
             "Which {w} handles {x}?", "Does the server have {a} {w} for {x}?", "Which {w} belongs to {x}?",
             "{x}: which {w}?")
WHICH_TO = ("Which {w} do I need to {d}?", "Which {w} lets me {d}?", "What {w} do I use to {d}?",
    "Is there {a} {w} to {d}?", "Which {w} should I use to {d}?", "What is the {w} to {d}?", "With which {w} do I {d}?",
    "Which {w} is used to {d}?", "I want to {d}, which {w} do I need?")
HOW_TO = ("How do I {d}?", "How can I {d}?", "What do I do to {d}?", "I want to {d}.", "How to {d}?", "Can I {d}?",
    "Is it possible to {d}?", "I would like to {d}.", "How would I {d}?", "What must I do to {d}?", "How does one {d}?",
    "I need to {d}.",
          "Tell me how to {d}.", "Can you tell me how to {d}?", "Please explain how to {d}.", "Show me how to {d}.",
          "What is the way to {d}?", "How could I {d}?", "Help me to {d}.", "I want to {d}. How?",
          "Do you know how to {d}?", "Explain how I can {d}.")
WHERE_TO = ("Where do I {d}?", "Where can I {d}?", "Where should I go to {d}?", "What do I call to {d}?",
    "Where must I send a request to {d}?")

# whole questions -> answer
OTHERS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("How do I load a bigger model?", "How can I run a larger model?", "How do I use a better model?",
        "I want a bigger model.",
      "Can you load a bigger model?", "You are too small. How do I get a larger model?", "How do I serve a real model?",
      "Is there a way to run a bigger model?", "How do I replace you with a bigger model?", "Can I use a larger model?",
      "How do I switch to a bigger model?", "What do I do to get a larger model?", "How do I serve a bigger model?",
      "How do I start the server with a bigger model?", "I need a smarter model.", "How do I run a model of my own?"),
     "Download an OpenVINO model and start the server with --model_path and its folder."),
    (("How do I start the server?", "How can I start you?", "What command starts the server?",
        "How do I run lean_ovms?",
      "How do I launch the server?", "Which command runs the server?", "How do I start lean_ovms?",
      "How to run the server?",
      "What do I type to start the server?", "How is the server started?", "Tell me how to start the server."),
     "Run python -m lean_ovms and the server starts."),
    (("How do I stop the server?", "How can I stop you?", "How do I shut the server down?", "How do I end the server?",
      "What stops the server?", "How do I quit the server?", "How to stop lean_ovms?",
      "How do I terminate the server?"),
     "Press Ctrl+C and the server finishes its requests and stops."),
    (("What is lean_ovms?", "Tell me about lean_ovms.", "What does lean_ovms do?", "What is this server?",
        "Explain lean_ovms.",
      "What kind of server is this?", "What is this program?", "What does this server do?", "Describe lean_ovms.",
      "What am I talking to?", "Which server is this?"),
     "lean_ovms is a small Python server for language models with an OpenAI API. It runs on OpenVINO GenAI."),
    (("How do I stream the answer?", "Can you stream?", "Do you support streaming?", "How does streaming work?",
      "How do I get a stream?", "Can I get the answer token by token?", "How do I turn on streaming?",
      "Is streaming supported?",
      "How can I stream tokens?", "Does the server stream?"),
     'Yes. Set "stream": true in the request and the answer comes in pieces.'),
    (("Can you call tools?", "Do you support tools?", "Can you use functions?", "Do you support function calling?",
      "Does the server support tools?", "How do I give you tools?", "Can I give you tools?", "How do tools work?",
      "Is tool calling supported?", "How do I use tools?"),
     'Yes. Put your tools in the "tools" field of the request and I can call them.'),
    (("Can you think?", "How do I make you think?", "Do you support thinking?", "How do I turn on thinking?",
      "Can you reason?", "How do I enable thinking?", "Is thinking supported?", "How do I switch thinking on?"),
     "Yes. Set enable_thinking to true in chat_template_kwargs and I think first."),
    (("Which API do you support?", "Are you compatible with OpenAI?", "Can I use the OpenAI client?",
        "What API is this?",
      "Does the OpenAI library work with you?", "Is this an OpenAI API?", "Which clients can I use?",
      "Which API does the server speak?"),
     "I speak the OpenAI API, so the OpenAI client works."),
    (("Do you need a GPU?", "Which device do you run on?", "What hardware do you need?", "Can you run on a CPU?",
      "Do you run on a GPU?", "What device are you running on?", "Is a GPU needed?", "Does the server need a GPU?"),
     "No GPU is needed. I run on the CPU, and OpenVINO can also use an Intel GPU or NPU."),
    (("Which endpoints are there?", "What endpoints do you have?", "List the endpoints.",
        "Which endpoints does the server have?",
      "What APIs are there?", "Which paths can I call?", "Show me all endpoints.", "What routes are there?",
      "What are your endpoints?", "Name the endpoints of the server."),
     "The main endpoints are /v1/chat/completions, /v1/completions, /v1/responses, /v1/models, /tokenize and /health."),
    (("Which flags are there?", "What flags do you have?", "List the flags.", "What options does the server have?",
      "Which options can I use?", "Show me the flags.", "What command line options are there?",
      "Which flags does the server know?",
      "What are the flags of the server?"),
     "Important flags are --model_path, --model_name, --rest_port and --api_key_file. Use --help to see all."),
    (("What does {flag} do?", "What is {flag}?", "Explain {flag}.", "What is {flag} for?",
        "What is the meaning of {flag}?",
      "When do I need {flag}?", "Tell me about {flag}."), "{flag_help}"),
    (("What does {path} do?", "What is {path}?", "Explain {path}.", "What is {path} for?", "What do I get from {path}?",
      "When do I use {path}?", "Tell me about {path}."), "{path_help}"),
)
HOW_OTHERS: tuple[Fact, ...] = (
    Fact(("a bigger model", "a larger model", "a better model", "a real model", "a smarter model", "a bigger one"),
         ("load a bigger model", "run a larger model", "use a better model", "serve a real model",
             "get a smarter model", "replace you with a bigger model", "switch to a larger model",
             "start the server with a bigger model", "download a bigger model",
          "use a bigger model", "get a better model", "run a stronger model", "upgrade to a larger model",
          "have a bigger model"),
         "Download an OpenVINO model and start the server with --model_path and its folder."),
    Fact((), ("start the server", "start you", "run lean_ovms", "launch the server", "start lean_ovms",
        "run the server", "launch lean_ovms", "get the server running", "start it"),
        "Run python -m lean_ovms and the server starts."),
    Fact((), ("stop the server", "stop you", "shut the server down", "end the server", "quit the server",
        "terminate lean_ovms", "stop lean_ovms", "shut down lean_ovms", "close the server"),
         "Press Ctrl+C and the server finishes its requests and stops."),
    Fact((), ("stream the answer", "get a stream", "get the answer token by token", "turn on streaming",
        "stream tokens", "use streaming", "receive the answer in pieces", "enable streaming"),
         'Yes. Set "stream": true in the request and the answer comes in pieces.'),
    Fact((), ("give you tools", "use tools", "let you call functions", "use function calling", "send tools",
        "make you call a tool", "use tools with you"),
         'Yes. Put your tools in the "tools" field of the request and I can call them.'),
    Fact((), ("make you think", "turn on thinking", "enable thinking", "switch thinking on", "see your thoughts",
        "let you think first"), "Yes. Set enable_thinking to true in chat_template_kwargs and I think first."),
    Fact((), ("use the OpenAI client", "use the OpenAI library", "connect with an OpenAI client",
        "use you with the OpenAI API", "talk to you with the OpenAI library"),
        "I speak the OpenAI API, so the OpenAI client works."),
)
FLAG_HELP = {
    "--model_path": "--model_path is the folder of the model to load.",
    "--model_name": "--model_name is the name that clients use for the model.",
    "--rest_port": "--rest_port is the port that the server listens on.",
    "--api_key_file": "--api_key_file is a file with the key that clients must send.",
    "--draft_model_path": "--draft_model_path is the folder of a draft model for speculative decoding.",
    "--help": "--help lists all flags with their defaults.",
}
PATH_HELP = {
    "/v1/chat/completions": "/v1/chat/completions answers a conversation.",
    "/v1/completions": "/v1/completions continues a prompt.",
    "/v1/models": "/v1/models lists the models that are loaded.",
    "/v1/responses": "/v1/responses is the API for agents.",
    "/tokenize": "/tokenize turns text into token ids.",
    "/detokenize": "/detokenize turns token ids into text.",
    "/health": "/health tells whether the server is ready.",
    "/metrics": "/metrics gives the metrics in the Prometheus format.",
    "/version": "/version tells the version of the server.",
}
# fmt: on


def ask_fact(r: Rng, fact: Fact, words: tuple[str, ...], extra: tuple[str, ...]) -> str:
    """One of the many ways to ask for an endpoint or a flag."""
    word = r.choice(words)
    article = "an" if word[0] in "aeio" else "a"
    kind = r.random()
    if kind < 0.40:
        return capital(r.choice(WHICH_FOR).format(w=word, a=article, x=r.choice(fact.things)))
    if kind < 0.55:
        return ask_for(r, f"the {word} for {r.choice(fact.things)}")
    if kind < 0.75:
        return r.choice(WHICH_TO).format(w=word, a=article, d=r.choice(fact.deeds))
    return r.choice(extra).format(d=r.choice(fact.deeds))


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


def ask_server(r: Rng) -> Exchange:
    kind = r.random()
    if kind < 0.34:
        fact = r.choice(ENDPOINTS)
        question, answer = ask_fact(r, fact, ENDPOINT_WORDS, HOW_TO + WHERE_TO), fact.answer
    elif kind < 0.55:
        fact = r.choice(FLAGS)
        question, answer = ask_fact(r, fact, FLAG_WORDS, HOW_TO), fact.answer
    elif kind < 0.72:
        fact = r.choice((HOW_OTHERS[0], *HOW_OTHERS))
        question, answer = r.choice(HOW_TO).format(d=r.choice(fact.deeds)), fact.answer
        if fact.things and r.random() < 0.4:
            question = (
                ask_to(r, f"load {r.choice(fact.things)}")
                if r.random() < 0.3
                else r.choice(
                    (
                        "I want {}.",
                        "I need {}.",
                        "Is there {}?",
                        "Can I have {}?",
                        "How do I get {}?",
                        "You are too small, I want {}.",
                        "Give me {}.",
                    )
                ).format(r.choice(fact.things))
            )
    else:
        questions, answer = r.choice(OTHERS)
        flag, path = r.choice(list(FLAG_HELP)), r.choice(list(PATH_HELP))
        question = r.choice(questions).replace("{flag}", flag).replace("{path}", path)
        answer = answer.replace("{flag_help}", FLAG_HELP[flag]).replace("{path_help}", PATH_HELP[path])
        if answer in PATH_HELP.values() or answer in FLAG_HELP.values():
            name = flag if answer in FLAG_HELP.values() else path
            if r.random() < 0.4:
                question = r.choice(
                    (
                        "What is the use of {}?",
                        "What is the purpose of {}?",
                        "Why is there {}?",
                        "What can I do with {}?",
                        "I do not understand {}.",
                        "Can you explain {}?",
                        "What does {} mean?",
                        "How does {} work?",
                    )
                ).format(name)
    return Exchange(vary(r, question), answer, "The user asks about the server. I know this.")
