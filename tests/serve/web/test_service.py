"""The service behind page and endpoint: answers, limits, and videos that end or block a worker."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from serve_choices import Blocks, Ends
from serve_files import save_network, write_video

import ffn
from ffn.data import Preprocessing
from ffn.serve import Predictor, choose_frames
from ffn.serve.web import Limits, Query, Refusal, Service
from ffn.zoo import save_weights

SETTINGS = Preprocessing(crop=32, resize=32).to_dict()
LIMITS = Limits(mebibytes=0.5, seconds=3.0, frames=16, counts=4, timeout=8.0, requests=2)


@pytest.fixture(scope="module")
def predictor(tmp_path_factory) -> Predictor:
    path = save_network(tmp_path_factory.mktemp("weights") / "tiny.safetensors", spread=0.1)
    return Predictor(path, precision="fp32")


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
    with pytest.raises(Refusal) as caught:
        service.predict(path, query or Query(), "film.mp4")
    return caught.value.status, caught.value.message


def test_answers_are_those_of_the_predictor(service, predictor, upload) -> None:
    counts = (4, 7, "auto", 2)
    answers = service.predict(upload, Query(frames=counts), "film.mp4")

    for count, answer in zip(counts, answers, strict=True):
        expected, clip = predictor(upload, frames=count), predictor.reader(count).read(upload)
        found = answer.prediction
        torch.testing.assert_close(found.probabilities, expected.probabilities, atol=1e-5, rtol=0)
        assert (found.path, found.why) == ("film.mp4", expected.why)
        assert found.indices == expected.indices == answer.clip.indices
        assert torch.equal(answer.clip.pixels, clip.pixels)
        assert answer.gmacs == predictor.gmacs(expected.frames)


def test_without_frames_the_largest_trained_count_answers(service, upload) -> None:
    (answer,) = service.predict(upload, Query())
    assert answer.prediction.frames == 8


def test_a_heat_map_is_that_of_the_predictor(service, predictor, upload) -> None:
    (answer,) = service.predict(upload, Query(frames=(5,)))
    label = answer.prediction.top(1)[0][0]
    expected = predictor.heat_map(upload, frames=5, label=label)

    found = service.heat_map(answer)
    assert found.label == label
    torch.testing.assert_close(found.values, expected.values)


def test_a_budget(service, predictor, upload) -> None:
    budget = predictor.gmacs(5) * 1.001
    (answer,) = service.predict(upload, Query(budget_gmacs=budget))
    assert answer.prediction.frames == 5


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (Query(model="big"), "there is no model 'big'; the models are tiny"),
        (Query(frames=(4, 17)), "frames is 17; at most 16 are accepted"),
        (Query(frames=(0,)), "frames is 0; expected an integer of 1 or more"),
        (Query(frames=(1, 2, 3, 4, 5)), "5 numbers of frames are asked for; at most 4 are"),
        (Query(frames=(4,), budget_gmacs=1.0), "got frames=4 and budget_gmacs=1.0; give one"),
        (Query(budget_gmacs=1e-9), "budget_gmacs is 1e-09; the smallest count, 2 frames, takes"),
    ],
)
def test_a_query_that_is_not_possible(service, upload, query, message) -> None:
    status, found = refused(service, upload, query)
    assert status == 400
    assert message in found


def test_files_that_are_not_accepted(service, upload) -> None:
    content = upload.read_bytes()
    accepted = "accepted are MP4, MOV, WebM, MKV, AVI, GIF, FLV, WMV, Ogg, MPEG-PS, MPEG-TS"

    upload.write_bytes(b"")
    assert refused(service, upload) == (415, f"film.mp4 is empty; {accepted}")
    upload.write_bytes(b"#EXTM3U\n/etc/hostname\n")
    what = "film.mp4 is no video of a type that is accepted"
    assert refused(service, upload) == (415, f"{what}; {accepted}")
    upload.write_bytes(content + bytes(2**19))
    limit = "at most 0.5 MiB are accepted"
    assert refused(service, upload) == (413, f"film.mp4 has more bytes than are accepted; {limit}")
    upload.write_bytes(content[: len(content) // 2])
    status, message = refused(service, upload)
    assert status == 422
    assert message.startswith("film.mp4: ")
    assert str(upload) not in message


def test_a_video_that_is_too_long(service, upload) -> None:
    write_video(upload.with_suffix(".mp4"), np.zeros((40, 16, 16, 3), np.uint8), rate=10)
    upload.with_suffix(".mp4").replace(upload)
    message = "film.mp4: it takes 4 s; at most 3 s are accepted"
    assert refused(service, upload) == (413, message)


@pytest.mark.slow
def test_a_video_that_ends_or_blocks_its_worker(predictor, upload, monkeypatch) -> None:
    limits = replace(LIMITS, timeout=3.0)
    with Service({"tiny": predictor}, limits=limits, workers=1) as service:
        expected = service.predict(upload, Query())[0].prediction

        def reader(choice: object) -> object:
            return lambda *given, **options: replace(
                type(predictor).reader(predictor), choose=choice
            )

        monkeypatch.setattr(predictor, "reader", reader(Ends()))
        message = "film.mp4: it ended the process that read it"
        assert refused(service, upload) == (422, message)
        monkeypatch.setattr(predictor, "reader", reader(Blocks()))
        status, message = refused(service, upload)
        assert (status, message.split(";")[0]) == (504, "film.mp4 took more than 3 s to read")

        monkeypatch.undo()
        found = service.predict(upload, Query())[0].prediction
        assert torch.equal(found.probabilities, expected.probabilities)
        assert service.healthy
    assert not service.healthy


@pytest.mark.slow
def test_a_network_that_takes_too_long(predictor, upload, monkeypatch) -> None:
    go = threading.Event()
    monkeypatch.setattr(predictor, "predict", lambda clips: go.wait(60) and [None])
    with Service({"tiny": predictor}, limits=replace(LIMITS, timeout=2.0)) as service:
        status, message = refused(service, upload)
        assert (status, message.split(";")[0]) == (504, "the network took more than 2 s")
        go.set()


@pytest.mark.slow
def test_the_time_is_that_of_all_numbers_of_frames(predictor, upload, monkeypatch) -> None:
    def slow(clips: list) -> list:
        time.sleep(0.7)
        return [None] * len(clips)

    monkeypatch.setattr(predictor, "predict", slow)
    with Service({"tiny": predictor}, limits=replace(LIMITS, timeout=1.5)) as service:
        status, _ = refused(service, upload, Query(frames=(2, 3, 4, 5)))
        assert status == 504


def test_a_plain_network_of_unknown_frames_is_refused(tmp_path) -> None:
    torch.manual_seed(0)
    plain = ffn.create_model("tsm_tiny", num_classes=3)
    path, record = tmp_path / "plain.safetensors", tmp_path / "plain.yaml"
    meta = {"model": "tsm_tiny", "num_classes": 3, "preprocessing": SETTINGS}
    save_weights(plain, path, meta)
    with pytest.raises(ValueError, match=r"plain is a plain network, .*Add the line `config") as c:
        Service({"plain": Predictor(path)}, limits=LIMITS)

    line = re.search("`(.*)`", str(c.value)).group(1)
    record.write_text(record.read_text().replace("config: null\n", "") + f"{line}\n")
    with Service({"plain": Predictor(path)}, limits=LIMITS) as service:
        assert service.models()[0]["trained_frames"] == [8]


def test_requests_beyond_the_limit_are_refused(service) -> None:
    with service.place(), service.place():
        third = service.place()
        with pytest.raises(Refusal, match="2 requests are being answered; try again") as caught:
            third.__enter__()
        assert caught.value.status == 503
    with service.place():
        pass


def test_no_predictor() -> None:
    with pytest.raises(ValueError, match="there is no predictor; expected at least one"):
        Service({})


def test_fewer_frames_than_a_network_needs(predictor) -> None:
    message = "11 frames are accepted at most; tiny needs up to 12. Accept as many"
    with pytest.raises(ValueError, match=message):
        Service({"tiny": predictor}, limits=replace(LIMITS, frames=11))


@pytest.mark.slow
def test_latencies_are_measured_once_and_before_requests(tmp_path, upload, monkeypatch) -> None:
    monkeypatch.setenv("FFN_HOME", str(tmp_path / "home"))
    measured = []

    def measure(run: object, clip: torch.Tensor, **options: object) -> float:
        measured.append(clip.shape[2])
        time.sleep(0.05)
        return 10.0 * clip.shape[2]

    monkeypatch.setattr(choose_frames, "measure_latency", measure)
    predictor = Predictor(save_network(tmp_path / "tiny.safetensors"), precision="fp32")
    with ThreadPoolExecutor(3) as pool:
        answers = [*pool.map(lambda ms: predictor.reader(budget_ms=ms).choose.count, (40, 60, 80))]
    assert (answers, measured) == ([4, 6, 8], [2, 4, 8, 12])

    measured.clear()
    monkeypatch.setenv("FFN_HOME", str(tmp_path / "other"))
    predictor = Predictor(tmp_path / "tiny.safetensors", precision="fp32")
    with Service({"tiny": predictor}, limits=LIMITS, workers=1) as service:
        service.warm_up()
        assert measured == [2, 4, 8, 12]
        (answer,) = service.predict(upload, Query(budget_ms=41))
        assert answer.prediction.frames == 4
    assert len(measured) == 4


def test_logits_that_are_not_finite_are_refused(upload, tmp_path) -> None:
    damaged = save_network(tmp_path / "damaged.safetensors", spread=float("nan"))
    with Service({"damaged": Predictor(damaged, fuse=False)}, workers=1) as service:
        status, message = refused(service, upload, Query(frames=(4,)))

    assert status == 500
    assert message.startswith("film.mp4: the logits at 4 frames are NaN or infinite (fp32)")
    assert message.endswith("the weights are damaged")
