"""The web page of a service: a video in, labels at any number of frames out."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import anyio
import gradio as gr
from fastapi import FastAPI, HTTPException
from gradio import processing_utils
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from ffn.serve.prediction import Prediction
from ffn.serve.web.service import COUNTS, Query, Service

PATH = "/"
LABELS = 5
COLUMNS = ("frames", "label", "probability", "sub-network", "GMACs", "ms")
CLASSES = 12  # that the page lists
KEPT_SECONDS = 3600  # uploaded files
TEXT_BYTES = 2**16  # of a request without its file
UPLOAD = "/gradio_api/upload"
# What the scripts of the page ask for. Other routes of gradio stream without an end, ask other
# hosts, or start more of gradio.
ROUTES = re.compile(
    r"/(config|theme\.css|manifest\.json|favicon\.ico|(assets|static)/.+)?"
    rf"|{UPLOAD}|/gradio_api/(app_id|info|cancel|reset|upload_progress|queue/(join|data)|file=.+)"
)
# Fonts of the system: the page works without a connection to other hosts.
FONT, MONO = ["system-ui", "sans-serif"], ["ui-monospace", "monospace"]


def mount_page(app: FastAPI, service: Service, folder: str | None = None) -> FastAPI:
    """Add the page of a service to its endpoint, at `PATH`.

    From then on, gradio opens no addresses in this process: a request may name one in place of an
    uploaded file, and gradio would download it without a limit.

    Args:
        app: the endpoint.
        service: answers.
        folder: that gradio alone uses; its oldest files are removed for new ones.
    """
    processing_utils.async_ssrf_protected_get = _refuse_address
    page = build_page(service)
    # Else gradio takes any path of this machine in place of an uploaded file, which it checks only
    # after `launch`. A page that is mounted is never launched.
    page.has_launched = True
    page.queue(max_size=service.limits.max_requests)
    page.state_session_capacity = 100  # the page keeps no state
    gr.mount_gradio_app(
        app,
        page,
        PATH,
        max_file_size=int(service.limits.max_mib * 2**20),
        theme=gr.themes.Default(font=FONT, font_mono=MONO),
        footer_links=[],
        enable_monitoring=False,
        ssr_mode=False,
        pwa=False,
    )
    mounted = app.routes[-1]
    mounted.app = _bound(mounted.app, service, folder)
    return app


def _bound(page: ASGIApp, service: Service, folder: str | None) -> ASGIApp:
    """Bound what gradio does not: its routes, the bodies of requests, and the uploaded files."""
    limits = service.limits

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        path, headers = scope["path"], Headers(scope=scope)
        if not ROUTES.fullmatch(path):
            raise HTTPException(404)
        most = TEXT_BYTES + (limits.max_mib * 2**20 if path == UPLOAD else 0)
        if "transfer-encoding" in headers or int(headers.get("content-length", 0)) > most:
            raise HTTPException(413, f"the body has no length, or more than {most:.0f} bytes")
        if path != UPLOAD:
            await page(scope, receive, send)
            return
        with service.place(), suppress(ClientDisconnect):
            if folder:
                space = limits.max_requests * limits.max_mib * 2**20
                await anyio.to_thread.run_sync(_make_room, Path(folder), space)
            with anyio.move_on_after(limits.timeout):
                await page(scope, receive, send)
                return
            raise HTTPException(408, f"the video did not arrive within {limits.timeout:g} s")

    return answer


def _make_room(folder: Path, space: float) -> None:
    """Remove the oldest files of a folder beyond so many bytes."""
    with suppress(FileNotFoundError):  # gradio removes files, too
        files = [path for path in folder.rglob("*") if path.is_file()]
        for path in sorted(files, key=os.path.getmtime, reverse=True):
            space -= path.stat().st_size
            if space < 0:
                path.unlink()


async def _refuse_address(url: str) -> NoReturn:
    wrong = f"the page does not open addresses such as {url}; upload the video"
    raise gr.Error(wrong, print_exception=False)


def build_page(service: Service) -> gr.Blocks:
    """The page, as a gradio application; see :func:`mount_page`."""
    counts = {name: one.default_frames for name, one in service.predictors.items()}
    first = next(iter(counts))
    with gr.Blocks(
        title="ffn", analytics_enabled=False, delete_cache=(KEPT_SECONDS // 6, KEPT_SECONDS)
    ) as page:
        gr.Markdown("# Label a video with any number of frames")
        with gr.Row():
            with gr.Column():
                video = gr.Video(label="Video", sources=["upload"], height=280, buttons=[])
                model = gr.Dropdown(
                    list(counts),
                    value=first,
                    label="Network",
                    visible=len(counts) > 1,
                    interactive=True,
                )
                most = service.limits.max_frames
                frames = gr.Slider(1, most, counts[first], step=1, label="Frames")
            with gr.Column():
                message = gr.Markdown(_start_text(service, first))
                labels = gr.Label(label="Labels", num_top_classes=LABELS)
                table = gr.Dataframe(
                    headers=list(COLUMNS),
                    label="The same video with other numbers of frames",
                    interactive=False,
                )
        seen = gr.Gallery(label="Frames that the network saw", height="auto")
        model.change(counts.__getitem__, model, frames, api_visibility="private")
        gr.on(
            [component.change for component in (video, model, frames)],
            partial(_answer, service),
            [video, model, frames],
            [message, labels, table, seen],
            trigger_mode="always_last",
            concurrency_limit=service.limits.max_requests,
            show_progress_on=[labels],
            api_visibility="private",
        )
    return page


def _answer(service: Service, video: str | None, model: str, frames: int) -> tuple[Any, ...]:
    """Message, labels, table and frames; the table has the trained numbers of frames, too."""
    if video is None:
        return _start_text(service, model), None, None, None
    predictor = service.predictors[model]
    trained = predictor.trained_frames[1 - COUNTS :]
    counts = [int(frames), *(n for n in trained if n != int(frames))]
    query = Query(model=model, frames=counts, name=Path(video).name[-200:])
    try:
        with service.place():
            answers = service.predict(Path(video), query)
    except HTTPException as error:
        return f"**{_plain(error.detail)}**", None, None, None
    chosen, clip = answers[0]
    message = (
        f"{chosen.how}: {predictor.gmacs(chosen.frames):.3g} GMACs, {chosen.model_ms:.1f} ms in "
        f"the network, {chosen.decode_ms:.0f} ms to read the frames"
    )
    predictions = sorted((prediction for prediction, _ in answers), key=lambda one: one.frames)
    rows = [_row(one, predictor.gmacs(one.frames)) for one in predictions]
    pixels = clip.pixels.permute(1, 2, 3, 0).numpy()  # (T, H, W, C)
    pairs = zip(pixels, clip.indices, strict=True)
    pictures = [(image, f"frame {index}") for image, index in pairs]
    return message, dict(chosen.top(LABELS)), rows, pictures


def _row(prediction: Prediction, gmacs: float) -> list[Any]:
    label, probability = prediction.top(1)[0]
    part = "plain" if prediction.active is None else prediction.active
    measured = f"{gmacs:.3g}", f"{prediction.model_ms:.1f}"
    return [prediction.frames, label, f"{probability:.1%}", part, *measured]


def _start_text(service: Service, model: str) -> str:
    """What to do, and what the network can tell apart."""
    limits, classes = service.limits, service.predictors[model].classes
    shown = ", ".join(classes[:CLASSES])
    more = f", and {len(classes) - CLASSES} more" if len(classes) > CLASSES else ""
    return (
        f"Upload a video (MP4, MOV, WebM, MKV, AVI) of at most {limits.max_mib:g} MiB. "
        f"The network {_plain(model)} has {len(classes)} classes: "
        f"{_plain(shown)}{more}."
    )


def _plain(text: str) -> str:
    """A text in Markdown whose characters stand for themselves: names of files may have any."""
    return re.sub(r"([!-/:-@\[-`{-~])", r"\\\1", text)
