"""Building a run from a config: start weights, start lines, options that do not fit the data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from engine_toys import build, weights
from torch import nn

from ffn.core import extract
from ffn.engine import build_network
from ffn.engine.build import numbered_folder
from ffn.engine.build_network import build_model
from ffn.engine.config import ConfigError, load_config
from ffn.engine.distributed import World
from ffn.engine.tasks import FlexibleTask
from ffn.zoo import load


def test_a_run_starts_from_weights_and_a_plain_one_from_the_sub_network_of_its_count(
    videos: Path, finished: Path, tmp_path: Path
) -> None:
    start = f"model.weights={finished / 'last.pt'}"
    run = build(videos, tmp_path / "run", start)
    assert same(run.train_step.model, weights(finished))
    run.folder.mkdir()
    assert run.checkpointer.restore().step == 0

    plain = build(videos, tmp_path / "plain", "task.name=plain", "task.frames=[2]", start)
    assert same(plain.train_step.model, extract(load(finished / "last.pt"), 2).state_dict())
    (line,) = [line for line in plain.introduction if line.startswith("start weights ")]
    assert "the sub-network of 2 frames, which runs clips of 2 frames" in line


def same(model: nn.Module, expected: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, expected[key]) for key, value in model.state_dict().items())


def test_folders_without_a_name_are_numbered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    short, long, other = (
        load_config(None, [f"train.epochs={epochs}", f"optim.lr={lr}"])
        for epochs, lr in ((1, 0.1), (2, 0.1), (1, 0.2))
    )
    Path("runs/tsm/test").mkdir(parents=True)  # results of a test, and no run
    assert numbered_folder(short, "tsm") == "runs/tsm"
    Path("runs/tsm/config.yaml").write_text(yaml.safe_dump(short.model_dump()))
    assert numbered_folder(short, "tsm") == numbered_folder(long, "tsm") == "runs/tsm"
    assert numbered_folder(other, "tsm") == "runs/tsm_2"
    Path("runs/tsm_2").mkdir()
    Path("runs/tsm_2/config.yaml").write_text("- of another program")
    assert numbered_folder(other, "tsm") == "runs/tsm_3"


def test_learning_rate_is_scaled_to_the_batch(videos: Path, tmp_path: Path) -> None:
    more = ("optim.lr=0.02", "optim.base_batch_size=12", "optim.schedule=cosine")
    run = build(videos, tmp_path / "run", *more, "optim.final_lr=0.01")
    assert "learning rate 0.01 (0.02 for 12), fp32 on cpu" in run.introduction[-1]
    rates = [run.learning_rate(epoch) for epoch in (0, 1, 2)]
    assert rates == pytest.approx([0.01, 0.0075, 0.005])


def test_start_lines_have_model_data_and_warnings(
    videos: Path, finished: Path, tmp_path: Path
) -> None:
    """The classes have another order than those of the start weights."""
    other = tmp_path / "names.txt"
    other.write_text("right\nleft\nstill\n")
    more = (f"model.weights={finished / 'best.pt'}", f"data.classes={other}", "data.flip=random")
    run = build(videos, tmp_path / "run", *more)

    assert "24 training and 9 validation videos, 3 classes" in run.introduction[0]
    warned = [line for line in run.introduction if line.startswith("warning: ")]
    assert len(warned) == 2
    assert "data.flip=random flips clips of 2 classes" in warned[0]
    assert "2 of 3 differ, the first is class 0, 'right' here and 'left' there" in warned[1]


# --- options that do not fit --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["train.batch_size=25"], "batch_size is 25"),
        (["train.batch_size=10", "train.grad_accum_steps=4"], "Use 8 or 12"),
        (["model.name=slowfast_tiny", "train.precision=bf16"], "bf16"),
        (["data.val=train.csv"], r"data\.val"),
    ],
)
def test_options_that_do_not_fit_the_data_or_the_device(
    videos: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(videos, tmp_path / "run", *options)


def test_synchronized_norms() -> None:
    """They need CUDA; conversion keeps the parameters and their names, private ones included."""
    options = load_config(None, ["model.name=tsm_tiny", "train.sync_bn=true"])
    with pytest.raises(ConfigError, match="needs CUDA"):
        build_network.build_started_model(options, 3, World(0, 2, torch.device("cpu")))
    model = build_model(options, 3)
    before, parameters = list(model.state_dict()), dict(model.named_parameters())
    model = build_network.convert_sync_batchnorm(model)
    assert list(model.state_dict()) == before
    assert all(value is parameters[name] for name, value in model.named_parameters())
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert {type(norm) for norm in norms} == {nn.SyncBatchNorm}


def test_networks_that_could_not_be_saved_or_loaded_are_refused(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function in a conversion, a pattern without a match, many counts."""
    counts = {"trained_frames": (2, 4)}
    for given in (
        {"private": "norms"},
        {**counts, "private": lambda name, module: True},
        {**counts, "alter": ["nothing*"]},
    ):
        with monkeypatch.context() as patch:
            patch.setattr(FlexibleTask, "conversion", lambda options, given=given: given)
            with pytest.raises(ConfigError, match="task flexible"):
                build(videos, tmp_path / "run")
    monkeypatch.setenv("FFN_MAX_TRAINED_COUNTS", "1")
    with pytest.raises(ConfigError, match="2 trained frame counts; at most 1"):
        build(videos, tmp_path / "run")
