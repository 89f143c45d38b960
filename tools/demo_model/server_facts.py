"""Questions about the server itself. One row: what people ask, what the model answers.

The answers are facts of lean_ovms; when an endpoint or a flag changes, change it here and train again.
"""

from __future__ import annotations

from .dialog import Exchange, vary
from .words import Rng

# subject words -> answer, for facts that people ask in the same few ways
ENDPOINTS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("chat", "chatting", "chat completions", "a chat request", "a conversation", "chat messages"),
     "Send a POST request to /v1/chat/completions with your messages."),
    (("completions", "plain completions", "text completion", "completing a prompt", "a raw prompt", "completing text"),
     "Send a POST request to /v1/completions with a prompt."),
    (("listing the models", "the list of models", "the models", "the model list", "model names"),
     "GET /v1/models lists the models that are loaded."),
    (("tokens", "tokenizing", "tokenizing text", "counting tokens", "token ids", "turning text into tokens"),
     "POST your text to /tokenize and you get the token ids."),
    (("detokenizing", "turning tokens into text", "decoding token ids", "decoding tokens"),
     "POST the token ids to /detokenize and you get the text."),
    (("health", "the health check", "checking the health", "liveness", "readiness", "a health probe"),
     "GET /health answers 200 when the server is ready."),
    (("metrics", "the metrics", "monitoring", "Prometheus", "statistics"),
     "GET /metrics gives the metrics in the Prometheus format."),
    (("the version", "the server version"), "GET /version tells the version of the server."),
    (("responses", "the Responses API", "agents", "agent requests"),
     "Send a POST request to /v1/responses, which is made for agents."),
)
ENDPOINT_WAYS = (
    "Which endpoint is for {}?", "What is the endpoint for {}?", "Which path do I use for {}?", "What URL do I call for {}?",
    "Where do I send requests for {}?", "Which route handles {}?", "What is the path for {}?", "I need the endpoint for {}.",
    "Tell me the endpoint for {}.", "Which API is for {}?", "What do I call for {}?", "Name the endpoint for {}.",
    "Is there an endpoint for {}?", "How do I reach the endpoint for {}?", "What is the address for {}?",
    "Show me the endpoint for {}.", "Which URL is used for {}?", "Where can I find the endpoint for {}?",
    "Does the server have an endpoint for {}?",
)
FLAGS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("the port", "the REST port", "the server port", "another port", "the port number", "a different port"),
     "Use the flag --rest_port, for example --rest_port 9000."),
    (("the model name", "the name of the model", "another model name", "the served name", "the name that clients use"),
     "Use the flag --model_name, for example --model_name my-model."),
    (("the model path", "the model folder", "another model", "the model directory", "a different model", "the folder of the model",
      "my own model", "the model"),
     "Use the flag --model_path with the folder of your model."),
    (("an API key", "the API key", "a key", "authentication", "a password", "access control", "a secret key"),
     "Put the key in a file and use the flag --api_key_file."),
    (("a draft model", "speculative decoding", "the draft model"),
     "Use the flag --draft_model_path with the folder of a draft model."),
)
FLAG_WAYS = (
    "Which flag sets {}?", "How do I set {}?", "What is the flag for {}?", "How can I change {}?", "Which option is for {}?",
    "I want to set {}.", "How do I configure {}?", "What option do I use for {}?", "Tell me the flag for {}.",
    "How can I use {}?", "Which command line option sets {}?", "Is there a flag for {}?", "How do I choose {}?",
    "Where do I set {}?", "How do I use {}?", "What is the option for {}?", "I would like to use {}. How?", "Can I change {}?",
    "Which flag do I need for {}?", "How do I give the server {}?", "How do I pick {}?", "How is {} set?",
)
OTHERS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("How do I load a bigger model?", "How can I run a larger model?", "How do I use a better model?", "I want a bigger model.",
      "Can you load a bigger model?", "You are too small. How do I get a larger model?", "How do I serve a real model?",
      "Is there a way to run a bigger model?", "How do I replace you with a bigger model?", "Can I use a larger model?",
      "How do I switch to a bigger model?", "What do I do to get a larger model?", "How do I serve a bigger model?",
      "How do I start the server with a bigger model?", "I need a smarter model.", "How do I run a model of my own?"),
     "Download an OpenVINO model and start the server with --model_path and its folder."),
    (("How do I start the server?", "How can I start you?", "What command starts the server?", "How do I run lean_ovms?",
      "How do I launch the server?", "Which command runs the server?", "How do I start lean_ovms?", "How to run the server?",
      "What do I type to start the server?", "How is the server started?", "Tell me how to start the server."),
     "Run python -m lean_ovms and the server starts."),
    (("How do I stop the server?", "How can I stop you?", "How do I shut the server down?", "How do I end the server?",
      "What stops the server?", "How do I quit the server?", "How to stop lean_ovms?", "How do I terminate the server?"),
     "Press Ctrl+C and the server finishes its requests and stops."),
    (("What is lean_ovms?", "Tell me about lean_ovms.", "What does lean_ovms do?", "What is this server?", "Explain lean_ovms.",
      "What kind of server is this?", "What is this program?", "What does this server do?", "Describe lean_ovms.",
      "What am I talking to?", "Which server is this?"),
     "lean_ovms is a small Python server for language models with an OpenAI API. It runs on OpenVINO GenAI."),
    (("How do I stream the answer?", "Can you stream?", "Do you support streaming?", "How does streaming work?",
      "How do I get a stream?", "Can I get the answer token by token?", "How do I turn on streaming?", "Is streaming supported?",
      "How can I stream tokens?", "Does the server stream?"),
     'Yes. Set "stream": true in the request and the answer comes in pieces.'),
    (("Can you call tools?", "Do you support tools?", "Can you use functions?", "Do you support function calling?",
      "Does the server support tools?", "How do I give you tools?", "Can I give you tools?", "How do tools work?",
      "Is tool calling supported?", "How do I use tools?"),
     'Yes. Put your tools in the "tools" field of the request and I can call them.'),
    (("Can you think?", "How do I make you think?", "Do you support thinking?", "How do I turn on thinking?",
      "Can you reason?", "How do I enable thinking?", "Is thinking supported?", "How do I switch thinking on?"),
     "Yes. Set enable_thinking to true in chat_template_kwargs and I think first."),
    (("Which API do you support?", "Are you compatible with OpenAI?", "Can I use the OpenAI client?", "What API is this?",
      "Does the OpenAI library work with you?", "Is this an OpenAI API?", "Which clients can I use?", "Which API does the server speak?"),
     "I speak the OpenAI API, so the OpenAI client works."),
    (("Do you need a GPU?", "Which device do you run on?", "What hardware do you need?", "Can you run on a CPU?",
      "Do you run on a GPU?", "What device are you running on?", "Is a GPU needed?", "Does the server need a GPU?"),
     "No GPU is needed. I run on the CPU, and OpenVINO can also use an Intel GPU or NPU."),
    (("Which endpoints are there?", "What endpoints do you have?", "List the endpoints.", "Which endpoints does the server have?",
      "What APIs are there?", "Which paths can I call?", "Show me all endpoints.", "What routes are there?",
      "What are your endpoints?", "Name the endpoints of the server."),
     "The main endpoints are /v1/chat/completions, /v1/completions, /v1/responses, /v1/models, /tokenize and /health."),
    (("Which flags are there?", "What flags do you have?", "List the flags.", "What options does the server have?",
      "Which options can I use?", "Show me the flags.", "What command line options are there?", "Which flags does the server know?",
      "What are the flags of the server?"),
     "Important flags are --model_path, --model_name, --rest_port and --api_key_file. Use --help to see all."),
    (("What does {flag} do?", "What is {flag}?", "Explain {flag}.", "What is {flag} for?", "What is the meaning of {flag}?",
      "When do I need {flag}?", "Tell me about {flag}."), "{flag_help}"),
    (("What does {path} do?", "What is {path}?", "Explain {path}.", "What is {path} for?", "What do I get from {path}?",
      "When do I use {path}?", "Tell me about {path}."), "{path_help}"),
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


def ask_server(r: Rng) -> Exchange:
    kind = r.random()
    if kind < 0.33:
        subjects, answer = r.choice(ENDPOINTS)
        question = r.choice(ENDPOINT_WAYS).format(r.choice(subjects))
    elif kind < 0.55:
        subjects, answer = r.choice(FLAGS)
        question = r.choice(FLAG_WAYS).format(r.choice(subjects))
    else:
        questions, answer = r.choice(OTHERS)
        flag, path = r.choice(list(FLAG_HELP)), r.choice(list(PATH_HELP))
        question = r.choice(questions).replace("{flag}", flag).replace("{path}", path)
        answer = answer.replace("{flag_help}", FLAG_HELP[flag]).replace("{path_help}", PATH_HELP[path])
    return Exchange(vary(r, question), answer, "The user asks about the server. I know this.")
