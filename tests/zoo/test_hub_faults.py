"""Repositories from a faulty server: nothing wrong is used or kept, and the next attempt works."""

from __future__ import annotations

import errno
import multiprocessing
import resource
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest
from hub_server import HubServer

from ffn.zoo import WeightsError, fetch_weights

NAME = "hf://me/net"
PAGE = b"<!DOCTYPE html><html><body>Sign in to continue</body></html>"
CUTS = [1, *range(65_000, 1_295_000, 65_000)]

pytestmark = pytest.mark.usefixtures("_at_once")


def contents(hub: HubServer) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in hub.folder.iterdir()}


def check_cache(home: Path, expected: dict[str, bytes]) -> None:
    """Every file with a final name is right."""
    for path in home.glob("hub/models--*/snapshots/*/*"):
        assert path.read_bytes() == expected[path.name], path


def change(**values: object) -> Callable[[HubServer], None]:
    """A fault that sets attributes of the server."""
    return lambda hub: [setattr(hub, name, value) for name, value in values.items()]


# What is done to the server, and the error.
FAULTS = {
    "another file": (change(damages=9), "its record has"),
    "too short": (change(change=lambda content: content[:-1]), "cannot download"),
    "too long": (change(change=lambda content: content + b"x"), "cannot download"),
    "empty": (change(change=lambda content: b""), "cannot download"),
    "a page": (change(page=PAGE), "no connection to the Hub: "),
    "a page of the right length": (
        change(change=lambda content: PAGE.ljust(len(content))),
        "its record has",
    ),
    "a page for the record": (
        change(page=PAGE, suffix=".yaml"),
        "no connection to the Hub: ",
    ),
    "a page with the headers of the record": (
        change(change=lambda content: PAGE.ljust(len(content)), suffix=".yaml"),
        "is not a record of weights",
    ),
    "a record that is cut": (
        change(change=lambda content: content[:40], suffix=".yaml"),
        "cannot download",
    ),
    "redirect to a file": (change(location="file:///etc/hostname"), "cannot download"),
    "redirect in a circle": (
        change(location=f"/me/net/resolve/{'0123456789abcdef' * 2 + '01234567'}/model.safetensors"),
        "cannot download",
    ),
    "status 500": (change(answers=[500] * 99), "Try again later"),
    "status 403": (change(answers=[403] * 99), "log in with"),
    "status 500 half-way": (change(cuts=[None, 500_000], answers=[200, 500]), "Try again later"),
    "status 404 half-way": (change(cuts=[None, 500_000], answers=[200, 404]), "log in"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault(hub: HubServer, tmp_path: Path, fault: str) -> None:
    expected = contents(hub)
    break_server, message = FAULTS[fault]
    break_server(hub)
    with pytest.raises(WeightsError, match=message) as error:
        fetch_weights(NAME)
    assert NAME in str(error.value)
    check_cache(tmp_path / "home", expected)

    hub.heal()
    assert fetch_weights(NAME).read_bytes() == expected["model.safetensors"]
    check_cache(tmp_path / "home", expected)


@pytest.mark.parametrize("cut", CUTS)
def test_a_transfer_that_is_cut(hub: HubServer, tmp_path: Path, cut: int) -> None:
    expected = contents(hub)
    hub.cuts = [None, cut]  # the first answer is the record
    assert fetch_weights(NAME).read_bytes() == expected["model.safetensors"]
    assert hub.cuts == []
    check_cache(tmp_path / "home", expected)


def start(work: Callable[[], object]) -> multiprocessing.Process:
    process = multiprocessing.get_context("fork").Process(target=work, daemon=True)
    process.start()
    return process


def test_two_processes_at_once(hub: HubServer, tmp_path: Path) -> None:
    expected = contents(hub)

    def fetch() -> None:
        assert fetch_weights(NAME).read_bytes() == expected["model.safetensors"]

    processes = [start(fetch), start(fetch)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    check_cache(tmp_path / "home", expected)


def test_a_full_disk_is_reported(hub: HubServer, tmp_path: Path) -> None:
    expected = contents(hub)

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
        message = r"home/hub: File too large\. Free space on its disk"
        with pytest.raises(WeightsError, match=message):
            fetch_weights(NAME)

    process = start(fill)
    process.join()
    assert process.exitcode == 0
    check_cache(tmp_path / "home", expected)
    fetch_weights(NAME)
    check_cache(tmp_path / "home", expected)


def test_a_folder_that_cannot_be_written(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FFN_HOME", str(tmp_path / "file"))
    with pytest.raises(WeightsError, match=r"Not a directory\. Set the environment variable"):
        fetch_weights(NAME)


def test_a_record_that_is_damaged_in_the_cache(hub: HubServer, tmp_path: Path) -> None:
    record = fetch_weights(NAME).with_name("model.yaml")
    expected = contents(hub)
    for damaged in (expected["model.yaml"][:50], b"", expected["model.yaml"] + b"sha256: 1\n"):
        record.write_bytes(damaged)
        fetch_weights(NAME)
        check_cache(tmp_path / "home", expected)


def test_a_token_that_cannot_be_read_is_no_error_of_the_disk(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/elsewhere/token")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    with pytest.raises(WeightsError, match=r"cannot download hf://me/net: .*'/elsewhere/token'"):
        fetch_weights(NAME)
