"""The evaluation's tools: declared by hand, asked for in plain sentences.

A row is tool name, description, parameters, request, arguments.
"""

from __future__ import annotations

from typing import Any

from tools.demo_model.data import data_of

lists = data_of("heldout_tools")

Row = tuple[str, str, dict[str, Any], str, dict[str, Any]]

# A parameter is its JSON type, or a list of allowed values.
SINGLE: tuple[Row, ...] = lists["SINGLE"]
# Requests for two calls. The tools are those of the rows named by their index in SINGLE.
PARALLEL: tuple[tuple[tuple[int, ...], str, tuple[tuple[int, dict[str, Any]], ...]], ...] = lists["PARALLEL"]
# index into SINGLE, what the tool returned, what the answer in words must contain
RESULTS: tuple[tuple[int, str, tuple[str, ...]], ...] = lists["RESULTS"]
# Requests that need none of the tools given; what an acceptable answer contains ("" for anything in words).
UNNEEDED: tuple[tuple[str, str], ...] = lists["UNNEEDED"]
