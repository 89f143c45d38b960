"""The manifest of command lines of other servers."""

from __future__ import annotations

from ...manifest import OTHER_FLAGS, Feature, PartRow

FEATURE = Feature(
    name="foreign_flags",
    summary="accepts the command lines and environment variables of OpenVINO Model Server, vLLM, llama.cpp and Ollama",
    flags="flags.txt",
    parts=(PartRow(seam=OTHER_FLAGS, make="command_line:ForeignCommandLine"),),
)
