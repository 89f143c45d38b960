"""Mounted in a Starlette (or FastAPI) application: uvicorn --app-dir docs/examples starlette_mount:site"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from lean_ovms.embed import asgi, opened


@asynccontextmanager
async def lifespan(site: Starlette) -> AsyncIterator[None]:
    async with opened() as app:
        site.router.routes.append(Mount("/llm", asgi(app)))
        yield


async def home(request: Request) -> JSONResponse:
    return JSONResponse({"chat": "/llm/v1/chat/completions"})


site = Starlette(routes=[Route("/", home)], lifespan=lifespan)
