"""The web page of a service: a video in, labels at any number of frames out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import gradio as gr
from fastapi import FastAPI
from gradio import processing_utils

from ffn.serve.heat_maps import HeatMap
from ffn.serve.web.service import COUNTS, Answer, Limits, Query, Refusal, Service

PATH = "/"
LABELS = 5
COMPARED = (1, 2, 4, 6, 8, 12, 16, 24, 32)
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
    models = service.models()
    first = models[0]
    limits = service.limits
    with gr.Blocks(
        title="ffn", analytics_enabled=False, delete_cache=(KEPT_SECONDS // 6, KEPT_SECONDS)
    ) as page:
        gr.Markdown("# Label a video with any number of frames")
        with gr.Row():
            with gr.Column():
                inputs = _inputs(models, limits)
                _, model, frames, others, _ = inputs
            with gr.Column():
                message = gr.Markdown(_start_text(service, first["name"]), elem_id="message")
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
        by_name = {one["name"]: (one["default_frames"], _ticked(one)) for one in models}
        model.change(by_name.__getitem__, model, [frames, others], api_visibility="private")
        gr.on(
            [component.change for component in inputs],
            _answer_function(service),
            inputs,
            [message, labels, table, seen],
            trigger_mode="always_last",
            concurrency_limit=limits.max_requests,
            show_progress_on=[labels],
            api_visibility="private",
        )
    return page


def _inputs(models: Sequence[dict[str, Any]], limits: Limits) -> list[Any]:
    """What a user chooses: video, network, frames, other numbers of frames, and heat map."""
    first = models[0]
    video = gr.Video(label="Video", sources=["upload"], height=280, buttons=[])
    model = gr.Dropdown(
        [one["name"] for one in models],
        value=first["name"],
        label="Network",
        visible=len(models) > 1,
        interactive=True,
        elem_id="model",
    )
    frames = gr.Slider(
        1,
        limits.max_frames,
        value=first["default_frames"],
        step=1,
        label="Frames",
        elem_id="frames",
    )
    others = gr.CheckboxGroup(
        _compared(models, limits.max_frames),
        value=_ticked(first),
        label="Compare with",
        elem_id="others",
    )
    heat = gr.Checkbox(
        label="Show where the network saw evidence for the label "
        "(yellow: much, purple: little, gray: none)",
        elem_id="heat",
    )
    return [video, model, frames, others, heat]


def _compared(models: Sequence[dict[str, Any]], most: int) -> list[int]:
    """Numbers of frames to compare with: the trained ones, and some others.

    They are the same for all networks: when another one is chosen, the page asks for an answer
    before it has the new choices.
    """
    trained = {n for one in models for n in one["trained_frames"]}
    return sorted({n for n in COMPARED if n <= most} | trained)


def _ticked(model: dict[str, Any]) -> list[int]:
    """Trained numbers of frames to compare with at first: those that fit in one request."""
    trained = model["trained_frames"]
    return trained[max(0, len(trained) - COUNTS + 1) :]


def _answer_function(service: Service) -> Callable[..., tuple[Any, ...]]:
    """A function that answers an event of the page."""

    def answer(
        video: str | None, model: str, frames: int, others: Sequence[int], heat: bool
    ) -> tuple[Any, ...]:
        if video is None:
            return _start_text(service, model), None, None, None
        counts = [int(frames), *sorted({*map(int, others)} - {int(frames)})]
        path = Path(video)
        query = Query(model=model, frames=counts, name=path.name[-200:])
        try:
            with service.place():
                answers = service.predict(path, query)
                heat_map = service.heat_map(answers[0], query) if heat else None
        except Refusal as error:
            return f"**{_plain(error.message)}**", None, None, None
        return _shown(answers, heat_map)

    return answer


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
