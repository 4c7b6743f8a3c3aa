"""Configs by name, and devices."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

import ffn
from ffn.cli import configs
from ffn.cli.arguments import find_device
from ffn.engine.distributed import processes

ROOT = Path(__file__).parents[2]
WEIGHTS = "tsm_tiny.motion_f4_8_16"


def run(command: str, *arguments: str) -> int:
    return importlib.import_module(f"ffn.cli.{command}").main(list(arguments))


def test_configs_are_listed_and_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {p.relative_to(ROOT / "configs") for p in (ROOT / "configs").rglob("*.yaml")}

    assert run("configs") == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} == {p.with_suffix("").as_posix() for p in files}
    assert all(len(line.split(maxsplit=1)[1]) > 20 for line in lines)
    assert run("configs", "sthv2/*") == 0
    assert capsys.readouterr().out.startswith("sthv2/tsm_r50  tsm_r50 on Something-Something V2")
    assert run("configs", "own_clips") == 2
    assert "did you mean quickstart/own_clips" in capsys.readouterr().err

    shipped = ROOT / "configs/quickstart/own_clips.yaml"
    for name in (
        "quickstart/own_clips",
        "quickstart/own_clips.yaml",
        "configs/quickstart/own_clips.yaml",
    ):
        assert configs.find_config(name) == shipped
    with pytest.raises(FileNotFoundError, match=r"no config file own_clip, .*quickstart/own_clips"):
        configs.find_config("own_clip")
    own = tmp_path / "quickstart/own_clips.yaml"
    own.parent.mkdir()
    own.touch()
    assert configs.find_config("quickstart/own_clips.yaml") == Path("quickstart/own_clips.yaml")


def test_devices() -> None:
    assert find_device("cpu").type == "cpu"
    assert find_device(None) == find_device("auto")
    with pytest.raises(ValueError, match=r"'cuda:99'; torch finds \d+ CUDA devices\. Use cpu,"):
        find_device("cuda:99")
    with pytest.raises(ValueError, match="--device is 'gpu'; allowed: cpu, cuda"):
        find_device("gpu")
    with pytest.raises(ValueError, match="--device is 'meta'; allowed: cpu, cuda"):
        find_device("meta")
    with pytest.raises(ValueError, match="device is 'cuda:99'; torch finds"):
        ffn.load(WEIGHTS, device="cuda:99")
    with pytest.raises(ValueError, match="device is 'gpu'; allowed: cpu, cuda"):
        ffn.Predictor(WEIGHTS, device="gpu")


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("train", "quickstart/motion_flexible"),
        ("test", f"quickstart/motion_flexible --weights {WEIGHTS}"),
        ("predict", f"a.mp4 --weights {WEIGHTS}"),
        ("find_lr", "quickstart/motion_flexible"),
        ("benchmark", "infer"),
        ("crossvalidate", "quickstart/motion_flexible --annotations a.csv --output cv"),
    ],
)
def test_a_missing_device_takes_one_line(
    command: str, arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command, *arguments.split(), "--device", "cuda:99") == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"{command}.py: --device is 'cuda:99'; torch finds ")


def test_a_process_uses_the_device_of_its_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """With CUDA replaced by a record of what is chosen."""
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("LOCAL_RANK", "3")
    expected = {None: "cuda:3", "cuda": "cuda:3", "cuda:1": "cuda:1", "cpu": "cpu"}
    for name, device in expected.items():
        with processes(device=None if name is None else torch.device(name)) as world:
            assert world.device == torch.device(device)
    assert chosen == [torch.device(name) for name in ("cuda:3", "cuda:3", "cuda:1")]

    monkeypatch.setenv("LOCAL_RANK", "4")
    message = "no CUDA device for process 4, counted from 0: torch finds 4 .*--nproc_per_node=4"
    with pytest.raises(ValueError, match=message), processes():
        pass
