"""Compiles grammars where it may take too long, eat too much, or crash: `python -m` this module with a descriptor.

It loads the model's tokenizer (not the model), limits its own memory, and answers one JSON line for each line, on its
end of a socket pair: first {"model_dir", "width", "memory_bytes"}, answered by {"ready": true}, then {"tag": text},
answered by {"seconds", "bytes"} or {"error": text}. Who started it kills it when no answer comes.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
import time
from typing import Any

# Before openvino is imported: no telemetry thread that forks and tries the network; one thread is enough for the rest.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
sys.modules.setdefault("openvino.tools.ovc", None)  # type: ignore[arg-type]

import openvino_genai as genai  # noqa: E402
from jsonschema import Draft202012Validator, SchemaError  # noqa: E402

from ...errors import GrammarInvalid  # noqa: E402
from ...util.child_process import die_with_parent  # noqa: E402
from ..generation.grammar_limits import members  # noqa: E402
from .grammar_compiler import GrammarCompiler  # noqa: E402

WARM = '{"type":"structural_tag","format":{"type":"json_schema","json_schema":{"type":"object"}}}'


def main(argv: list[str]) -> int:
    """The exit status."""
    if len(argv) != 1 or not argv[0].isdigit():
        print(
            "usage: python -m lean_ovms.engine.genai.grammar_process <fd>   (the engine starts this)", file=sys.stderr
        )
        return 2
    die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to a whole group: the engine ends us when it ends
        signal.signal(number, signal.SIG_IGN)
    stream = socket.socket(fileno=int(argv[0])).makefile("rw", encoding="utf-8")
    compiler = None
    for line in stream:
        asked = json.loads(line)
        if compiler is None:
            compiler = load(asked)
            answer: dict[str, Any] = {"ready": True}
        else:
            answer = check(compiler, asked["tag"])
        stream.write(json.dumps(answer) + "\n")
        stream.flush()
    return 0


def load(asked: dict[str, Any]) -> GrammarCompiler:
    """A compiler for the model's tokenizer, and from here on no more memory than allowed."""
    compiler = GrammarCompiler(genai.Tokenizer(asked["model_dir"]), asked["width"])
    compiler.compile(WARM)  # the first one builds tables of the whole vocabulary
    limit = data_bytes() + asked["memory_bytes"]
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return compiler


def check(compiler: GrammarCompiler, tag: str) -> dict[str, Any]:
    """What compiling it costs, or why it cannot be compiled."""
    before, began = data_bytes(), time.monotonic()
    try:
        check_schemas(json.loads(tag))
        compiler.compile(tag)
    except GrammarInvalid as error:
        return {"error": error.message}
    seconds, used = time.monotonic() - began, data_bytes() - before
    compiler.forget()
    return {"seconds": seconds, "bytes": max(0, used)}


def check_schemas(tag: Any) -> None:
    """Every JSON schema in a structural tag is one. Raises GrammarInvalid. (xgrammar ignores much that is wrong.)"""
    for key, value in members(tag):
        if key == "json_schema" and not isinstance(value, bool):
            try:
                Draft202012Validator.check_schema(value)
            except SchemaError as error:
                raise GrammarInvalid(f"not a JSON schema: {error.message}"[:500]) from error


def data_bytes() -> int:
    """This process's private writable memory, as RLIMIT_DATA counts it."""
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) << 10
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)
