"""A server without openvino_genai's pipelines."""

from __future__ import annotations

from pathlib import Path

import pytest

from lean_ovms.cli.arguments import parse
from lean_ovms.config import Config
from lean_ovms.engine.loading import settings
from lean_ovms.engine.paged import assemble
from lean_ovms.engine.worker.text_model import choose, load_text_model
from lean_ovms.errors import StartError


@pytest.mark.model
def test_a_model_that_needs_one_does_not_start_and_the_error_says_why() -> None:
    config = parse(["--without", "genai_pipelines", "--pipeline_type", "LM_CB"], {})
    with pytest.raises(StartError, match=r"only has the pipeline PAGED: --pipeline_type LM_CB needs a feature"):
        load_text_model(config)


def test_a_model_with_which_the_paged_engine_is_not_tested_does_not_start_by_itself(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "rwkv"}')
    config = Config(model_path=str(tmp_path), without="genai_pipelines")
    with pytest.raises(StartError, match="the pipeline PAGED: the paged engine is not tested with models of the ty"):
        choose(config, ("CPU",))
    config = config.replace(pipeline_type="PAGED")
    assert choose(config, ("CPU",)).pipeline == "PAGED"


def test_no_other_pipeline_is_pointed_to(tmp_path: Path) -> None:
    config = Config(model_path=str(tmp_path), target_device="GPU", without="genai_pipelines")
    with pytest.raises(StartError) as error:
        assemble.load(config, settings.resolve(config, 1 << 30, paged=True))
    assert str(error.value) == "--pipeline_type PAGED does not support --target_device GPU"
