"""Real weights in bf16 are as close to f32 as torch's, as tests/makers/networks_bf16.py recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("gguf")

from tests.engine.paged.test_precision import AS_NEAR, needs_bf16
from tests.features.speech.child.test_precision import encoded
from tests.makers import networks_bf16


@needs_bf16
def test_whispers_encoder_is_as_near_to_f32_as_torchs_bf16_at_all_1500_positions(whisper_ir: Path) -> None:
    exact, found = (encoded(whisper_ir, hint) for hint in ("f32", "bf16"))
    assert exact.shape[1] == 1500
    networks_bf16.assert_near(f"whisper/{networks_bf16.BASE}", exact, found, AS_NEAR)
