"""A server without soft caps does not run models that need them on the paged engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lean_ovms.config import Config
from lean_ovms.engine.worker.text_model import load_text_model
from lean_ovms.errors import StartError


@pytest.mark.model
def test_a_model_with_a_cap_is_refused(tmp_path: Path) -> None:
    for file in Config().model_dir.iterdir():
        (tmp_path / file.name).symlink_to(file)
    known = json.loads((tmp_path / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({**known, "attn_logit_softcapping": 50.0}), "utf-8")
    with pytest.raises(StartError, match="its attention has a soft cap"):
        load_text_model(Config(model_path=str(tmp_path), pipeline_type="PAGED", without="soft_caps"))
