"""Models of several tasks in one server, with OVMS's config.json and graphs, each in a child with the real engine."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lean_ovms.embed import opened
from lean_ovms.errors import BadRequest
from lean_ovms.features.deployment.listing import servable
from lean_ovms.features.pooling.model import PoolingModel
from lean_ovms.features.pooling.types import EMBED, SCORE, PoolingParams
from lean_ovms.models.text_model import TextModel
from tests.archives import extract

pytestmark = pytest.mark.model

ZIP = Path(__file__).parents[1] / "data" / "pooling_models.zip"
EXACT = '{"INFERENCE_PRECISION_HINT": "f32"}'
GRAPH = """
input_stream: "REQUEST_PAYLOAD:input"
output_stream: "RESPONSE_PAYLOAD:output"
node {
  name: "RerankExecutor"
  calculator: "RerankCalculatorOV"
  input_side_packet: "RERANK_NODE_RESOURCES:rerank_servable"
  input_stream: "REQUEST_PAYLOAD:input"
  output_stream: "RESPONSE_PAYLOAD:output"
  node_options: { [type.googleapis.com / mediapipe.RerankCalculatorOVOptions]: {
    models_path: "./", max_position_embeddings: 40,
    plugin_config: '{"NUM_STREAMS": "2", "INFERENCE_PRECISION_HINT": "f32"}' } }
}
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    extract(ZIP, tmp_path, "bert_mean/", "bert_cross/")
    (tmp_path / "bert_cross" / "graph.pbtxt").write_text(GRAPH)
    entries = [
        {"config": {"name": "e", "base_path": "bert_mean", "plugin_config": json.loads(EXACT), "pooling": "MAX"}}
    ]
    config = {"model_config_list": entries, "mediapipe_config_list": [{"name": "r", "base_path": "bert_cross"}]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


async def test_a_server_has_models_of_several_tasks_by_config_json(repository: Path) -> None:
    assert servable(repository) == ["bert_cross", "bert_mean"]
    expected = json.loads((repository / "bert_cross" / "expected.json").read_text())
    async with opened(config_path=str(repository)) as app:
        embedder, reranker = (app.registry.get(name, PoolingModel) for name in ("e", "r"))
        assert embedder.require_kind(EMBED).pooling.pooling == "MAX"
        assert reranker.require_kind(SCORE).pooling.window == 40
        [one] = await embedder.pool(["Paris"], PoolingParams())
        assert np.linalg.norm(one.values) == pytest.approx(1, abs=1e-5)
        pairs = [(query, document) for query, document in expected["pairs"]] * 20
        scores = [one.values[0] for one in await reranker.pool(pairs, PoolingParams(activation=False))]
        assert np.allclose(scores, np.ravel(expected["values"] * 20), atol=2e-5)
        assert (await reranker.stats()).steps > 1
        with pytest.raises(BadRequest, match="'r' is for rerank, not for text generation; use it at /rerank"):
            app.registry.get("r", TextModel)
