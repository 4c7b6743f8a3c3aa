"""The HTTP endpoint of a service; ``docs/serve.md`` documents its routes."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import anyio
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect

from ffn.serve.web.metrics import CONTENT_TYPE, Metrics
from ffn.serve.web.service import Answer, Refusal, Service
from ffn.serve.web.service import Query as Asked
from ffn.version import __version__

BODY = {
    "requestBody": {
        "required": True,
        "description": "The bytes of a video file.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
ERROR = {
    "description": "A sentence on the cause.",
    "content": {
        "application/json": {
            "schema": {"type": "object", "properties": {"error": {"type": "string"}}}
        }
    },
}
PARAMETERS = ("model", "frames", "budget_ms", "budget_gmacs", "top", "name")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
DISCONNECTED = 499  # as other servers count it; nobody reads the answer


def create_app(service: Service, metrics: Metrics | None = None) -> FastAPI:
    """The endpoint of a service, as an ASGI application.

    Args:
        service: answers; the caller closes it.
        metrics: counts requests; default: new ones.
    """
    metrics = metrics or Metrics()
    app = FastAPI(title="ffn", version=__version__, description="Video recognition.")
    threads = anyio.CapacityLimiter(service.limits.requests)

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    def health() -> JSONResponse:
        """Whether videos are answered: status 200, or else 503."""
        healthy = service.healthy
        return JSONResponse({"healthy": healthy}, 200 if healthy else 503)

    @app.get("/metrics")
    def read_metrics() -> Response:
        """Counters and times in the text format of Prometheus."""
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    @app.get("/api/models")
    def models() -> list[dict[str, Any]]:
        """The networks: names, classes, trained numbers of frames and cost."""
        return service.models()

    @app.post("/api/predict", openapi_extra=BODY, responses={"4XX": ERROR, "5XX": ERROR})
    async def predict(
        request: Request,
        model: str | None = None,
        frames: Annotated[list[str] | None, Query()] = None,
        budget_ms: Annotated[float | None, Query(gt=0)] = None,
        budget_gmacs: Annotated[float | None, Query(gt=0)] = None,
        top: Annotated[int, Query(ge=1, le=1000)] = 5,
        name: Annotated[str, Query(min_length=1, max_length=200)] = "the video",
    ) -> dict[str, Any]:
        """Predict the labels of the video in the body, at each number of frames."""
        started = time.perf_counter()
        _check_request(request)
        asked = Asked(model, [_count(text) for text in frames or []], budget_ms, budget_gmacs)
        with (
            service.place(),
            metrics.active.track_inprogress(),
            tempfile.TemporaryDirectory(prefix="ffn-serve-") as folder,
        ):
            path = Path(folder, "video")
            await _receive(request, path, service)
            answers = await anyio.to_thread.run_sync(
                service.predict, path, asked, name, limiter=threads
            )
        chosen = model or next(iter(service.predictors))
        metrics.answered(chosen, answers, time.perf_counter() - started)
        return {"model": chosen, "predictions": [_to_dict(answer, top) for answer in answers]}

    # After the routes that answer, and before the page, which would take what is left.
    @app.api_route("/api/{path:path}", methods=[*METHODS], include_in_schema=False)
    def refuse_route(path: str, request: Request) -> None:
        method = {"predict": "POST", "models": "GET"}.get(path)
        if method is None:
            raise Refusal(404, f"there is no route /api/{path}; /docs has all")
        wrong = f"the method is {request.method}; /api/{path} expects {method}"
        raise Refusal(405, wrong, {"Allow": method})

    _add_refusals(app, metrics)
    return app


def _add_refusals(app: FastAPI, metrics: Metrics) -> None:
    """Answer errors with a sentence."""

    @app.exception_handler(Refusal)
    def refuse(_: Request, error: Refusal) -> JSONResponse:
        metrics.refused(error.status)
        return JSONResponse({"error": error.message}, error.status, error.headers)

    @app.exception_handler(RequestValidationError)
    def refuse_parameter(_: Request, error: RequestValidationError) -> JSONResponse:
        metrics.refused(400)
        first = error.errors()[0]
        message = f"{first['loc'][-1]} is {first['input']!r}: {first['msg'].lower()}"
        return JSONResponse({"error": message}, 400)

    @app.exception_handler(Exception)
    def fail(_: Request, error: Exception) -> JSONResponse:
        # The server prints the traceback.
        metrics.refused(500)
        return JSONResponse({"error": f"the service failed: {type(error).__name__}"}, 500)


def _check_request(request: Request) -> None:
    """Refuse parameters that are unknown or given twice, and forms."""
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in PARAMETERS:
            known = ", ".join(PARAMETERS)
            raise Refusal(400, f"there is no parameter {name!r}; the parameters are {known}")
        if name != "frames" and given.count(name) > 1:
            raise Refusal(400, f"{name} is given {given.count(name)} times; give it once")
    if request.headers.get("content-type", "").startswith("multipart/"):
        wrong = "the body is a form; expected the bytes of the video file"
        raise Refusal(415, f"{wrong}, as `curl --data-binary @FILE` sends them")


def _count(text: str) -> int | str:
    if text == "auto":
        return text
    if not (text.isascii() and text.isdecimal()) or len(text) > 9 or int(text) < 1:
        raise Refusal(400, f'frames is {text!r}; expected an integer of 1 or more, or "auto"')
    return int(text)


async def _receive(request: Request, path: Path, service: Service) -> None:
    """Write the body of a request to a file.

    Raises:
        Refusal: it is too large, or takes too long.
    """
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
        raise Refusal(408, f"{waited}; send a smaller one") from None
    except ClientDisconnect:
        raise Refusal(DISCONNECTED, "the client has closed the connection") from None


def _to_dict(answer: Answer, top: int) -> dict[str, Any]:
    """An answer as JSON values."""
    values = answer.prediction.to_dict(top)
    return {
        "name": values.pop("path"),
        **values,
        "gmacs": answer.gmacs,
        "indices": [*answer.clip.indices],
    }
