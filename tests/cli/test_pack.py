from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from ffn.cli.pack import main
from ffn.data import ClipStore, Record
from ffn.data.store import packing
from ffn.datasets.synthetic import generate
from ffn.engine.build_data import (
    build_preprocessing,
    build_test_loader,
    build_train_loader,
    describe_videos,
    read_config_splits,
)
from ffn.engine.config import ConfigError, load_config
from ffn.engine.distributed import World

CONFIG = """\
task:
  frames: [2, 4]
data:
  root: {root}
  workers: 0
  crop: 32
  resize: 36
train:
  batch_size: 4
"""
STORE = ["data.format=store"]
ALONE = World(0, 1, torch.device("cpu"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Videos of 36 pixels, of which one is unreadable, and a config."""
    pytest.importorskip("av")
    root = tmp_path / "data"
    generate(root, train_per_class=1, val_per_class=1, size=36, frames=30)
    sorted((root / "videos").glob("val*"))[0].write_bytes(b"no video")
    (root / "config.yaml").write_text(CONFIG.format(root=root))
    return root


def train_batches(root: Path, *options: str, rank: int = 0, size: int = 1) -> list[dict]:
    config = load_config(root / "config.yaml", options)
    world = World(rank, size, torch.device("cpu"))
    return list(build_train_loader(config, read_config_splits(config.data), world))


def same(one: dict, other: dict) -> bool:
    return torch.equal(one["label"], other["label"]) and all(
        torch.equal(one["clips"][view], other["clips"][view]) for view in one["clips"]
    )


def test_a_run_switches_to_the_store_by_one_option(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(root / "config.yaml")
    assert main([config, "--format", "raw"]) == 1  # one is unreadable
    shown = capsys.readouterr()
    assert "unreadable: videos/val" in shown.err
    assert "23 clips packed, 0 packed before, 1 unreadable" in shown.out

    options = load_config(config, STORE).data
    described = describe_videos(options, read_config_splits(options))
    assert described[2:] == [
        "frames per video (store): least 30, median 30, most 30",
        "short side (store): least 36, median 36, most 36 px",
    ]
    videos, stored = train_batches(root), train_batches(root, *STORE)
    assert len(videos) == 3
    assert all(same(one, other) for one, other in zip(videos, stored, strict=True))
    fingerprints = [
        read_config_splits(load_config(config, more).data).fingerprint() for more in ([], STORE)
    ]
    assert fingerprints[0] == fingerprints[1]

    given = load_config(config, [*STORE, "data.on_error=skip"])
    preprocessing = build_preprocessing(given.data)
    tested = build_test_loader(
        given, read_config_splits(given.data), ALONE, frames=[3], preprocessing=preprocessing
    )
    batches = list(tested)
    assert sum(int(batch["ok"].sum()) for batch in batches) == 11
    (reason,) = [reason for batch in batches for reason in batch["skipped"]]
    assert "could not be packed" in reason

    assert main([config, "--format", "raw"]) == 1  # nothing to do; one is still unreadable
    assert "0 clips packed, 23 packed before, 1 unreadable" in capsys.readouterr().out


def test_jpeg_is_the_default_and_gives_the_same_samples_but_for_its_loss(root: Path) -> None:
    main([str(root / "config.yaml"), "data.workers=1"])
    assert ClipStore(root / "store").manifest.format == "jpeg"
    for one, other in zip(train_batches(root), train_batches(root, *STORE), strict=True):
        assert torch.equal(one["index"], other["index"])
        clip, stored = one["clips"][4].double(), other["clips"][4].double()
        error, shuffled = (clip - stored).abs().mean(), (clip - stored.roll(1, 0)).abs().mean()
        assert error > 0
        assert shuffled > 3 * error


def test_order_by_pages_reaches_the_sampler(root: Path) -> None:
    main([str(root / "config.yaml"), "--format", "raw", "--shard-mib", "1"])
    pages = [*STORE, "data.order=pages", "data.page_mib=1", "data.page_window=1"]

    def order(*options: str, size: int = 1) -> list[set[int]]:
        ranks = [train_batches(root, *options, rank=rank, size=size) for rank in range(size)]
        together = zip(*ranks, strict=True)
        return [{int(i) for part in parts for i in part["index"]} for parts in together]

    assert order(*pages) != order(*STORE)
    assert order(*pages) == order(*pages, size=2)
    assert sorted(i for batch in order(*pages) for i in batch) == list(range(12))


def test_store_elsewhere_and_by_address(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    config = str(root / "config.yaml")
    assert main([config, "--format", "raw", f"data.store={tmp_path / 'elsewhere'}"]) == 1
    address = f"data.store=file://{tmp_path / 'elsewhere'}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FFN_HOME", str(tmp_path / "home"))
        stored = train_batches(root, *STORE, address)
    assert all(same(a, b) for a, b in zip(train_batches(root), stored, strict=True))
    assert main([config, address]) == 2  # packs into folders alone


def test_appending_and_checking(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(root / "config.yaml")
    few = "data.train=val.csv"
    assert main([config, few]) == 1
    assert main([config]) == 2
    assert "add them with append (--append)" in capsys.readouterr().err
    assert main([config, "--append"]) == 1
    assert "12 clips packed, 11 packed before" in capsys.readouterr().out
    assert main([config, "--verify"]) == 0
    assert "23 clips, 0 damaged" in capsys.readouterr().out

    shard = root / "store" / "shard-00001.bin"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert main([config, "--verify"]) == 1
    shown = capsys.readouterr()
    assert "23 clips, 1 damaged" in shown.out
    assert "damaged: videos/train" in shown.err


def test_a_hanging_video_times_out_without_loader_processes(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The config has data.workers=0; packing still uses one process."""
    encode = packing.encode_clip

    def hang(record: Record, **options: Any) -> Any:
        if "val_pulse_once" in record.path:
            time.sleep(60)
        return encode(record, **options)

    monkeypatch.setattr(packing, "encode_clip", hang)
    assert main([str(root / "config.yaml"), "--timeout", "1"]) == 1
    shown = capsys.readouterr()
    assert "unreadable: videos/val_pulse_once_0000.mp4: timed out after 1 s" in shown.err
    assert "22 clips packed, 0 packed before, 2 unreadable" in shown.out


def test_all_readable_is_status_0(root: Path) -> None:
    assert main([str(root / "config.yaml"), "data.val=train.csv"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data.rot=x"], "did you mean data.root"),
        (["data.train=none.csv"], "none.csv do not exist"),
        (["--quality", "0"], "quality is 0"),
        *((["--timeout", number], f"timeout is {number};") for number in ("0", "nan", "inf")),
        (["--verify"], "holds no clip store"),
        (["--verify", "--append"], "--verify does not pack, and --append is an option of packing"),
        (["--verify", "--short-side", "9"], "--verify does not pack, and --short-side is an"),
    ],
)
def test_errors_are_one_line(
    root: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(root / "config.yaml"), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("pack.py: ")
    assert message in error


def test_store_of_smaller_frames_is_refused(root: Path) -> None:
    main([str(root / "config.yaml"), "--short-side", "34"])
    with pytest.raises(ConfigError, match=r"short side of 34 px; data\.resize is 36 px"):
        train_batches(root, *STORE)
