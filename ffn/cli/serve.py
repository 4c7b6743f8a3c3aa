"""Serve a web page and an HTTP endpoint that label videos."""

from __future__ import annotations

import importlib.util
import ipaddress
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.types import PositiveFloat, PositiveInt

from ffn.cli.arguments import DEFAULT_NETWORK, Imports, ManyWeights, Network, names_of
from ffn.registry import import_extensions

if TYPE_CHECKING:
    from ffn.serve.web import Service

CONNECTIONS = 64  # open ones, besides two for each request at a time
END_SECONDS = 1  # for requests that are being answered; open pages never end by themselves
LAST_SECONDS = 3  # from the signal to the end of the process, whatever it waits for
PACKAGES = ("fastapi", "gradio", "uvicorn")
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def serve(
    *,
    weights: ManyWeights,
    host: str = "127.0.0.1",
    port: Annotated[PositiveInt, Parameter(help="Port to listen on.")] = 7860,
    allowed_hosts: list[str] | None = None,
    no_page: bool = False,
    max_mib: PositiveFloat = 100.0,
    max_frames: PositiveInt = 64,
    max_requests: PositiveInt = 32,
    timeout: PositiveFloat = 30.0,
    workers: PositiveInt = 2,
    network: Network = DEFAULT_NETWORK,
    imports: Imports = None,
) -> None:
    """Serve a web page and an HTTP endpoint that label videos, with any number of frames.

    There is no password: listen on other addresses than localhost only behind a server that asks
    for one. Ctrl-C or SIGTERM ends it.

    Args:
        host: Address to listen on.
        allowed_hosts: Names by which requests may ask for it, as behind a proxy, besides localhost;
            default: any name, unless it listens on localhost.
        no_page: The endpoint only.
        max_mib: Size of a file in MiB.
        max_frames: Frames of a clip.
        max_requests: Requests at a time; others are refused at once.
        timeout: Seconds for receiving a file, for reading it and for the network, each.
        workers: Processes that read videos.
    """
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"the service needs {', '.join(missing)}: pip install 'frame-flexible[serve]'"
        )
    names = names_of(weights)
    with _ended_by_sigterm():
        import_extensions(imports or [])
        # Before the networks are prepared: a port that another program uses ends the command.
        with _listen(host, port) as listening:
            predictors = {name: network.build_predictor(one) for one, name in names.items()}
            with _folder_of_the_page() as folder:
                from ffn.serve.web import Limits, Service

                limits = Limits(max_mib, max_frames, max_requests, timeout)
                with Service(predictors, limits=limits, workers=workers) as service:
                    _run(service, listening, allowed_hosts, None if no_page else folder)


def _run(
    service: Service,
    listening: socket.socket,
    hosts: Sequence[str] | None,
    folder: str | None,
) -> None:
    """Answer requests until a signal comes; with a page if there is a folder for its files."""
    import uvicorn

    from ffn.serve.web import bounded_protocol, create_app, mount_page

    class Server(uvicorn.Server):
        def handle_exit(self, *given: object) -> None:
            super().handle_exit(*given)
            threading.Thread(target=_end, args=(service, time.monotonic()), daemon=True).start()

    print("preparing the networks", flush=True)
    service.warm_up()
    host, port = listening.getsockname()[:2]
    local = ipaddress.ip_address(host).is_loopback
    host = f"[{host}]" if ":" in host else host
    app = create_app(service, hosts=(*LOOPBACK, host, *(hosts or ())) if hosts or local else ("*",))
    if folder:
        mount_page(app, service, folder)
    address = f"http://{host}:{port}"
    networks = ", ".join(f"{name} ({one.network})" for name, one in service.predictors.items())
    page = f"page      {address}/\n" if folder else ""
    print(
        f"networks  {networks}\n{page}"
        f"endpoint  {address}/api/predict, described at {address}/docs\n"
        f"state     {address}/health\nCtrl-C ends it.",
        flush=True,
    )
    # Otherwise it reports open pages and uploads as errors when it ends.
    errors = logging.getLogger("uvicorn.error")
    errors.addFilter(lambda one: "Cancel" not in f"{one.msg} {one.exc_info}")
    config = uvicorn.Config(
        app,
        http=bounded_protocol(CONNECTIONS + 2 * service.limits.max_requests),
        backlog=CONNECTIONS,
        log_level="warning",
        timeout_graceful_shutdown=END_SECONDS,
    )
    # uvicorn ends by the signal that it got.
    with suppress(KeyboardInterrupt):
        Server(config).run(sockets=[listening])


def _end(service: Service, began: float) -> None:
    """Close a service, so that waiting requests end; end a process that still waits after that."""
    service.close()
    time.sleep(max(0.0, began + LAST_SECONDS - time.monotonic()))
    shutil.rmtree(os.environ.get("GRADIO_TEMP_DIR", ""), ignore_errors=True)
    os._exit(0)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Take SIGTERM as Ctrl-C, so that processes and files are removed before the end."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _folder_of_the_page() -> Iterator[str]:
    """Where gradio keeps files of the page, until the end.

    Its own folder, ``gradio`` in that of temporary files, belongs to the user who ran it first.
    """
    # Also Ctrl-C during an import removes the folder.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="ffn-page-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder  # before gradio is imported
        try:
            yield folder
        finally:
            del os.environ["GRADIO_TEMP_DIR"]
            signal.signal(signal.SIGINT, before)


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        OSError: another program uses the port, or there is no such host.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        cause = f"cannot listen on --host {host}, --port {port} (1 to 65535): {error}"
        raise OSError(f"{cause}; choose others") from error
