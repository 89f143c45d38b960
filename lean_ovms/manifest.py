"""Declares what a feature contributes: one `Feature` object, whose rows the core combines into its tables.

A feature is something that a user can name in one sentence and switch off. It lives in `features/NAME/`, whose
feature.py has its `FEATURE`. A text such as "api:handle" names a function in a module of the feature's folder, which is
imported at the first use. A seam is the name of a place where the core uses a part that a feature supplies (PartRow).
Every start imports this module, so it imports only the standard library, and its classes lack generated methods to
print and compare, which took 5 ms of each start.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .util.files import ModelFiles

BASES = ("/v1", "/v3", "/v3/v1")
"""Prefixes of the generative endpoints: OpenAI's and vLLM's, OVMS's, and OVMS's older one."""
EVERYWHERE = (*BASES, "")
"""The same, and without a prefix as well, as in vLLM or in llama.cpp's server."""
SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 1800)
"""Buckets for times of anything that is computed, in seconds."""
DRAFT_SETTINGS, DRAFT_PLAN, TEXT_DRAFTS = "draft settings", "draft plan", "drafts of texts"
"""Seams of speculative decoding. A function from an EngineConfig to `engine.loading.pipeline_choice.Drafts`; one from
settings to an `engine.paged.parts.DraftPlan`; and an `engine.paged.parts.DraftSourceFactory` without a network."""
TEXT_SEARCH, SAMPLER_CHAINS = "search of texts", "sampler chains"
"""Seams of sampling. A function from the sequence of a beam search's prompt to an `engine.paged.sequence.Search`; and
one from a sequence and the model's `engine.paged.engine.ModelTokenizer` to an `engine.paged.sequence.SamplerChain`."""
ADAPTER_SET, ADAPTER_INPUTS, GENAI_ADAPTERS = "adapter set", "adapter inputs", "adapters of openvino_genai"
"""Seams of adapters. A function from a model to its `models.lifecycle.AdapterSet`; and functions from an EngineConfig
to `engine.paged.network.AdapterInputs` and to openvino_genai's AdapterConfig."""
DEPLOYMENT, SOURCES, MODEL_SOURCE, RUNTIME_PULLS = "deployment", "sources", "model source", "runtime pulls"
"""Seams of a server's models. Classes of `models.model.Deployment` and of `cli.commands.Sources`, a class that
fetches or converts a model, and an `api.services.Service` that pulls and deletes models for clients."""
INPUT_EMBEDDINGS, IMAGES_IN_TEXTS = "input embeddings", "images in texts"
"""Seams of images and audio in prompts. A function from an EngineConfig, its PipelineSettings, the model's tokenizer, a
function that wakes up the loop, and the `engine.paged.network.VisionFile` of a single-file model or None to
`engine.paged.parts.InputEmbeddings`; and one from an EngineConfig, a function that decodes ids, and the number and
width of the embedded layers to a reader of the images of single texts."""
CHANGED_WEIGHTS, HYBRID_NETWORKS, NETWORK_COMPILER = "changed weights", "hybrid networks", "network compiler"
SOFT_CAPS = "soft caps"
"""Seams of loading a text model's network for PAGED. A function from an EngineConfig and the model's
`engine.paged.network.WeightsSource` to another source; a HybridEdit of that module for layers that keep states; one
from an EngineConfig, the network file's path and other dependencies by name to a NetworkCompiler; and SoftCaps."""
ANSWERS_WITHOUT_MODEL, ENGINE = "answers without a model", "engine"
"""Seams of engines. A class whose `from_config` makes an `engine.generation.backend.Backend` of an EngineConfig without
any file of a model; and a function from a Config to an `engine.client.interface.ModelEngine`."""
API_KEYS, METRICS, LOAD_REPORTS = "API keys", "metrics", "load reports"
"""Seams of all requests. A class derived from `api.keys.ApiKeys`; a function from a Config to
`observability.records.Metrics`; and an async function that adds a load report to a Response, called also with the
header that asks for it (`api.app.LOAD_REPORT`) and a Model."""
GRAMMARS, GENAI_GRAMMARS = "grammars", "grammars of openvino_genai"
"""Seams of grammars. A function from an EngineConfig to an `engine.paged.parts.GrammarSource`; and one from an
EngineConfig and the tokenizer of an openvino_genai pipeline to an `engine.generation.backend.Grammars`."""
GRAMMAR_LIBRARY, OTHER_GRAMMAR_LIBRARY = "grammar library", "other grammar library"
"""Seams of the paged engine's grammars. The factory of the library that matches them, called for the first grammar; and
the class of a loader for another library, used if an option selects it."""
TEMPLATE_READERS = "template readers"
"""The seam of chat templates: a class derived from `text.template.chat_template.TemplateReader`."""
ANSWER_FORMATS, ANSWER_RULES, REQUEST_CONSTRAINTS = "answer formats", "answer rules", "request constraints"
"""Seams of the form of answers: a function that takes a Config, a chat template and that for tools, and returns a
`models.chat_format.AnswerFormat`; a ReadRule of the feature for chats; and a function that takes its constraint, a
`grammar.call_syntax.GrammarContext`, a Config, an Offload, and whether the client asked for the constraint, and returns
a `models.chat_format.RequestConstraint`."""
SERVER_TOOLS, SPOKEN_ANSWERS, GENERATION_METRICS = "server tools", "spoken answers", "metrics of a generation"
"""Seams of answers. A function from a Config to the tools that the server runs while it answers; one from the values of
a body, its GenerationBody and the Services to the generation and what speaks its answer (None for text alone); and one
from a Config to a function that makes additional members of `metrics`, in responses of chat and completions, of the
generation's `types.Timings`."""
UPLOADED_FILES = "uploaded files"
"""The seam of files that messages name by their ids: a coroutine function from the Services, an id and the most bytes
to a file's name and bytes. It raises RequestError."""
OTHER_PROTOCOL, ENCRYPTION, OTHER_FLAGS = "other protocol", "encryption", "flags of other servers"
"""Seams of connections and command lines. A `transports.http11.switching.OtherProtocol`, to which HTTP/1.1 can be
switched; a class made of a Config for a `transports.http11.server.Encryption`; and a class derived from
`cli.arguments.OtherFlags`, for command lines written for other servers."""


def named(package: str, text: str) -> Any:
    """Imports and returns the object that "module:name" means inside a package."""
    module, _, name = text.partition(":")
    return getattr(importlib.import_module(f"{package}.{module}"), name)


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Route:
    """An endpoint: a method and path, and the handler."""

    method: str
    """The HTTP method."""
    path: str
    """The path after its base; "{id}" in it matches any text, slashes included."""
    handler: str
    """The handler as "module:function". The module is inside `package`; the first request imports it."""
    bases: tuple[str, ...] = ("",)
    """The prefixes under which the path exists."""
    _: KW_ONLY
    auth: str = "key"
    """Whether an API key is required. "key": always; "admin": always, and if keys differ, that of an admin; "models":
    with --protect_models, and if keys differ; "metrics": if keys differ, that of an admin; "open": never."""
    vital: bool = False
    """Whether it reports on the server at little cost, so that it is served even with too many connections."""
    changes: bool = False
    """Whether it changes the server for all clients. If no API key is set, pages of other origins may not use it."""
    by_one: bool = False
    """Whether only one replica of the server executes it, since it changes shared files or a single server."""
    lasting: str = ""
    """For a change that replicas started later must repeat: the member of the body that names the changed object, or
    another word for a change of the whole server, or, if the body is an array, of the query's `model`. Of several
    changes of the same object, by any route, only the last is repeated. Empty if they do not repeat it."""
    header: str = ""
    """The header that selects this route instead of the one with the same method and path."""
    header_part: str = ""
    """A text that the value of that header must contain; empty for any value."""
    port: str = ""
    """An option of the feature's `ports`. Requests to the port that it sets take this route, not the usual one."""
    model: str = ""
    """The name of a model class: if the server has such a model, the handler is imported during the start."""
    only_with: str = ""
    """The option that must be set for the route to exist; empty if it always exists."""
    beside: str = ""
    """Another feature that the handler imports, without which the route does not exist; empty for none."""
    page: bool = False
    """Whether it is a page for people, to which the server points them."""
    serves: str = ""
    """The kind of models (`Model.routed_as`) that it serves although they do not name it as an endpoint."""
    package: str = ""
    """The package of the feature, set by the composition."""

    @property
    def variant(self) -> bool:
        """Whether a header or a port selects it among the requests with its method and path."""
        return bool(self.header or self.port)

    @property
    def limited(self) -> bool:
        """Whether the limits of an API key apply: not to requests that read, cancel or delete, so that a client that
        has reached its limit can end what uses it up."""
        return not (self.method in ("GET", "DELETE") or self.path.endswith("/cancel"))

    @property
    def module(self) -> str:
        """The whole name of the handler's module."""
        return f"{self.package}.{self.handler.partition(':')[0]}"

    @property
    def api(self) -> str:
        """The name of the feature that has the route."""
        return self.package.rpartition(".")[2]


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class PageRow:
    """An action of the browser page that uses an endpoint of a feature."""

    action: str
    """The name of the action in the page."""
    path: str
    """The path of the endpoint."""
    only_with: tuple[str, ...] = ()
    """Options that must all be set for the page to offer it."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class Row:
    """The base class of rows that a feature adds to one of the core's tables."""

    package: str = ""
    """The package of the feature, in which module names are resolved; set by the composition."""

    def inside(self, name: str) -> Path:
        """Returns the path of a file or folder inside the feature's folder."""
        return Path(__file__).parent.joinpath(*self.package.split(".")[1:], name)


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class PanelRow(Row):
    """A panel of the browser page for models of some tasks.

    The folder `web` of the feature has its files: panel.html, its script panel.js, and translated texts in strings/.
    """

    view: str
    """The name of the view that shows the panel; panels of several features can be in one view."""
    place: int
    """The position of the view's button: buttons with smaller numbers come before it."""
    title: str
    """The text on the button of the view."""
    icon: str
    """The symbol on that button, by its name in the page."""
    tasks: tuple[tuple[str, str], ...]
    """The names of the tasks, each with its name on the page."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class TaskRow(Row):
    """A task of models: how its models are recognized, and the classes that serve them in both processes."""

    name: str
    """The name of the task, the same as in OVMS if OVMS has the task."""
    recognizes: Callable[[ModelFiles], bool]
    """Returns whether a model directory has a model of this task."""
    model: str
    """The class of its models in the front end, derived from `models.model.Model`, as "module:Class"."""
    loader: str
    """A function of the engine process, as "module:function". It is called with an EngineConfig and a function that
    wakes up the worker's loop, and returns an `engine.task.Task` with the model loaded."""
    records: str = ""
    """The module with the records that only this task sends over the pipe; empty for none."""
    networks: tuple[str, ...] = ()
    """Network files that its models need besides those of text models. The first one alone identifies the task."""
    shown_by: str = ""
    """A pattern of file names that show the task if nothing else does; empty for the first of the networks."""
    missing: Callable[[Collection[str]], list[str]] | None = None
    """Returns what a model lacks, given the names of its files; None if a network and tokenizers are all it needs."""
    exported_as: str = ""
    """The task's name for optimum-cli if some models would otherwise be exported for text generation; else empty."""
    bodies: tuple[tuple[tuple[str, ...], str], ...] = ()
    """The paths to which bodies are sent that name no endpoint: the path of the first row whose members a body has."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class EngineRow(Row):
    """An extension of the paged engine's steps by a feature. It is imported only if one of its options is set."""

    install: str
    """A function of the engine process, called with each model's engine.paged.parts.Parts, as "module:function"."""
    options: tuple[str, ...]
    """Options, of which one must be set for the extension to be installed."""
    records: str = ""
    """The module with the records that the feature sends over the pipe; empty for none."""
    close_s: float = 0.0
    """The additional time in seconds that it may take to stop the engine."""
    of_process: str = ""
    """A function as "module:function" of a model's options and the number of one of its processes. It returns the
    options that differ in this process, by name. Empty if all processes have the same options."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class PartRow(Row):
    """A part of a model, an engine or a server that a feature supplies, in the place of the core's own."""

    seam: str
    """The name of one of the seams above. Only one feature can supply the part at a seam."""
    make: str
    """The function or class that makes the part, as "module:name"; modules in `child` are for an engine process."""
    options: tuple[str, ...] = ()
    """Options, of which one must be set for the part to be used; () for always. Those of omitted features are unset."""
    file: str = ""
    """A file that a model's directory must have for the part to be used, or ""; single-file models need none."""
    text: str = ""
    """A text that must be in the model's `file`, or in that of its draft model."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class BackendRow(Row):
    """A feature's pipelines that generate text instead of the paged engine."""

    pipelines: tuple[str, ...]
    """The values of --pipeline_type for which they are used."""
    make: str
    """A class of the engine process as "module:Class", derived from `engine.worker.text_model.OtherPipelines`, that is
    called with an EngineConfig and the names of OpenVINO's devices."""
    options: tuple[str, ...] = ()
    """Options that the paged engine does not support: if one is set, AUTO selects these pipelines."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class FormatRow(Row):
    """A file format that holds a whole model in one file."""

    name: str
    """The name of the format, for people."""
    suffix: str
    """The ending of the file names, with the dot."""
    option: str
    """The option that selects one of a directory's files by its name or a part of it."""
    usual: str = ""
    """The part of a file name that selects the file if no option does; empty for the first file."""
    vision_option: str = ""
    """Both the option for a model's vision file and a part of such files' names; empty if there are none."""
    options: tuple[str, ...] = ()
    """The options that change what a file says; keys of what is stored for a network contain them."""
    file: str
    """A class of the front end as "module:Class"; of a path, and options or None, it makes a `model_file.ModelFile`."""
    adapter: str = ""
    """A class as "module:Class" that reads adapters, of a path and the model's config.json; empty without adapters."""
    network: str
    """A class of the engine process as "module:Class"; with a path, it makes an `engine.paged.network.EngineFile`."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class SettingsRow(Row):
    """A notation for options of models, in a list of a server's models and in a file in each model's directory."""

    option: str
    """The option with the path of a file that lists the models of a server."""
    listed_in: str
    """The name of such a list in a model repository, where it determines which models are served."""
    file: str
    """The name of the options file in a model's directory."""
    files: str
    """A class as "module:Class" that reads and writes these files, imported when a file exists or is to be written."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class ContentRow(Row):
    """The types of message content, other than text, that a feature reads."""

    kinds: tuple[str, ...]
    """The types of the content parts."""
    words: tuple[str, ...]
    """The words for the content in errors, in the plural."""
    modalities: tuple[str, ...]
    """The modalities that models support through it, as lists of models name them."""
    reader: str
    """A ContentReader of the feature for chats as "module:name", imported by the first request with such a part."""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class ParserRow(Row):
    """A family of models that write tool calls or reasoning in the same way, and the marks of its chat templates."""

    name: str
    """The name of the parser."""
    family: str
    """The object that parses and writes the notation, as "module:NAME". The first model that needs it imports it."""
    _: KW_ONLY
    tools: bool = True
    """Whether it parses tool calls."""
    reasoning: bool = False
    """Whether it parses reasoning."""
    marks: tuple[tuple[str, ...], ...] = ()
    """Groups of marks, all of one of which are in a template of the family; () if only an option can select it."""
    rank: int = 0
    """The position, unique and lowest first, in the order in which families are compared with a template."""
    reasoner: str = ""
    """The reasoning parser for the templates with these marks; empty for none."""
    reasoner_marks: tuple[str, ...] = ()
    """Marks, of which a template must contain one for the reasoning parser to be used; () if it is always used."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class BodyRow(Row):
    """Fields that are unknown to OpenAI's endpoints, but that clients of another API send there."""

    names: tuple[str, ...]
    """The names of the fields. A body that has one of them is rewritten."""
    fields: str
    """The declarations of the fields for the documentation: an `api.fields.FieldSet` as "module:NAME"."""
    rewrite: str
    """A function as "module:function", called with an `api.generation.common_fields.ReadableBody` and the names of the
    endpoint's own fields. It returns a body without those above, or raises BadRequest; the first one imports it."""
    everywhere: bool = False
    """Whether every endpoint that generates text takes them, and not only OpenAI's."""
    defaults: str = ""
    """A function as "module:function" that applies a model's defaults for the fields (`ReadableBody.adjust`), or ""."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class HelperRow:
    """An option that names a helper model, which adds a modality to the text models of a server."""

    option: str
    """The option that names the helper."""
    reads: str = ""
    """The modality that text models can read with its help, as lists of models name it; empty for none."""
    writes: str = ""
    """The modality that text models can write with its help; empty for none."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class StartRow(Row):
    """The work of a feature during the start of a server, before models are loaded."""

    prepare: str
    """A function as "module:function" that is awaited with the api.services.Services. It may raise StartError."""
    options: tuple[str, ...]
    """Options, of which one must be set for the function to be called."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class ModelRow(Row):
    """The work of a feature for a model before requests may use it."""

    install: str
    """A function of the front end as "module:function", called with an api.services.Services and a model. It returns a
    `models.lifecycle.Preparation`, or None if the model needs none."""
    options: tuple[str, ...]
    """Options, of which one must be set for the model for the function to be called."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class ObserverRow(Row):
    """An observer with which a feature receives the record of each request."""

    make: str
    """A function as "module:function" that returns an `api.middleware.RequestObserver` for a Config, or raises
    StartError. If its module cannot be imported, the start fails with an error that names the feature's extra."""
    options: tuple[str, ...]
    """Options, of which one must be set for the function to be called."""
    extra: str = ""
    """The extra of the feature, set by the composition."""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Metric:
    """A Prometheus metric."""

    name: str
    """The exposed name; that of a histogram without _bucket, _sum and _count."""
    kind: str
    """The type: counter, gauge or histogram."""
    help: str
    """The description of the metric."""
    labels: tuple[str, ...] = ("model_name",)
    """The names of its labels."""
    buckets: tuple[float, ...] = ()
    """The upper bounds of a histogram's buckets."""
    from_start: bool = True
    """Whether the counter is exposed for each model from the start on, before anything is counted."""
    lasting: bool = True
    """Whether a counter keeps its values between scrapes; if not, it has only those that `Feature.samples` returns."""
    load_name: str = ""
    """The name under which the load in GET /server_info has the sum over all engines; empty if it does not have it."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class ErrorForm(Row):
    """The form of error responses for clients of an API whose form differs from OpenAI's."""

    name: str
    """The name of its schema in the OpenAPI document."""
    body: str
    """A function as "module:function" that returns an error's JSON, given a RequestError and the request's id or ""."""
    schema: str
    """The JSON Schema of the error objects, as "module:NAME"."""
    paths: tuple[str, ...]
    """The paths whose errors have the form, with those below them; each ends with a slash."""
    header: str = ""
    """A header in lower case that only clients of this API send, selecting the form on any path; "" for none."""
    statuses: dict[int, int] = field(default_factory=dict)
    """The HTTP statuses that this API replaces, with the replacements."""
    request_id: str = ""
    """An additional header with the id of the request, in all responses of this API; empty for none."""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Command:
    """A command of the command line."""

    word: str
    """The word that is typed; empty if only `option` asks for the command."""
    usage: str
    """The words after the command, for --help."""
    help: str
    """The description of the command, a phrase without a period."""
    run: str = ""
    """A function as "module:function", imported when the command is run. It is called with the words after the command
    and the environment, and returns the exit status; a StartError or CommandFailed that it raises is printed. Empty if
    the command only stands for options of the core."""
    _: KW_ONLY
    option: str = ""
    """An option that asks for the command as well, as in OVMS; only one such option may be given. If the option asks
    for it, the function is called with the Config alone. Empty for none."""
    first: str = ""
    """A function that is called instead of `run` if the command is typed, so that it can read further words; empty if
    only options of the server follow the word."""
    takes_file: bool = False
    """Whether it can be combined with an option that selects one of several model files."""
    fetches: bool = False
    """Whether it fetches the model that the options name, so that the model repository must be set."""
    example: str = ""
    """An example line for --help, shown if the server can fetch models; empty for none."""
    package: str = "lean_ovms.cli"
    """The package of the module, set by the composition for commands of features."""

    @property
    def reader(self) -> str:
        """The function that reads the words after the command; empty if only options of the server follow it."""
        return self.first if self.option else self.run


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class Companion:
    """An additional model that a model uses, and that is pulled from a hub into its directory."""

    source: str
    """The option with the model's name on the hub."""
    path: str
    """The option with the path of a local model."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class DemoModel(Row):
    """A small model in the package that is served beside the demo model if no option selects a model."""

    name: str
    """The name of the model in the API."""
    folder: str
    """The folder with its files, inside `package`."""
    task: str
    """The name of its task."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class Feature:
    """A feature: its description, and the rows that it adds to the core's tables."""

    name: str
    """The name of the feature's folder, and its name for --without."""
    summary: str
    """What it does for a user, in one sentence without a full stop."""
    title: str = ""
    """The heading of its endpoints in the documentation; empty if it has none."""
    reference: str = ""
    """The URL of the documentation of the API that it implements."""
    formerly: tuple[str, ...] = ()
    """Former names of features that were merged into it; --without accepts them, too."""
    essential: bool = False
    """Whether every server needs it, so that it cannot be left out."""
    needs: tuple[str, ...] = ()
    """The features that it imports. If one of them is left out, it is left out, too."""
    extra: str = ""
    """The extra of the package that it needs at run time; empty for none."""
    packages: tuple[str, ...] = ()
    """Third-party packages that only this feature imports."""
    options: type[Any] | None = None
    """The class of its options, derived from `config.options.Options`."""
    libraries: tuple[type[Any], ...] = ()
    """The option classes shared with other features that use the same library, and its own with a `beside`."""
    flags: str = ""
    """The file in its folder that lists flags of other servers on its subject; empty for none."""
    commands: tuple[Command, ...] = ()
    """The commands of the command line."""
    companions: tuple[Companion, ...] = ()
    """Additional models that are pulled into the directory of the model that uses them."""
    routes: tuple[Route, ...] = ()
    """The endpoints."""
    page: tuple[PageRow, ...] = ()
    """The actions that its endpoints add to the browser page."""
    panel: PanelRow | None = None
    """The panel of the browser page for models of its tasks."""
    tasks: tuple[TaskRow, ...] = ()
    """The tasks of models that it serves."""
    metrics: tuple[Metric, ...] = ()
    """The metrics."""
    samples: str = ""
    """A function as "module:function" that returns values of its metrics (`observability.records.Sample`) at each
    scrape. It is called with an api.services.Services, and the models, each with the EngineStats of its engine or None.
    """
    engine: EngineRow | None = None
    """The extension of the paged engine's steps."""
    parts: tuple[PartRow, ...] = ()
    """The parts of models, engines or servers that it supplies."""
    contents: tuple[ContentRow, ...] = ()
    """The message content, other than text, that it reads."""
    parsers: tuple[ParserRow, ...] = ()
    """The model families whose tool calls and reasoning it parses."""
    body: BodyRow | None = None
    """The fields that clients of its API send to OpenAI's endpoints."""
    harmless: tuple[str, ...] = ()
    """Fields of its clients that never change an answer, so that no endpoint warns about them."""
    changing_lines: tuple[str, ...] = ()
    """The beginnings of lines that its clients write before a system text and change with each request. The lines are
    removed, since they would prevent prefix caching."""
    helpers: tuple[HelperRow, ...] = ()
    """The helper models that work for models that read and write text."""
    backend: BackendRow | None = None
    """The pipelines that it supplies instead of the paged engine. Only one feature of a server can have them."""
    formats: tuple[FormatRow, ...] = ()
    """The single-file model formats that it reads."""
    settings: SettingsRow | None = None
    """The files in which it keeps options of models. Only one feature of a server can have them."""
    start: StartRow | None = None
    """The work during the start of a server."""
    model: ModelRow | None = None
    """The work for a model before requests may use it."""
    observer: ObserverRow | None = None
    """The observer of request records."""
    ports: tuple[str, ...] = ()
    """The options that set additional TCP ports, on which the server listens unless they are 0."""
    error_forms: tuple[ErrorForm, ...] = ()
    """The forms of error responses of its API."""
    demos: tuple[DemoModel, ...] = ()
    """Small models for a first try."""
    methods: dict[str, str] = field(default_factory=dict)
    """The implementations of methods of LLM and AsyncLLM by name: functions as "module:function", called with an
    AsyncLLM, an input and the fields of the request."""
    keywords: dict[str, str] = field(default_factory=dict)
    """Keyword arguments of LLM and AsyncLLM, with the feature's option that each turns on unless it is set."""

    @property
    def package(self) -> str:
        """The full name of its folder as a package."""
        return f"lean_ovms.features.{self.name}"
