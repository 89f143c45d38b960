"""The evaluation's tools, declared by hand, with the sentences that ask for them.

A row has the tool's name, description and parameters, the request, and the arguments of the call.
"""

from __future__ import annotations

from typing import Any

from tools.demo_model.data import data_of

# SINGLE: A parameter is its JSON type, or a list of allowed values.
# PARALLEL: Requests for two calls. The tools are those of the rows named by their index in SINGLE.
# RESULTS: index into SINGLE, what the tool returned, what the answer in words must contain
# UNNEEDED: Requests that need none of the tools given; what an acceptable answer contains ("" for anything in words).
SINGLE, PARALLEL, RESULTS, UNNEEDED = data_of("heldout_tools").values()

Row = tuple[str, str, dict[str, Any], str, dict[str, Any]]
