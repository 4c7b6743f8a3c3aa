"""Configs by name, and devices."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ffn.cli import configs, main
from ffn.cli.arguments import find_device
from ffn.engine.distributed import init_distributed

ROOT = Path(__file__).parents[2]


def test_configs_are_listed_and_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {p.relative_to(ROOT / "configs") for p in (ROOT / "configs").rglob("*.yaml")}

    assert main(["configs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} == {p.with_suffix("").as_posix() for p in files}
    assert all(len(line.split(maxsplit=1)[1]) > 20 for line in lines)
    assert main(["configs", "own_clips"]) == 2
    assert "quickstart/own_clips" in capsys.readouterr().err

    name = "quickstart/own_clips.yaml"
    for given in (name, name.removesuffix(".yaml"), f"configs/{name}"):
        assert configs.find_config(given) == ROOT / "configs" / name
    own = tmp_path / name
    own.parent.mkdir()
    own.touch()
    assert configs.find_config(name) == Path(name)


def test_devices() -> None:
    assert find_device("cpu").type == "cpu"
    assert find_device(None) == find_device("auto")
    for absent in ("cuda:99", "gpu", "meta"):
        with pytest.raises(ValueError, match=absent):
            find_device(absent)


def test_a_process_uses_the_device_of_its_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """With CUDA replaced by a record of what is chosen."""
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("LOCAL_RANK", "3")
    expected = {None: "cuda:3", "cuda": "cuda:3", "cuda:1": "cuda:1", "cpu": "cpu"}
    for name, device in expected.items():
        world = init_distributed(device=None if name is None else torch.device(name))
        assert world.device == torch.device(device)
    assert chosen == [torch.device(name) for name in ("cuda:3", "cuda:3", "cuda:1")]

    monkeypatch.setenv("LOCAL_RANK", "4")
    message = "no CUDA device for process 4, counted from 0: torch finds 4 .*--nproc_per_node=4"
    with pytest.raises(ValueError, match=message):
        init_distributed()
