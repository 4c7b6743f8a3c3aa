"""``tools/serve.py --weights W``: a web page and an HTTP endpoint for predictions."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ffn.cli.arguments import (
    WEIGHTS_HELP,
    add_device_argument,
    add_imports_argument,
    add_precision_argument,
    find_device,
    load_imports,
    names_of,
    positive_int,
    positive_number,
)
from ffn.cli.program import Parser, called_as, fail, program

if TYPE_CHECKING:
    from ffn.serve import Predictor

MAX_SAMPLES = 24
SAMPLE_SEED = 1000  # of films that no network was trained on
END_SECONDS = 3  # for requests that are being answered; open pages never end by themselves
SUFFIXES = (".mp4", ".mov", ".webm", ".mkv", ".avi", ".gif")


@program("serve", "the same command starts again")
def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C or SIGTERM; returns the exit status."""
    given = _parser().parse_args(arguments)
    try:
        with _ended_by_sigterm(), _folder_of_the_page():
            _check_installed()
            load_imports(given)
            if given.no_page and given.samples is not None:
                raise ValueError("--samples are for the page, and --no-page serves none; drop one")
            # Before the networks are prepared: a port that another program uses ends the command.
            with _listen(given.host, given.port) as listening:
                predictors = _predictors(given)
                with _samples(given, predictors) as samples:
                    return _serve(given, predictors, samples, listening)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        return fail("serve", error)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Take SIGTERM as Ctrl-C, so that processes and files are removed before the end."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _folder_of_the_page() -> Iterator[None]:
    """Where gradio keeps files of the page, until the end.

    Its own folder, ``gradio`` in that of temporary files, belongs to the user who ran it first.
    """
    variable = "GRADIO_TEMP_DIR"
    before = os.environ.get(variable)
    with tempfile.TemporaryDirectory(prefix="ffn-page-") as folder:
        os.environ[variable] = folder
        try:
            yield
        finally:
            os.environ.pop(variable)
            if before is not None:
                os.environ[variable] = before


def _check_installed() -> None:
    """Raise ImportError if the packages of the extra are missing."""
    try:
        import fastapi  # noqa: F401
        import gradio  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        why = f"{error}. Install them: pip install 'frame-flexible[serve]'"
        raise ImportError(f"the page and the endpoint need more packages: {why}") from error


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        OSError: another program uses the port, or there is no such host.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OverflowError as error:
        raise ValueError(f"--port is {port}; expected 1 to 65535") from error
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error  # < 0: no host
        cause = f"cannot listen on {host}, port {port}: {why}"
        raise OSError(f"{cause}; choose another --port or --host") from error


def _predictors(given: argparse.Namespace) -> dict[str, Predictor]:
    from ffn.host_memory import tune_allocator
    from ffn.serve import Predictor

    device, paths = find_device(given.device), names_of(given.weights)
    if device.type == "cpu":
        tune_allocator()
    predictors = {
        weights: Predictor(weights, device=device, precision=given.precision) for weights in paths
    }
    names = [one.record.name for one in predictors.values()]
    return {
        paths[weights] if names.count(one.record.name) > 1 else one.record.name: one
        for weights, one in predictors.items()
    }


@contextmanager
def _samples(
    given: argparse.Namespace, predictors: dict[str, Predictor]
) -> Iterator[Sequence[Path]]:
    """The videos that the page offers; for networks of the generated films, some of these."""
    from ffn.datasets import synthetic

    if given.no_page:
        yield []
        return
    if given.samples is not None:
        files = sorted(p for p in given.samples.iterdir() if p.suffix.lower() in SUFFIXES)
        if not files:
            raise ValueError(
                f"{given.samples} has no video; expected files *{', *'.join(SUFFIXES)}"
            )
        yield files[:MAX_SAMPLES]
        return
    generated = {*synthetic.CLASSES}
    if not any(generated.issuperset(predictor.classes) for predictor in predictors.values()):
        yield []
        return
    with tempfile.TemporaryDirectory(prefix="ffn-samples-") as folder:
        films = synthetic.generate(
            Path(folder, "films"), train_per_class=1, val_per_class=1, seed=SAMPLE_SEED
        )
        yield sorted((films / "videos").glob("val_*.mp4"))


def _serve(
    given: argparse.Namespace,
    predictors: dict[str, Predictor],
    samples: Sequence[Path],
    listening: socket.socket,
) -> int:
    import uvicorn

    from ffn.serve.web import Limits, Metrics, Service, create_app, mount_page

    limits = Limits(
        mebibytes=given.max_mib,
        seconds=given.max_seconds,
        frames=given.max_frames,
        timeout=given.timeout,
        requests=given.max_requests,
    )
    print("preparing the networks", flush=True)
    with Service(
        predictors, limits=limits, workers=given.workers, batch_size=given.batch_size
    ) as service:
        service.warm_up()
        metrics = Metrics()
        app = create_app(service, metrics)
        if not given.no_page:
            mount_page(app, service, metrics, samples)
        print(_greeting(given, predictors), flush=True)
        # Otherwise it reports open pages as errors when it ends.
        logging.getLogger("uvicorn.error").addFilter(lambda one: "Cancel" not in str(one.msg))
        # uvicorn ends by the signal that it got.
        with suppress(KeyboardInterrupt):
            config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=END_SECONDS)
            uvicorn.Server(config).run(sockets=[listening])
    return 0


def _greeting(given: argparse.Namespace, predictors: dict[str, Predictor]) -> str:
    host = f"[{given.host}]" if ":" in given.host else given.host  # of IPv6
    address = f"http://{host}:{given.port}"
    networks = ", ".join(f"{name} ({one.network})" for name, one in predictors.items())
    page = [] if given.no_page else [f"page      {address}/"]
    return "\n".join(
        [
            f"networks  {networks}",
            *page,
            f"endpoint  {address}/api/predict, described at {address}/docs",
            f"state     {address}/health, {address}/metrics",
            "Ctrl-C ends it.",
        ]
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=called_as("serve"),
        description="Serve a web page and an HTTP endpoint that predict the labels of videos, with "
        "any number of frames. There is no password: listen on other addresses than localhost only "
        "behind a server that asks for one. Exit status: 0 ended by Ctrl-C or SIGTERM (130 before "
        "it serves); 2 error, with a message that names the cause.",
    )
    option = parser.add_argument
    option("--weights", nargs="+", required=True, help=WEIGHTS_HELP)
    option("--host", default="127.0.0.1", help="address to listen on; default: %(default)s")
    option("--port", type=positive_int, default=7860, help="default: %(default)s")
    option(
        "--samples",
        type=Path,
        metavar="FOLDER",
        help=f"videos that the page offers, at most {MAX_SAMPLES}; default: generated films, for "
        "networks that were trained on them",
    )
    option("--no-page", action="store_true", help="the endpoint only")
    _add_limits(parser)
    option(
        "--workers",
        type=positive_int,
        default=2,
        metavar="n",
        help="processes that read videos; default: %(default)s",
    )
    option(
        "--batch-size",
        type=positive_int,
        default=8,
        metavar="n",
        help="largest number of clips, of one number of frames, that run together; default: 8",
    )
    add_precision_argument(parser)
    add_device_argument(parser)
    add_imports_argument(parser)
    return parser


def _add_limits(parser: argparse.ArgumentParser) -> None:
    """Options on what is accepted."""
    option = parser.add_argument_group("limits").add_argument
    option(
        "--max-mib",
        type=positive_number,
        default=100.0,
        metavar="MIB",
        help="size of a file; default: 100",
    )
    option(
        "--max-seconds",
        type=positive_number,
        default=600.0,
        metavar="SECONDS",
        help="duration of a video; default: 600",
    )
    option(
        "--max-frames",
        type=positive_int,
        default=64,
        metavar="n",
        help="frames of a clip; default: 64",
    )
    option(
        "--max-requests",
        type=positive_int,
        default=32,
        metavar="n",
        help="requests at a time; others are refused at once; default: 32",
    )
    option(
        "--timeout",
        type=positive_number,
        default=30.0,
        metavar="SECONDS",
        help="for receiving a file, for reading it and for the network, each; default: 30",
    )
