"""The web page of a service: a video in, labels at any number of frames out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import gradio as gr
from fastapi import FastAPI, HTTPException
from gradio import processing_utils

from ffn.serve.heat_maps import HeatMap
from ffn.serve.web.service import COUNTS, Answer, Query, Service

PATH = "/"
LABELS = 5
COLUMNS = ("frames", "label", "probability", "sub-network", "GMACs", "ms")
CLASSES = 12  # that the page lists
KEPT_SECONDS = 3600  # uploaded files
# Fonts of the system: the page works without a connection to other hosts.
FONT, MONO = ["system-ui", "sans-serif"], ["ui-monospace", "monospace"]
# The table fits beside the video. The frames: as many columns as fit, below the title, in a box as
# high as they are.
CSS = """
#table * { font-size: 0.75rem !important; }
#labels h2 { overflow-wrap: anywhere; }
#seen .grid-wrap { min-height: 4rem; max-height: none; height: auto; }
#seen .grid-container {
  padding-top: 2rem;
  grid-template-columns: repeat(auto-fill, minmax(min(8rem, 30%), 1fr));
}
"""


def mount_page(app: FastAPI, service: Service, samples: Sequence[Path] = ()) -> FastAPI:
    """Add the page of a service to its endpoint, at `PATH`.

    From then on, gradio opens no addresses in this process: a request may name one in place of an
    uploaded file, and gradio would download it without a limit.

    Args:
        app: the endpoint.
        service: answers.
        samples: videos to choose from.
    """
    processing_utils.async_ssrf_protected_get = _refuse_address
    page = build_page(service, samples)
    # Else gradio takes any path of this machine in place of an uploaded file, which it checks only
    # after `launch`. A page that is mounted is never launched.
    page.has_launched = True
    return gr.mount_gradio_app(
        app,
        page,
        PATH,
        max_file_size=int(service.limits.max_mib * 2**20),
        theme=gr.themes.Default(font=FONT, font_mono=MONO),
        css=CSS,
        footer_links=[],
        enable_monitoring=False,
        ssr_mode=False,
        pwa=False,
    )


async def _refuse_address(url: str) -> NoReturn:
    wrong = f"the page does not open addresses such as {url}; upload the video"
    raise gr.Error(wrong, print_exception=False)


def build_page(service: Service, samples: Sequence[Path] = ()) -> gr.Blocks:
    """The page, as a gradio application; see :func:`mount_page`."""
    counts = {name: one.default_frames for name, one in service.predictors.items()}
    first = next(iter(counts))
    with gr.Blocks(
        title="ffn", analytics_enabled=False, delete_cache=(KEPT_SECONDS // 6, KEPT_SECONDS)
    ) as page:
        gr.Markdown("# Label a video with any number of frames")
        with gr.Row():
            with gr.Column():
                inputs = _inputs(counts, service.limits.max_frames)
            with gr.Column():
                message = gr.Markdown(_start_text(service, first), elem_id="message")
                labels = gr.Label(label="Labels", num_top_classes=LABELS, elem_id="labels")
                table = gr.Dataframe(
                    headers=list(COLUMNS),
                    label="The same video with other numbers of frames",
                    interactive=False,
                    elem_id="table",
                )
        if samples:
            gr.Examples(
                [[str(path)] for path in samples],
                [inputs[0]],
                label="Samples",
                examples_per_page=len(samples),
            )
        seen = gr.Gallery(label="Frames that the network saw", height="auto", elem_id="seen")
        _, model, frames, _ = inputs
        model.change(counts.__getitem__, model, frames, api_visibility="private")
        gr.on(
            [component.change for component in inputs],
            partial(_answer, service),
            inputs,
            [message, labels, table, seen],
            trigger_mode="always_last",
            concurrency_limit=service.limits.max_requests,
            show_progress_on=[labels],
            api_visibility="private",
        )
    return page


def _inputs(counts: Mapping[str, int], most: int) -> list[Any]:
    """What a user chooses: video, network, frames (default: `counts` of each), and heat map."""
    first = next(iter(counts))
    video = gr.Video(label="Video", sources=["upload"], height=280, buttons=[])
    model = gr.Dropdown(
        list(counts),
        value=first,
        label="Network",
        visible=len(counts) > 1,
        interactive=True,
        elem_id="model",
    )
    frames = gr.Slider(1, most, value=counts[first], step=1, label="Frames", elem_id="frames")
    heat = gr.Checkbox(
        label="Show where the network saw evidence for the label "
        "(yellow: much, purple: little, gray: none)",
        elem_id="heat",
    )
    return [video, model, frames, heat]


def _answer(
    service: Service, video: str | None, model: str, frames: int, heat: bool
) -> tuple[Any, ...]:
    """Answer an event of the page; the table has the trained numbers of frames, too."""
    if video is None:
        return _start_text(service, model), None, None, None
    trained = service.predictors[model].trained_frames[1 - COUNTS :]
    counts = [int(frames), *(n for n in trained if n != int(frames))]
    query = Query(model=model, frames=counts, name=Path(video).name[-200:])
    try:
        with service.place():
            answers = service.predict(Path(video), query)
            heat_map = service.heat_map(answers[0], query) if heat else None
    except HTTPException as error:
        return f"**{_plain(error.detail)}**", None, None, None
    return _shown(answers, heat_map)


def _shown(answers: Sequence[Answer], heat_map: HeatMap | None) -> tuple[Any, ...]:
    """Message, labels, table and frames; the first answer is the chosen one."""
    chosen = answers[0]
    prediction = chosen.prediction
    message = (
        f"{prediction.how}: {chosen.gmacs:.3g} GMACs, {prediction.model_ms:.1f} ms in the network, "
        f"{prediction.decode_ms:.0f} ms to read the frames"
    )
    rows = [_row(one) for one in sorted(answers, key=lambda one: one.prediction.frames)]
    pixels = chosen.clip.pixels.permute(1, 2, 3, 0).numpy()  # (T, H, W, C)
    shown = pixels if heat_map is None else heat_map.overlay()
    pairs = zip(shown, chosen.clip.indices, strict=True)
    pictures = [(image, f"frame {index}") for image, index in pairs]
    return message, dict(prediction.top(LABELS)), rows, pictures


def _row(answer: Answer) -> list[Any]:
    prediction = answer.prediction
    label, probability = prediction.top(1)[0]
    part = "plain" if prediction.active is None else prediction.active
    measured = f"{answer.gmacs:.3g}", f"{prediction.model_ms:.1f}"
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
