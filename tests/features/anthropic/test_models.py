"""GET …/models for the two kinds of clients."""

from __future__ import annotations

from lean_ovms.api.app import App
from lean_ovms.config import Config
from lean_ovms.models.text_model import TextModel
from lean_ovms.types import Request
from tests.api.conftest import MakeApp, get, whole
from tests.fakes import FakeEngine

VERSION = {"anthropic_version": "2023-06-01"}


async def test_the_header_chooses_the_form(make_app: MakeApp) -> None:
    app, _ = await make_app()
    listed = await whole(await get(app, "/v1/models", **VERSION))
    assert (listed["has_more"], listed["first_id"], listed["last_id"]) == (False, "m", "m")
    [model] = listed["data"]
    assert (model["type"], model["id"], model["max_input_tokens"]) == ("model", "m", 1000)
    assert await whole(await get(app, "/v1/models/m", **VERSION)) == model
    assert (await whole(await get(app, "/v1/models")))["object"] == "list"
    assert (await whole(await get(app, "/v1/models/m")))["object"] == "model"
    assert (await get(app, "/v1/models/x", **VERSION)).status == 404


async def test_pages() -> None:
    config = Config(fake_engine=True, access_log=False)
    models = [TextModel(Config(fake_engine=True, model_name=name), FakeEngine([])) for name in "abcd"]  # type: ignore[arg-type]
    app = App(config, models)
    for model in models:
        await model.load()

    async def page(query: str) -> tuple[str, bool]:
        headers = {"anthropic-version": "2023-06-01"}
        found = await whole(await app.handle(Request("GET", "/v1/models", query, headers)))
        return "".join(model["id"] for model in found["data"]), found["has_more"]

    assert await page("") == ("abcd", False)
    assert await page("limit=2") == ("ab", True)
    assert await page("limit=2&after_id=b") == ("cd", False)
    assert await page("limit=1&before_id=c") == ("b", True)
    assert await page("before_id=a") == ("", False)
    for wrong in ("limit=0", "limit=x", "after_id=z"):
        headers = {"anthropic-version": "2023-06-01"}
        assert (await app.handle(Request("GET", "/v1/models", wrong, headers))).status == 400
    await app.close()
