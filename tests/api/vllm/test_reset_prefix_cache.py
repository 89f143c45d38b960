"""POST /reset_prefix_cache reaches the engine of each model, or says what is wrong."""

from __future__ import annotations

import pytest

from lean_ovms.errors import BadRequest
from lean_ovms.types import Request
from tests.api.conftest import MakeApp, whole

PATH = "/reset_prefix_cache"


@pytest.mark.parametrize(
    ("query", "disk"),
    [("", False), ("reset_external=true", True), ("reset_external=0", False), ("reset_running_requests=1", False)],
)
async def test_every_model_forgets(query: str, disk: bool, make_app: MakeApp) -> None:
    app, engine = await make_app()
    assert (await app.handle(Request("POST", PATH, query))).status == 200
    assert engine.resets == [disk]


async def test_what_is_wrong_is_said(make_app: MakeApp) -> None:
    app, engine = await make_app()
    response = await app.handle(Request("POST", PATH, "reset_external=maybe"))
    assert response.status == 400
    assert (await whole(response))["error"]["param"] == "reset_external"
    engine.refusal = BadRequest("this pipeline cannot forget its prefix cache; PAGED can")
    response = await app.handle(Request("POST", PATH))
    assert (response.status, engine.resets) == (400, [])
