"""/classify: labels and probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from tests.api.conftest import MakePooling, ask, refused


@pytest.mark.parametrize("path", ["/classify", "/v1/classify"])
async def test_labels_with_their_probabilities(make_pooling: MakePooling, path: str) -> None:
    app, _ = await make_pooling("classify")
    body = await ask(app, path, input=["abc", "xyz"])
    assert body["id"].startswith("classify-")
    for index, item in enumerate(body["data"]):
        assert item["index"] == index
        assert item["num_classes"] == 3
        assert sum(item["probs"]) == pytest.approx(1)
        assert item["label"] == ["negative", "neutral", "positive"][int(np.argmax(item["probs"]))]
    assert body["usage"]["prompt_tokens"] == 10
    app, engine = await make_pooling("classify", max_model_len=8)
    engine.describe(labels=[])
    assert (await ask(app, path, input="abc"))["data"][0]["label"] is None
    assert (await refused(app, path, input="123456789"))[1] == "input"


async def test_logits_and_sigmoid(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling("classify")
    logits = np.array((await ask(app, "/classify", input="abc", use_activation=False))["data"][0]["probs"])
    soft = (await ask(app, "/classify", input="abc"))["data"][0]["probs"]
    assert soft == pytest.approx((np.exp(logits) / np.exp(logits).sum()).tolist(), rel=1e-5)
    engine.describe(activation="sigmoid")  # several labels at once
    assert (await ask(app, "/classify", input="abc"))["data"][0]["probs"] == pytest.approx(
        (1 / (1 + np.exp(-logits))).tolist(), rel=1e-5
    )


async def test_one_label(make_pooling: MakePooling) -> None:
    app, engine = await make_pooling("rerank")
    engine.describe(labels=["fits"])
    [item] = (await ask(app, "/classify", input="abc"))["data"]
    assert item == {"index": 0, "label": "fits", "probs": [0.5], "num_classes": 1}
    engine.describe(outputs=2)
    assert (await refused(app, "/classify", input="abc"))[1] == "model"
