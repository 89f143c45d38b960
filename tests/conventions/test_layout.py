"""Imports go one way, by folder. Lazy and type-only imports count. The rules are those of docs/tour.md."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import lean_ovms
from lean_ovms.api import routes

ROOT = Path(lean_ovms.__file__).parent

BASE = {"types", "engine_types", "push_types", "pooling_types", "speech_types", "timing_types", "errors"}
OBSERVED = BASE | {"observability"}
LOOP = {"engine.worker.loop", "engine.worker.command_queue", "engine.worker.task", "engine.worker.transport"}
TEXT = {"text.decode", "text.parsers", "text.template"}
ALLOWED: dict[str, set[str]] = {
    "__init__": set(),
    "pooling_types": set(),
    "speech_types": set(),
    "timing_types": set(),
    "push_types": set(),
    "types": {"timing_types", "push_types"},
    "engine_types": {"types", "pooling_types", "speech_types"},
    "websocket_types": {"types"},
    "errors": {"types"},
    "lora_modules": {"errors"},
    "config": {"errors", "lora_modules"},
    "util": {"errors"},
    "observability": BASE,
    "transports": OBSERVED | {"config", "util", "websocket_types"},
    "repository": OBSERVED | {"config", "lora_modules", "util"},
    "media": OBSERVED | {"config", "util"},
    "text.decode": BASE,
    "grammar": BASE,
    "text.parsers": BASE | {"grammar"},
    "text.template": BASE | {"repository", "util"},
    "text": set(),
    "engine": set(),
    "engine.protocol": {"engine.record", "engine.speech_records", "engine.text_records"},
    "engine.record": set(),
    "engine.speech_records": {"engine.record"},
    "engine.text_records": {"engine.record"},
    "engine.errors": BASE,
    "engine.client": OBSERVED | {"engine.protocol", "engine.record", "config", "util"},
    "engine.generation": BASE | {"engine.protocol", "engine.errors", "config", "util"},
    "engine.loading": BASE | {"engine.errors", "repository", "lora_modules", "config", "util"},
    "engine.genai": BASE
    | {"engine.loading", "engine.genai.guard"}
    | {"engine.generation", "engine.errors", "repository", "lora_modules", "config", "grammar", "util"},
    "engine.genai.guard": BASE | {"engine.generation", "engine.protocol", "engine.errors", "config"},
    "engine.paged": BASE
    | {"engine.loading", "engine.generation", "engine.protocol", "engine.errors", "config", "grammar"},
    "engine.embedding": BASE
    | {"engine.loading"}
    | {"engine.protocol", "engine.generation", "engine.errors", "repository", "config", "util"},
    "engine.speech": BASE
    | {"engine.loading"}
    | {"engine.protocol", "engine.generation", "engine.errors", "engine.embedding", "repository"}
    | {"config", "util"},
    "engine.voice": BASE | {"engine.loading", "engine.protocol", "engine.errors", "repository", "config", "util"},
    "engine.worker": OBSERVED
    | LOOP
    | {"engine.protocol", "engine.record", "engine.errors", "engine.generation", "engine.genai"}
    | {"engine.genai.guard", "engine.loading", "engine.paged"}
    | {"engine.embedding", "engine.speech", "engine.voice", "config", "util"},
    "engine.worker.command_queue": {"engine.protocol"},
    "engine.worker.loop": {
        "engine.protocol",
        "engine.worker.command_queue",
        "engine.worker.task",
        "engine.worker.transport",
    }
    | {"util"},
    "engine.worker.task": {"engine.protocol"},
    "engine.worker.transport": {"engine.protocol"},
    "models": OBSERVED
    | TEXT
    | {"engine.client", "engine.protocol", "grammar", "repository", "config", "lora_modules", "util"},
    "deployment": OBSERVED | {"models", "repository", "config", "util"},
    "api": OBSERVED | {"models", "media", "config", "util", "websocket_types", "__version__"},
    "api.generation": OBSERVED | {"api", "models", "media", "config", "util"},
    "api.pooling": OBSERVED | {"api", "api.generation", "models", "config", "util"},
    "api.openai": OBSERVED
    | {"api", "api.generation", "api.pooling", "models", "media", "config", "util", "websocket_types", "__version__"},
    "api.openai.audio": OBSERVED | {"api", "api.generation", "media", "models", "config", "util"},
    "api.vllm": OBSERVED | {"api", "api.generation", "api.pooling", "models", "lora_modules"},
    "api.anthropic": OBSERVED | {"api", "api.generation", "models"},
    "api.llama_cpp": OBSERVED | {"api", "api.generation", "api.pooling", "models", "__version__"},
    "api.cohere": OBSERVED | {"api", "api.generation", "api.pooling", "models", "util"},
    "api.tei": OBSERVED | {"api", "api.pooling"},
    "api.realtime": OBSERVED | {"api", "media", "models", "config", "util", "websocket_types"},
    "api.ovms": OBSERVED | {"api", "models"},
    "api.admin": OBSERVED | {"api", "models", "config", "__version__"},
    "hub": OBSERVED | {"repository"},
    "demo_model": set(),
    "demo_embed": set(),
}
"""What a module or a folder may import, by the longest name that fits; its own folder always."""
EVERYTHING = {"server", "embed", "cli", "asgi", "ray_serve", "__main__"}

FOREIGN = {
    "h11": {"transports/http11/", "media/"},
    "PIL": {"media/images/pillow.py"},
    "uvloop": {"server/run.py"},
    "jinja2": {"text/template/"},
    "openvino": {
        "engine/genai/",
        "engine/loading/",
        "engine/paged/adapter_layers.py",
        "engine/paged/model.py",
        "engine/paged/positions.py",
        "engine/embedding/network.py",
        "engine/embedding/pooling_graph.py",
        "engine/speech/silero_vad.py",
        "engine/speech/whisper_network.py",
        "engine/embedding/tokenizer.py",
        "engine/voice/pipeline.py",
    },
    "openvino_genai": {
        "engine/genai/",
        "engine/loading/",
        "engine/paged/pipeline.py",
        "engine/speech/pipeline.py",
        "engine/voice/pipeline.py",
    },
    "openvino_tokenizers": {"engine/loading/"},
    "tokenizers": {"engine/loading/json_tokenizer.py"},
    "numpy": {
        "engine/genai/",
        "engine/loading/",
        "engine/paged/",
        "engine/embedding/",
        "engine/speech/",
        "engine/voice/",
        "media/audio/",
        "util/vectors.py",
    },
    "soundfile": {"media/audio/"},
    "soxr": {"media/audio/decode.py", "media/audio/live_decoder.py", "engine/voice/samples.py"},
    "av": {"media/audio/decode.py"},
    "python_multipart": {"api/forms.py"},
    "websockets": {"transports/websocket/frames.py"},
    "llguidance": {"engine/paged/guidance.py"},
    "tvm_ffi": {"engine/paged/xgrammar_core.py"},
    "starlette": {"ray_serve.py"},
    "ray": {"ray_serve.py"},
    "huggingface_hub": {"hub/"},
    "google": {"repository/"},
    "psycopg": {"api/openai/responses/postgres.py"},
    "sqlite3": {
        "api/openai/responses/connection.py",
        "api/openai/responses/database.py",
        "api/openai/responses/store_file.py",
    },
}
"""Who may import what is not ours."""

NO_ASYNCIO = (
    "engine.generation",
    "engine.genai",
    "engine.paged",
    "engine.embedding",
    "engine.speech",
    "engine.voice",
    "engine.worker",
    "engine.protocol",
    "text",
)
"""The engine child has one thread and no event loop; text is a function of what it is given."""

PURE = {
    "compaction",
    "agent_tools",
    "connection",
    "custom_call",
    "response",
    "events",
    "items",
    "output_items",
    "pages",
    "store_file",
    "tables",
}
"""Modules of api/openai/responses that are functions of what they are given: no loop, no thread, no model, no app."""


def module_of(path: Path) -> str:
    """The dotted name below lean_ovms; a package is its own name."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Every statement; what is in expressions is not read, which takes most of the time of ast.walk."""
    yield node
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        inner = getattr(node, name, None)
        for one in inner if isinstance(inner, list) else ():
            yield from statements(one)


def imports(source: str, package: tuple[str, ...]) -> Iterator[str]:
    """Every module that a file in `package` imports, as a dotted name."""
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            name = ".".join((*base, *(node.module or "").split("."))).strip(".")
            yield from (f"{name}.{alias.name}" for alias in node.names)


@cache
def imported(path: Path) -> tuple[str, ...]:
    return tuple(imports(path.read_text("utf-8"), ("lean_ovms", *path.relative_to(ROOT).parent.parts)))


def modules() -> list[tuple[Path, str]]:
    return [(path, module_of(path)) for path in sorted(ROOT.rglob("*.py"))]


def rule_of(module: str) -> str:
    """The longest name in ALLOWED or EVERYTHING that is `module` or a folder above it."""
    parts = module.split(".")
    names = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    found = [name for name in names if name in ALLOWED or name in EVERYTHING]
    return found[0] if found else parts[0]


def refused(module: str, names: Iterable[str]) -> list[str]:
    """Those of the imports of `module` that its rule does not allow."""
    mine = rule_of(module)
    if mine in EVERYTHING:
        return []
    assert mine in ALLOWED, f"{module}: a folder without a rule"
    found = []
    for name in names:
        package, _, rest = name.partition(".")
        if package != "lean_ovms" or not rest:
            continue
        other = rule_of(rest)
        if other != mine and other not in ALLOWED[mine]:
            found.append(f"{module} must not import {rest}")
    return found


def test_every_folder_imports_only_what_it_may() -> None:
    assert [line for path, module in modules() for line in refused(module, imported(path))] == []


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("models.text_model", "from ..engine.genai.vlm_continuous import Seeing"),
        ("models.text_model", "from ..engine.genai.grammar_compiler import GrammarCompiler"),
        ("models.text_model", "from ..engine.worker import loop"),
        ("engine.client.engine", "from ..generation import sequence"),
        ("engine.worker.loop", "from ..generation.sequence import Sequence"),
        ("engine.generation.task", "from ..genai.guard.backend import GuardedPipeline"),
        ("engine.genai.guard.scheduler", "from ..continuous import ContinuousPipeline"),
        ("engine.genai.factory", "from ..paged.pipeline import PagedPipeline"),
        ("engine.paged.scheduler", "from ...observability import metrics"),
        ("api.openai.chat", "from ..vllm import tokenize"),
        ("api.vllm.tokenize", "from ..openai.chat import handle"),
        ("transports.http11.server", "from ...api.app import App"),
        ("text.decode.detokenizer", "from ..template import chat_template"),
        ("grammar.constraint", "from ..text import parsers"),
    ],
)
def test_the_rules_refuse_what_crosses_a_border(module: str, statement: str) -> None:
    package = ("lean_ovms", *module.split(".")[:-1])
    assert refused(module, imports(statement, package)) != []


def test_no_two_folders_import_each_other() -> None:
    for one, others in ALLOWED.items():
        for other in others & ALLOWED.keys():
            assert one not in ALLOWED[other], f"{one} and {other} import each other"


def import_graph() -> dict[str, set[str]]:
    """The modules that each module imports."""
    known = {module for _, module in modules()}
    graph: dict[str, set[str]] = {}
    for path, module in modules():
        names = [name.removeprefix("lean_ovms.") for name in imported(path) if name.startswith("lean_ovms.")]
        found = {name if name in known else name.rpartition(".")[0] for name in names}  # a module, or what is in it
        graph[module] = (found & known) - {module}
    return graph


def test_no_imports_form_a_circle() -> None:
    graph = import_graph()
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        pytest.fail(f"these import each other: {circle}", pytrace=False)


def test_foreign_packages_stay_where_they_belong() -> None:
    found = []
    for path, _ in modules():
        where = str(path.relative_to(ROOT))
        for name in imported(path):
            places = FOREIGN.get(name.split(".")[0])
            if places is not None and not any(where == p or (p.endswith("/") and where.startswith(p)) for p in places):
                found.append(f"{where} must not import {name}")
    assert found == []


def test_the_engine_child_has_no_event_loop() -> None:
    found = [
        module
        for path, module in modules()
        if f"{module}.".startswith(tuple(f"{name}." for name in NO_ASYNCIO))
        if "asyncio" in {name.split(".")[0] for name in imported(path)}
    ]
    assert found == []


def test_endpoints_never_import_each_other() -> None:
    names = {f"lean_ovms.api.{name}" for name in routes.modules()}
    for path, module in modules():
        mine = f"lean_ovms.{module}"
        if mine in names:
            others = {name for name in imported(path) if any(f"{name}.".startswith(f"{o}.") for o in names - {mine})}
            assert others == set(), f"{module} imports {others}"


LATER = (
    *("numpy", "websockets", "sqlite3", "python_multipart", "prometheus_client", "jinja2", "google.protobuf"),
    *("lean_ovms.api.openai", "lean_ovms.api.generation", "lean_ovms.api.pooling", "lean_ovms.api.realtime"),
    *("lean_ovms.api.schemas", "lean_ovms.media.audio", "lean_ovms.pooling_types", "lean_ovms.speech_types"),
    *("lean_ovms.models.pooling_model", "lean_ovms.models.speech_model", "lean_ovms.models.voice_model"),
)
"""What a server of a text model that listens has not imported."""
FOR_CHAT = {"lean_ovms.api.openai", "lean_ovms.api.generation", "lean_ovms.api.schemas"}
"""What it imports while the model is loaded."""


@pytest.mark.slow
def test_the_front_end_starts_without_what_few_requests_need() -> None:
    """numpy alone costs 0.1 s and 15 MB; all endpoints cost 0.1 s and 5 MB (2026-11)."""
    program = f"""
import asyncio, sys
import lean_ovms.embed as embed
import lean_ovms.transports.http11.server
app = embed.build(embed.Config(model_path="somewhere", fake_engine=True))
print(*(name for name in {LATER} if name in sys.modules))
asyncio.run(app.preload())
print(*(name for name in {LATER} if name in sys.modules))
"""
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    before, after = printed.split("\n")[:2]
    assert before.split() == []
    assert set(after.split()) == FOR_CHAT


def test_the_pure_part_of_responses_stays_pure() -> None:
    found = []
    folder = ROOT / "api" / "openai" / "responses"
    for path in folder.glob("*.py"):
        for name in imported(path) if path.stem in PURE else ():
            parts = name.split(".")
            neighbour = parts[4] if parts[:4] == ["lean_ovms", "api", "openai", "responses"] and len(parts) > 4 else ""
            living = {"asyncio", "threading", "models", "app", "config"} & set(parts[:3])
            living = living if name != "lean_ovms.models.tool_grammar" else set()  # itself such a function
            if living or (neighbour and neighbour not in PURE):
                found.append(f"{path.name} must not import {name}")
    assert found == []


def test_files_stay_readable() -> None:
    long = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path, _ in modules()}
    assert {name: lines for name, lines in long.items() if lines > 430} == {}


def test_the_log_of_a_main_module_is_ours() -> None:
    """Its __name__ is "__main__": INFO lines of a logger of that name are not written."""
    for path, _ in modules():
        assert path.name != "__main__.py" or "getLogger(__name__)" not in path.read_text("utf-8"), path
