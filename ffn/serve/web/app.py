"""The HTTP endpoint of a service; ``docs/serve.md`` documents its routes."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import anyio
from fastapi import FastAPI, HTTPException, Request
from fastapi import Query as InQuery
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from ffn.serve.web.service import Query, Service
from ffn.version import __version__

BODY = {
    "requestBody": {
        "required": True,
        "description": "The bytes of a video file.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
URLENCODED, CURL = "application/x-www-form-urlencoded", "curl --data-binary @FILE"
DISCONNECTED = 499  # as other servers count it; nobody reads the answer


def create_app(service: Service, *, hosts: Sequence[str] = ("*",)) -> FastAPI:
    """The endpoint of a service, as an ASGI application.

    Args:
        service: Answers; the caller closes it.
        hosts: Names of this machine in requests; others are refused, so that a page of another host
            whose name was changed to this address cannot ask. Pages of other hosts cannot, either.
    """
    app = FastAPI(title="ffn", version=__version__, description="Video recognition.")
    app.add_middleware(_same_origin, hosts=hosts)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)
    threads = anyio.CapacityLimiter(service.limits.max_requests)

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    def health() -> JSONResponse:
        """Whether videos are answered: status 200, or else 503."""
        healthy = service.healthy
        return JSONResponse({"healthy": healthy}, 200 if healthy else 503)

    @app.get("/api/models")
    def models() -> list[dict[str, Any]]:
        """The networks: names, classes, trained numbers of frames and cost."""
        return service.models()

    @app.post("/api/predict", openapi_extra=BODY)
    async def predict(request: Request, query: Annotated[Query, InQuery()]) -> dict[str, Any]:
        """Predict the labels of the video in the body, at each number of frames."""
        kind = request.headers.get("content-type", "").lower()
        if kind.startswith("multipart/"):
            wrong = "the body is a form; expected the bytes of the video file"
            raise HTTPException(415, f"{wrong}, as `{CURL}` sends them")
        with service.place(), tempfile.TemporaryDirectory(prefix="ffn-serve-") as folder:
            path = Path(folder, "video")
            await _receive(request, path, service)
            try:
                return await anyio.to_thread.run_sync(answer, path, query, limiter=threads)
            except HTTPException as error:
                # `curl --data @FILE` removes the line ends of a file.
                if kind.startswith(URLENCODED) and b"\n" not in path.read_bytes():
                    error.detail += f". The body has no line ends; send it with `{CURL}`"
                raise

    def answer(path: Path, query: Query) -> dict[str, Any]:
        model, predictions = service.model_of(query), []
        for prediction, clip in service.predict(path, query):
            gmacs = service.predictors[model].gmacs(prediction.frames)
            values = prediction.to_dict(query.top) | {"gmacs": gmacs, "indices": [*clip.indices]}
            predictions.append({"name": values.pop("path"), **values})
        return {"model": model, "predictions": predictions}

    return app


def _same_origin(app: ASGIApp, hosts: Sequence[str]) -> ASGIApp:
    """Refuse what pages of other sites ask in the browser of a user; browsers name the site."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else {}
        origin, host = headers.get("origin"), headers.get("host")
        site = (origin or "").partition("://")[2]
        # Servers in front of this one may leave the port out of the host.
        if origin is None or site in (host, *hosts) or re.sub(r":\d+$", "", site) == host:
            await app(scope, receive, send)
        else:
            wrong = f"a page of {origin} sent the request; pages of {host} are accepted"
            await JSONResponse({"detail": wrong}, 403)(scope, receive, send)

    return answer


async def _receive(request: Request, path: Path, service: Service) -> None:
    """Write the body of a request to a file; refuses one that is too large or takes too long."""
    declared = request.headers.get("content-length", "0")
    service.check_size(int(declared) if declared.isdecimal() else 0)
    size = 0
    try:
        with anyio.fail_after(service.limits.timeout):
            with path.open("wb") as file:
                async for chunk in request.stream():
                    size += len(chunk)
                    service.check_size(size)
                    file.write(chunk)
    except TimeoutError:
        waited = f"the video did not arrive within {service.limits.timeout:g} s"
        raise HTTPException(408, f"{waited}; send a smaller one") from None
    except ClientDisconnect:
        raise HTTPException(DISCONNECTED, "the client has closed the connection") from None
