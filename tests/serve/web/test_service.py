"""The service behind page and endpoint: answers, limits, and videos that end or block a worker."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fastapi import HTTPException
from serve_files import Blocks, Ends, save_network

from ffn.serve import Predictor
from ffn.serve.web import Limits, Query, Service

pytestmark = pytest.mark.slow  # processes and HTTP
LIMITS = Limits(max_mib=0.5, max_frames=16, timeout=60.0, max_requests=2)


@pytest.fixture(scope="module")
def service(predictor) -> Iterator[Service]:
    with Service({"tiny": predictor}, limits=LIMITS, workers=1) as service:
        yield service


@pytest.fixture
def upload(tmp_path, mp4) -> Path:
    """A video alone in its folder."""
    (tmp_path / "upload").mkdir()
    return Path(shutil.copy(mp4, tmp_path / "upload/video"))


def refused(service: Service, path: Path, query: Query | None = None) -> tuple[int, str]:
    with pytest.raises(HTTPException) as caught:
        service.predict(path, query or Query(name="video.mp4"))
    return caught.value.status_code, caught.value.detail


def test_files_that_are_not_accepted(service, upload) -> None:
    content = upload.read_bytes()
    playlist = b"#EXTM3U\n#EXTINF:1,\nfile:///etc/hostname\n"
    for text, status in (
        (b"", 422),
        (playlist, 422),
        (content + bytes(2**19), 413),
        (content[: len(content) // 2], 422),
    ):
        upload.write_bytes(text)
        found, message = refused(service, upload)
        assert found == status
        assert message.startswith("video.mp4")
        assert str(upload) not in message
    upload.unlink()
    assert refused(service, upload)[0] == 422
    assert refused(service, Path("/dev/zero"))[0] == 422


def test_a_video_that_ends_or_blocks_its_worker(predictor, upload, monkeypatch) -> None:
    limits = replace(LIMITS, timeout=10.0)
    with Service({"tiny": predictor}, limits=limits, workers=1) as service:
        expected, _ = service.predict(upload, Query())[0]

        plain = predictor.reader()
        for choice, status in ((Ends(), 422), (Blocks(), 504)):
            changed = replace(plain, choose=choice)
            monkeypatch.setattr(predictor, "reader", lambda *_, found=changed, **__: found)
            assert refused(service, upload)[0] == status

        monkeypatch.undo()
        found, _ = service.predict(upload, Query())[0]
        assert torch.equal(found.probabilities, expected.probabilities)
        assert service.healthy
    assert not service.healthy


@pytest.mark.parametrize("what", ["video", "network", "reader"])
def test_closing_ends_a_request_that_blocks(what, predictor, upload, monkeypatch) -> None:
    before = {*multiprocessing.active_children()}
    service = Service({"tiny": predictor}, limits=replace(LIMITS, timeout=600), workers=1)
    service.warm_up()
    if what == "video":
        blocked = replace(predictor.reader(), choose=Blocks())
        monkeypatch.setattr(predictor, "reader", lambda *_, **__: blocked)
    elif what == "network":
        monkeypatch.setattr(predictor, "predict", lambda clips: time.sleep(8))
    else:
        for process in {*multiprocessing.active_children()} - before:
            os.kill(process.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(refused, service, upload)
        time.sleep(1)
        began = time.monotonic()
        service.close()
        assert request.result(10)[0] == 503
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("step", ["_check_file", "_run"])
def test_a_request_while_the_service_closes(step, predictor, upload, monkeypatch) -> None:
    with Service({"tiny": predictor}, limits=LIMITS, workers=1) as service:
        go_on = getattr(service, step)
        monkeypatch.setattr(service, step, lambda *given: (service.close(), go_on(*given))[1])
        assert refused(service, upload)[0] == 503


def test_the_time_of_the_network_is_that_of_all_numbers_of_frames(
    predictor, upload, monkeypatch
) -> None:
    def slow(clips: list) -> list:
        time.sleep(0.7)
        return [None]

    monkeypatch.setattr(predictor, "predict", slow)
    with Service({"tiny": predictor}, limits=replace(LIMITS, timeout=1.5)) as service:
        service.warm_up()
        assert refused(service, upload, Query(frames=(2, 3, 4, 5)))[0] == 504


def test_logits_that_are_not_finite_are_refused(upload, tmp_path) -> None:
    damaged = save_network(tmp_path / "damaged.safetensors", spread=float("nan"))
    with Service({"damaged": Predictor(damaged, runtime="unfused")}, workers=1) as service:
        status, message = refused(service, upload, Query(frames=(4,), name="video.mp4"))

    assert (status, message.split(":")[0]) == (500, "video.mp4")
