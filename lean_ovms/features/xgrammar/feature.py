"""The manifest of XGrammar."""

from __future__ import annotations

from ...manifest import OTHER_GRAMMAR_LIBRARY, Feature, PartRow

FEATURE = Feature(
    name="xgrammar",
    summary="enforces grammars with XGrammar instead of llguidance in the paged engine",
    needs=("structured_output",),
    extra="xgrammar",
    packages=("tvm_ffi",),
    parts=(
        PartRow(
            seam=OTHER_GRAMMAR_LIBRARY, make="child.library:XGrammarLibrary", options=("structured_output_backend",)
        ),
    ),
)
