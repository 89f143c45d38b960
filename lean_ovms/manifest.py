"""Declares what a feature tells the core about itself: one `Feature`, of rows that the core composes into its tables.

A feature is what a user can name in one sentence and switch off. It lives in `features/NAME/`, whose feature.py has its
`FEATURE`. This module is imported by every start, before options are read: it imports nothing but the standard library,
and its classes have no methods to print and to compare, which took 5 ms of each start.

A text such as "api:handle" names a function of a module of the feature's own folder. It is imported by its first use.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .model_files import ModelFiles

BASES = ("/v1", "/v3", "/v3/v1")
"""Prefixes of the generative endpoints: OpenAI's and vLLM's, OVMS's, and OVMS's older one."""
EVERYWHERE = (*BASES, "")
"""The same, and without a prefix as well, as in vLLM or in llama.cpp's server."""
SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 1800)
"""Buckets for times of anything that is computed, in seconds."""
THINKS = ("<think>", "content.split('</think>')", 'content.split("</think>")')
"""Marks of chat templates of models that think between <think> and </think>."""
DRAFT_SETTINGS, DRAFT_PLAN, TEXT_PROPOSER = "draft settings", "draft plan", "text proposer"
"""Seams of drafts: a function from an EngineConfig to `engine.loading.drafts.Drafts`; what makes an
`engine.paged.parts.DraftPlan` of settings; and what makes a TextProposer of the most tokens that it compares."""
TEXT_SEARCH = "search of texts"
"""The seam of beam searches: an `engine.paged.sequence.Search`, made with the sequence that computes the prompt."""
ADAPTER_SET, ADAPTER_INPUTS, GENAI_ADAPTERS = "adapter set", "adapter inputs", "adapters of openvino_genai"
"""Seams of adapters: what makes a `models.lifecycle.AdapterSet` of a model; a function from an EngineConfig to
`engine.paged.network.AdapterInputs`; and one to openvino_genai's AdapterConfig."""
DEPLOYMENT, SOURCES, MODEL_SOURCE, RUNTIME_PULLS = "deployment", "sources", "model source", "runtime pulls"
"""Seams of the models of a server: classes of `models.registry.Deployment` and `cli.commands.Sources`, of what
fetches or converts a model, and of an `api.services.Service` that pulls and deletes models for clients."""
INPUT_EMBEDDINGS, IMAGES_IN_TEXTS = "input embeddings", "images in texts"
"""Seams of what prompts have beside text, for models whose network takes embeddings of it: what makes an
`engine.paged.parts.InputEmbeddings` of an EngineConfig, its PipelineSettings, the model's tokenizer, what ends the wait
of the loop, and the `engine.paged.network.VisionFile` of a model that is one file, or None; and what reads the images
of one text at a time, for an EngineConfig, what decodes ids, how many layers get embeddings, and of which length."""
CHANGED_WEIGHTS, HYBRID_NETWORKS, NETWORK_COMPILER = "changed weights", "hybrid networks", "network compiler"
"""Seams of a text model's network while PAGED loads it: what makes, of an EngineConfig and the model's
`engine.paged.network.WeightsSource`, another one; how layers that keep states are computed, a HybridEdit of that
module; and what makes a NetworkCompiler of that module of an EngineConfig, the path of the network's file, and what
else the network depends on, by its name."""
ANSWERS_WITHOUT_MODEL, ENGINE = "answers without a model", "engine"
"""Seams of what answers: where no model is wanted, a class with `from_config`, which makes an
`engine.generation.backend.Backend` of an EngineConfig, and nothing asks for a model's files then, whatever its task;
and what makes an `engine.client.interface.ModelEngine` of a Config."""
API_KEYS, METRICS, LOAD_REPORTS = "API keys", "metrics", "load reports"
"""Seams of all requests: who may send them, a class derived from `api.keys.ApiKeys`; what makes, of a Config, the
`observability.records.Metrics` that count them; and what is awaited to add a report to a Response, for the value of the
header that asks for it (`api.app.LOAD_REPORT`) and a Model."""
GRAMMARS, GENAI_GRAMMARS = "grammars", "grammars of openvino_genai"
"""Seams of what texts can be held to: what makes an `engine.paged.parts.GrammarSource` of an EngineConfig; and what
makes, of an EngineConfig and the tokenizer of a pipeline of openvino_genai, an `engine.generation.backend.Grammars`
that has `native`, the library's own form of a grammar, or None."""
GRAMMAR_LIBRARY, OTHER_GRAMMAR_LIBRARY = "grammar library", "other grammar library"
"""Seams of what matches grammars in the paged engine: what makes a library, which the first grammar imports; and a
class of what loads another one, for who asks for that."""
ANSWER_RULES, REQUEST_CONSTRAINTS = "answer rules", "request constraints"
"""Seams of structured output: an `api.generation.tools.ReadRule`, which reads what an answer must match; and what makes
a `models.chat_format.RequestConstraint` of that, a `grammar.call_syntax.GrammarContext`, a Config, an Offload, and
whether the client has asked for it."""
SERVER_TOOLS, SPOKEN_ANSWERS, GENERATION_METRICS = "server tools", "spoken answers", "metrics of a generation"
"""Seams of answers: what makes, of a Config, what an API takes whose tools the server runs while it answers; a function
from the values of a body, its api.generation.request.GenerationBody and the Services to the body's generation and its
`api.generation.request.AnswerAudio`, or None for a text; and what makes, of a Config, a function from the
`types.Timings` of a generation to further members of `metrics` in responses of chat and completions."""
OTHER_PROTOCOL, ENCRYPTION, OTHER_FLAGS = "other protocol", "encryption", "flags of other servers"
"""Seams of a protocol to which HTTP/1.1 may be switched, a `transports.http11.switching.OtherProtocol`; of what
encrypts connections, a class made of a Config, a `transports.http11.server.Encryption`; and of command lines that are
written for other servers, a class derived from `cli.arguments.OtherFlags`."""


def named(package: str, text: str) -> Any:
    """Returns what "module:name" means in a package, with the module imported."""
    module, _, name = text.partition(":")
    return getattr(importlib.import_module(f"{package}.{module}"), name)


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Route:
    """A method and path, and its handler."""

    method: str
    """The HTTP method."""
    path: str
    """The path behind its base; "{id}" in it matches any text, slashes included."""
    handler: str
    """The handler as "module:function", the module below `package`; the first request imports it."""
    bases: tuple[str, ...] = ("",)
    """What may precede the path."""
    _: KW_ONLY
    auth: str = "key"
    """Whether an API key is required. "key": always; "admin": always, and where keys differ, one of an admin;
    "models": with --protect_models, and where keys differ; "metrics": where keys differ, one of an admin; "open":
    never."""
    vital: bool = False
    """Whether it reports on the server, cheaply, and is served when there are too many connections, too."""
    changes: bool = False
    """Whether it changes the state of the server for all clients, so that without a key no foreign page may use it."""
    by_one: bool = False
    """Whether of several servers of the same models one makes such a change: of files that they share, or its own."""
    lasting: str = ""
    """For a change that a server which starts later beside this one has to make, too: the member of its body that names
    what is changed, or another word for a change of the whole server. Of several changes of the same thing, by any
    route, the last one is enough. Empty: such a server starts with what its options say."""
    header: str = ""
    """A header of requests that take this route instead of the one with the same method and path without it."""
    header_part: str = ""
    """What the value of that header must contain; empty: any value."""
    port: str = ""
    """An option with a further port, one of the feature's `ports`: requests that come to that port take this route
    instead of the one with the same method and path without it."""
    model: str = ""
    """The name of a class of models: the handler is imported while a server starts that has one."""
    only_with: str = ""
    """An option that must be set, or the server does not have the route at all; empty: it always has it."""
    beside: str = ""
    """Another feature that the handler imports: without it the server does not have the route; empty: none."""
    page: bool = False
    """Whether it is a page for people, to which the server points."""
    serves: str = ""
    """The `models.model.Model.routed_as` of models that it serves besides the endpoints that they name themselves."""
    package: str = ""
    """The package of the feature; the composition sets it."""

    @property
    def variant(self) -> bool:
        """Whether only some of the requests with its method and path take it."""
        return bool(self.header or self.port)

    @property
    def limited(self) -> bool:
        """Whether the limits of an API key hold for it: they do not for what reads, cancels or deletes what is there,
        or who has reached one could not even end what uses it up."""
        return not (self.method in ("GET", "DELETE") or self.path.endswith("/cancel"))

    @property
    def module(self) -> str:
        """The whole name of the handler's module."""
        return f"{self.package}.{self.handler.partition(':')[0]}"

    @property
    def api(self) -> str:
        """The name of the feature that it belongs to."""
        return self.package.rpartition(".")[2]


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class PageRow:
    """A part of the page for browsers that uses an endpoint of a feature, where the server has it."""

    action: str
    """The name by which the page knows it."""
    path: str
    """The path of the endpoint."""
    only_with: tuple[str, ...] = ()
    """Options all of which must be set, or the page does not offer it."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class Row:
    """A row that a feature adds to one of the core's tables."""

    package: str = ""
    """The package of the feature, below which its modules are named; the composition sets it."""

    def inside(self, name: str) -> Path:
        """Returns the path of a file or a folder in that of the feature."""
        return Path(__file__).parent.joinpath(*self.package.split(".")[1:], name)


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class PanelRow(Row):
    """A panel of the page for browsers, for models of some tasks. What it shows is in the folder `web` of the feature:
    panel.html, its script panel.js, and its texts in other languages in strings/."""

    view: str
    """The name of the view that has it; a view may have the panels of several features."""
    place: int
    """Where the view stands: behind those with smaller numbers."""
    title: str
    """What the button of the view says."""
    icon: str
    """The symbol on that button, by its name in the page."""
    tasks: tuple[tuple[str, str], ...]
    """The names of the tasks, each with what it is called on the page."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class TaskRow(Row):
    """A task of models: what its models are known by, and what serves them in both processes."""

    name: str
    """The task's name: OVMS's where OVMS has the task."""
    recognizes: Callable[[ModelFiles], bool]
    """Tells whether a model directory has a model of this task."""
    model: str
    """The class of its models in the front end, a `models.model.Model`, as "module:Class"."""
    loader: str
    """A function of the engine process, as "module:function": it returns an `engine.task.Task` with the model loaded,
    for an EngineConfig and a function that ends the wait of the worker's loop."""
    records: str = ""
    """The module with the records that only this task sends through the pipe; empty: it has none of its own."""
    networks: tuple[str, ...] = ()
    """Files of networks that its models do not do without, besides those of text models; the first one shows by itself
    that a directory has a model."""
    shown_by: str = ""
    """A pattern of names of files that show the task where nothing else does; empty: the first of the networks."""
    missing: Callable[[Collection[str]], list[str]] | None = None
    """Returns which of its files a model of this task lacks, for the names of those it has. None: a model needs a
    network and tokenizers, as a text model does."""
    exported_as: str = ""
    """The name that optimum-cli has for it, without which some of its models would be exported as ones that generate
    text; empty: no model needs it."""
    bodies: tuple[tuple[tuple[str, ...], str], ...] = ()
    """Where a body goes that is sent to no endpoint of its own: to the path of the first row whose members it has."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class EngineRow(Row):
    """The work of a feature inside the steps of the paged engine. Nothing of it is imported unless one of its options
    is set."""

    install: str
    """A function of the engine process as "module:function", which is called once with the engine.paged.hooks.Parts of
    a loaded model."""
    options: tuple[str, ...]
    """Options of which any one that is set makes the feature part of an engine."""
    records: str = ""
    """The module with the records that the feature adds to the pipe; empty: it adds none."""
    close_s: float = 0.0
    """How many seconds it may take when the engine is stopped, besides what an engine needs."""
    of_process: str = ""
    """A function as "module:function" of the options of a model and the number of one of its several processes, which
    returns the options that this process has instead, by their names; empty: it has those of the model."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class PartRow(Row):
    """A part of a model, an engine or a server that a feature supplies, in the place of the core's own."""

    seam: str
    """What the part is: one of the seams above, of which each has one part at most."""
    make: str
    """A function or class that makes the part, as "module:name"; the modules of `child` are for an engine process."""
    options: tuple[str, ...] = ()
    """Options of which any one that is set makes the part wanted; none: it is always. Those of a feature that is left
    out are not set."""
    file: str = ""
    """A file without which a model's directory wants no such part; models that are one file do. Empty: all do."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class BackendRow(Row):
    """Pipelines that generate text in the place of the paged engine."""

    pipelines: tuple[str, ...]
    """The values of --pipeline_type that it serves."""
    make: str
    """A class of the engine process as "module:Class", an `engine.worker.text_model.OtherPipelines`: it is made of an
    EngineConfig and the names of OpenVINO's devices."""
    options: tuple[str, ...] = ()
    """Options that the paged engine does not have: any one that is set keeps AUTO from it."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class FormatRow(Row):
    """A form of files of which one is a whole model."""

    name: str
    """The name of the form, for people."""
    suffix: str
    """How the names of such files end, with the dot."""
    option: str
    """The option that says which file of a model of several is meant: by its name, or by a word in it."""
    usual: str = ""
    """What the name of the file has that is meant where nothing is said; empty: the first one is meant."""
    beside: str = ""
    """What the names of files have that belong to a model without being one; empty: there are no such files."""
    file: str
    """A class of the front end as "module:Class": made with a path, it is a `repository.model_file.ModelFile`."""
    network: str
    """A class of the engine process as "module:Class": made with a path, it is an
    `engine.paged.network.EngineFile`."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class SettingsRow(Row):
    """Files that hold options of models: one that lists several models, and one in the directory of each."""

    option: str
    """The option with the path of a file that lists the models of a server."""
    listed_in: str
    """The name of such a file in a directory of models, where it says which of them are served."""
    file: str
    """The name of the file in a model's directory."""
    files: str
    """A class that reads and writes them, as "module:Class", made without arguments. It is imported where there is such
    a file, or one is to be written."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class ContentRow(Row):
    """Parts of messages beside text, and what reads them."""

    kinds: tuple[str, ...]
    """The types of the parts."""
    words: tuple[str, ...]
    """What they are, in the plural, for errors."""
    modalities: tuple[str, ...]
    """What models read by them, as lists of models have it."""
    reader: str
    """An `api.generation.content.ContentReader` as "module:name"; the first request with such a part imports it."""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class ParserRow(Row):
    """A family of models, by how they write tool calls or reasoning, and what their chat templates are known by."""

    name: str
    """The name of its parser."""
    family: str
    """A `text.parsers.base.ModelFamily` as "module:NAME"; the first model that needs it imports it."""
    _: KW_ONLY
    tools: bool = True
    """Whether it reads tool calls."""
    reasoning: bool = False
    """Whether it reads reasoning."""
    marks: tuple[tuple[str, ...], ...] = ()
    """A chat template is the family's if it has all texts of one of these groups; none: it is chosen by option only."""
    rank: int = 0
    """Where it is in the order in which templates are compared, each place once: that with the smaller number first."""
    reasoner: str = ""
    """The reasoning parser that goes with such a template; empty: none does."""
    reasoner_marks: tuple[str, ...] = ()
    """The reasoning parser goes only with a template that has one of these as well; empty: with every one."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class BodyRow(Row):
    """Fields that clients of an API send to OpenAI's endpoints as well, which do not know them."""

    names: tuple[str, ...]
    """The names of the fields: a body that has any of them is rewritten."""
    fields: str
    """Their declarations, for the documentation: an `api.fields.FieldSet` as "module:NAME"."""
    rewrite: str
    """A function as "module:function": for a body as an `api.generation.request.ReadableBody` and the names of the
    endpoint's own fields it returns one without these fields. It raises BadRequest. The first request with such a field
    imports it."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class HelperRow:
    """A model that works for those that read and write text, where an option of these names it."""

    option: str
    """The option with the name of the model."""
    reads: str = ""
    """What text models read by it, as lists of models have it; empty: nothing more."""
    writes: str = ""
    """What they write by it; empty: nothing more."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class StartRow(Row):
    """The work of a feature while a server starts, before models are loaded, where one of its options is set."""

    prepare: str
    """A function as "module:function" that is awaited with the api.services.Services. It raises StartError."""
    options: tuple[str, ...]
    """Options of which any one that is set makes the function be called."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class ModelRow(Row):
    """The work of a feature for a model before requests may use it, where one of its options is set."""

    install: str
    """A function of the front end as "module:function": for an api.services.Services and a model it returns a
    `models.lifecycle.Preparation`, or None for a model that needs none."""
    options: tuple[str, ...]
    """Options of which any one that is set for a model makes the function be called for it."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class ObserverRow(Row):
    """The use that a feature makes of the record of each request, where one of its options is set."""

    make: str
    """A function as "module:function": it returns an `api.middleware.RequestObserver` for a Config, and raises
    StartError. If its module cannot be imported, the start ends and names the feature's extra."""
    options: tuple[str, ...]
    """Options of which any one that is set makes the function be called."""
    extra: str = ""
    """The extra of the feature; the composition sets it."""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Metric:
    """One metric, as Prometheus has them."""

    name: str
    """The name as it is exposed, a histogram's without _bucket, _sum and _count."""
    kind: str
    """The type: counter, gauge or histogram."""
    help: str
    """What it counts."""
    labels: tuple[str, ...] = ("model_name",)
    """The names of its labels."""
    buckets: tuple[float, ...] = ()
    """The upper bounds of a histogram's buckets."""
    from_start: bool = True
    """Whether a counter of each model is exposed from the start on, before anything is counted."""
    lasting: bool = True
    """Whether a counter keeps its values between two scrapes; else it has those of `Feature.samples` alone."""
    load_name: str = ""
    """The name by which the load in GET /server_info has the sum over all engines that report it; empty: it has
    none."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class ErrorForm(Row):
    """The form of errors for clients of an API that has another one than OpenAI's."""

    name: str
    """The name of its schema in the OpenAPI document."""
    body: str
    """A function that returns the JSON object of an error, as "module:function": it is called with the RequestError
    and the id of the request, which may be empty."""
    schema: str
    """The JSON Schema of that object, as "module:NAME"."""
    paths: tuple[str, ...]
    """How the paths begin whose errors have the form."""
    header: str = ""
    """A header, in small letters, that only clients of this API send, so that on any path their errors have the form;
    empty: there is none."""
    statuses: dict[int, int] = field(default_factory=dict)
    """The HTTP statuses that this API has in place of others, by those others."""
    request_id: str = ""
    """A further header in which its responses, errors or not, have the id of the request; empty: none."""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Command:
    """A command of the command line."""

    word: str
    """The command, as it is typed; empty: only `option` asks for it."""
    usage: str
    """What follows the word, for --help."""
    help: str
    """What the command does, as a part of a sentence."""
    run: str = ""
    """A function as "module:function", imported when the command is run: it gets the words behind the command and the
    environment, and returns the exit status. What it raises as a StartError or a CommandFailed is printed. Empty: the
    core's options say what to do."""
    _: KW_ONLY
    option: str = ""
    """An option that asks for the command, too, as in OVMS. It does not go together with another command. Then the
    function gets the Config alone. Empty: there is none."""
    first: str = ""
    """A function that is called in the place of `run` where the command is typed, so that it can read further words, as
    one without an option does; empty: options of the server are behind the word."""
    takes_file: bool = False
    """Whether it goes together with an option that says which file of a model is meant."""
    fetches: bool = False
    """Whether it fetches a model, by the options that say what is served: the directory of models is set then."""
    example: str = ""
    """A line of the examples in --help, where a model can be fetched; empty: there is none."""
    package: str = "lean_ovms.cli"
    """The package of the module; the composition sets it for the commands of features."""

    @property
    def reader(self) -> str:
        """The function that reads what is behind the command; empty: options that a server has, too, are there."""
        return self.first if self.option else self.run


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class Companion:
    """A further model that a model uses, and that is pulled from a hub into its directory."""

    source: str
    """The option with its name on the hub."""
    path: str
    """The option with the path of one that is there already."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class DemoModel(Row):
    """A small model in the package, which is served beside the demo model where no option points to a model."""

    name: str
    """The name in the API."""
    folder: str
    """The folder with its files, below `package`."""
    task: str
    """The name of its task."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class Feature:
    """A feature, as the core knows it: what it is, and the rows that it adds to the core's tables."""

    name: str
    """The name of its folder, for --without."""
    summary: str
    """What it does for a user, in one sentence without a full stop."""
    title: str = ""
    """The heading of its endpoints in the documentation; empty: they have none."""
    reference: str = ""
    """The address of the documentation of the API that it follows."""
    formerly: tuple[str, ...] = ()
    """Names of features that it has taken in: --without leaves it out by each of these, too."""
    essential: bool = False
    """Whether a server makes no sense without it, so that it cannot be left out."""
    needs: tuple[str, ...] = ()
    """Other features that it imports; without one of them it is left out as well."""
    extra: str = ""
    """The extra of the package that it needs at run time, if any."""
    packages: tuple[str, ...] = ()
    """Third-party packages that are imported in its folder and nowhere else."""
    options: type[Any] | None = None
    """The class of its options, a `config.options.Options`."""
    libraries: tuple[type[Any], ...] = ()
    """Classes of the options of libraries that it uses, which other features may have here, too."""
    flags: str = ""
    """The file in its folder with the flags of other servers that are about it; empty: there are none."""
    commands: tuple[Command, ...] = ()
    """The commands of the command line."""
    companions: tuple[Companion, ...] = ()
    """Further models that are pulled into the directory of the one that uses them."""
    routes: tuple[Route, ...] = ()
    """The endpoints."""
    page: tuple[PageRow, ...] = ()
    """What the page for browsers can do by them, beside what it does with every server."""
    panel: PanelRow | None = None
    """The panel of that page for models of its tasks."""
    tasks: tuple[TaskRow, ...] = ()
    """The tasks of models that it serves."""
    metrics: tuple[Metric, ...] = ()
    """The metrics."""
    samples: str = ""
    """A function as "module:function" that returns values of its metrics, `observability.records.Sample`, at each
    scrape: for an api.services.Services, and the models that are served, each with the EngineStats of its engine, or
    None."""
    engine: EngineRow | None = None
    """What it does inside the steps of the paged engine."""
    parts: tuple[PartRow, ...] = ()
    """The parts of models, engines or servers that it supplies."""
    contents: tuple[ContentRow, ...] = ()
    """The parts of messages that it reads."""
    parsers: tuple[ParserRow, ...] = ()
    """The families of models whose tool calls and reasoning it reads."""
    body: BodyRow | None = None
    """The fields that its clients send to OpenAI's endpoints."""
    harmless: tuple[str, ...] = ()
    """Fields of its clients that change no answer: at any endpoint nothing is said of them."""
    changing_lines: tuple[str, ...] = ()
    """How lines begin that its clients write before a system text, and that change with each request: they are left
    out, or no prefix would be cached."""
    helpers: tuple[HelperRow, ...] = ()
    """The models that may work for those that read and write text."""
    backend: BackendRow | None = None
    """What it has in the place of the paged engine. One feature of a server has that."""
    formats: tuple[FormatRow, ...] = ()
    """The forms of files that it reads."""
    settings: SettingsRow | None = None
    """The files in which it keeps options of models. One feature of a server has them."""
    start: StartRow | None = None
    """What it does while a server starts."""
    model: ModelRow | None = None
    """What it does for a model before requests may use it."""
    observer: ObserverRow | None = None
    """What it does with the record of each request."""
    ports: tuple[str, ...] = ()
    """The options of further TCP ports on which the server listens, where they are not 0."""
    error_forms: tuple[ErrorForm, ...] = ()
    """The forms of errors of its API."""
    demos: tuple[DemoModel, ...] = ()
    """Small models for a first try."""
    methods: dict[str, str] = field(default_factory=dict)
    """What does the work of methods of LLM and AsyncLLM, by their names: functions as "module:function", which get an
    AsyncLLM, an input and the fields of the request."""
    keywords: dict[str, str] = field(default_factory=dict)
    """Keywords of LLM and AsyncLLM that turn on an option of the feature, unless it is given: the options by the
    keywords."""

    @property
    def package(self) -> str:
        """The whole name of its folder as a package."""
        return f"lean_ovms.features.{self.name}"
