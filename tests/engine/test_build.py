"""Building a run from a config: start weights, start lines, options that do not fit the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from engine_toys import CPU, build, config, train, weights
from torch import nn

from ffn.core import NORMS, extract
from ffn.engine import build_network, loop
from ffn.engine.build import build_train_step
from ffn.engine.build_data import read_config_splits
from ffn.engine.build_network import build_model, build_schedule
from ffn.engine.config import ConfigError
from ffn.engine.task_options import TASK_OPTIONS
from ffn.engine.tasks import TASKS, FlexibleOptions, FlexibleTask
from ffn.zoo import load


def test_run_starts_from_weights(videos: Path, finished: Path, tmp_path: Path) -> None:
    run = build(videos, tmp_path / "run", f"model.weights={finished / 'last.pt'}")

    expected = weights(finished)
    state = run.train_step.model.state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in state.items())
    with run.checkpointer.lock():
        assert run.checkpointer.restore().step == 0
    assert any(line.startswith("start weights ") for line in run.introduction)


def test_a_plain_run_starts_from_the_sub_network_of_its_count(
    videos: Path, finished: Path, tmp_path: Path
) -> None:
    more = ("task.name=plain", "task.frames=[2]", f"model.weights={finished / 'last.pt'}")
    run = build(videos, tmp_path / "run", *more)

    (line,) = [line for line in run.introduction if line.startswith("start weights ")]
    assert "the sub-network of 2 frames, which runs clips of 2 frames" in line
    theirs = extract(load(finished / "last.pt"), 2).state_dict()
    state = run.train_step.model.state_dict()
    assert all(torch.equal(value, theirs[key]) for key, value in state.items())


def test_learning_rate_is_scaled_to_the_batch_and_printed(videos: Path, tmp_path: Path) -> None:
    more = ("optim.lr=0.02", "optim.base_batch_size=12", "train.epochs=1", "optim.milestones=[]")
    run = build(videos, tmp_path / "run", *more)

    assert run.settings[0] == (
        "1 epochs of 4 steps; 6 videos per step = 1 process(es) x 1 micro-batch(es) x 6; "
        "learning rate 0.01 (0.02 for 12), fp32 on cpu"
    )
    assert run.learning_rate(0.5) == pytest.approx(0.01)
    loop.train(run)
    assert {g["lr"] / g["lr_scale"] for g in run.train_step.optimizer.param_groups} == {0.01}


def test_schedule_scales_the_final_rate_too(videos: Path, tmp_path: Path) -> None:
    more = ("optim.schedule=cosine", "optim.lr=0.1", "optim.final_lr=0.01")
    rate = build_schedule(config(videos, tmp_path, *more, "optim.base_batch_size=3"))
    assert [rate(0), rate(1), rate(2)] == pytest.approx([0.2, 0.11, 0.02])


def test_start_lines_have_model_data_and_warnings(
    videos: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """The classes have another order than those of the start weights."""
    other = tmp_path / "names.txt"
    other.write_text("right\nleft\nstill\n")
    more = (f"model.weights={finished / 'best.pt'}", f"data.classes={other}", "data.flip=random")
    train(videos, tmp_path / "run", *more)

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == ("tsm_tiny, task flexible: 24 training and 9 validation videos, 3 classes")
    assert lines[1].startswith("frame-flexible at 2, 4 frames")
    warned = [line for line in lines if line.startswith("warning: ")]
    assert len(warned) == 3
    assert "data.flip=random flips clips of 2 classes" in warned[0]
    assert "BatchNorm takes its statistics over 6 clips" in warned[1]
    assert "2 of 3 differ, the first is class 0, 'right' here and 'left' there" in warned[2]


@pytest.mark.parametrize(("precision", "fast"), [("bf16", False), ("bf16", True), ("fp32", False)])
def test_slow_bf16_is_reported(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, fast: bool
) -> None:
    monkeypatch.setattr("ffn.engine.build_messages.has_bf16", lambda: fast)
    run = build(videos, tmp_path / "run", f"train.precision={precision}")

    found = [line for line in run.settings if "no fast bf16 operators" in line]
    assert len(found) == (precision == "bf16" and not fast)
    assert all(line.endswith("train.precision=fp32 is faster here") for line in found)


def test_train_step_of_a_config_needs_no_run(videos: Path, tmp_path: Path) -> None:
    options = config(videos, tmp_path, "train.freeze=[norms]", "train.views=sequential")
    run = build(videos, tmp_path / "run")
    model = build_model(options, 3)

    step = build_train_step(options, model, run.world, num_classes=3)

    assert step.model is model
    assert step.sequential
    assert model.training
    norms = [m for m in model.modules() if isinstance(m, NORMS)]
    assert norms
    assert not any(m.training or any(p.requires_grad for p in m.parameters()) for m in norms)
    trained = {id(p) for group in step.optimizer.param_groups for p in group["params"]}
    assert not trained & {id(p) for m in norms for p in m.parameters()}


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_fused_steps_are_those_of_the_textbook(videos: Path, tmp_path: Path, name: str) -> None:
    options = [f"optim.name={name}", "optim.groups=standard", "optim.weight_decay=0.1"]
    step = build(videos, tmp_path / "run", *options).train_step
    group = next(g for g in step.optimizer.param_groups if g["weight_decay"])
    weight, lr = group["params"][0], group["lr"]
    w = weight.detach().double()
    first, second = torch.zeros_like(w), torch.zeros_like(w)
    for number in range(1, 4):
        torch.manual_seed(number)
        for parameter in (p for g in step.optimizer.param_groups for p in g["params"]):
            parameter.grad = torch.randn_like(parameter)
        gradient = weight.grad.double()
        if name == "adamw":  # Loshchilov and Hutter, 1711.05101, algorithm 2
            w = w - lr * 0.1 * w
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient**2
            mean, root = first / (1 - 0.9**number), (second / (1 - 0.999**number)).sqrt()
            w = w - lr * mean / (root + 1e-8)
        else:
            first = 0.9 * first + gradient + 0.1 * w
            w = w - lr * first
        step.optimizer.step()
    torch.testing.assert_close(weight.detach().double(), w, rtol=1e-5, atol=1e-6)


def test_splits_of_a_config(videos: Path, tmp_path: Path) -> None:
    options = config(videos, tmp_path).data

    both = read_config_splits(options)
    assert (len(both.train), len(both.val), both.classes) == (24, 9, ["left", "right", "still"])
    tested = read_config_splits(options, with_train=False, classes=["still", "right", "left"])
    assert (tested.train, tested.classes) == ([], ["still", "right", "left"])
    assert [record.label for record in tested.val] == [2 - record.label for record in both.val]


def test_lists_that_cannot_be_trained_on(videos: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"validation videos of .*train\.csv are training videos"):
        build(videos, tmp_path, "data.val=train.csv")


# --- options that do not fit --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["train.batch_size=25"],
            r"batch_size is 25 .*25 videos per step\); there are 24 training videos",
        ),
        (
            ["train.precise_bn=9", "train.grad_accum_steps=2"],
            r"precise_bn is 9; an epoch has 8 micro-batches with train\.grad_accum_steps 2\. Use "
            r"that or less; to resume a run, use its train\.grad_accum_steps",
        ),
    ],
    ids=str,
)
def test_options_that_do_not_fit_the_data_or_the_device(
    videos: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build(videos, tmp_path / "run", *options)


def test_3d_convolutions_do_not_train_in_bf16_on_a_cpu(videos: Path, tmp_path: Path) -> None:
    options = ["model.name=slowfast_tiny", "train.precision=bf16"]
    with pytest.raises(ConfigError, match="bf16"):
        build(videos, tmp_path / "run", *options)


class OddTask(FlexibleTask):
    """Its network needs a conversion that the test sets."""

    given: ClassVar[dict[str, Any]] = {}

    @classmethod
    def conversion(cls, options: FlexibleOptions) -> dict[str, Any]:
        return cls.given


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"private": "norms"}, "expected trained_frames"),
        ({"trained_frames": (2, 4), "frame_dim": 1}, "expected trained_frames, and optionally"),
        ({"trained_frames": (2, 4), "private": lambda name, module: True}, "stores no function"),
        ({"trained_frames": (2, 4), "alter": ["nothing*"]}, r"tsm_tiny cannot be converted.*match"),
    ],
    ids=lambda value: str(value).split(" at 0x")[0],
)
def test_conversion_that_no_checkpoint_can_describe(
    videos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.setitem(TASKS._entries, "odd", OddTask)
    monkeypatch.setitem(TASK_OPTIONS, "odd", OddTask.Options)
    monkeypatch.setattr(OddTask, "given", given)

    with pytest.raises(ConfigError, match=message):
        build(videos, tmp_path / "run", "task.name=odd")


def test_a_network_that_could_not_be_loaded_is_refused(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FFN_MAX_TRAINED_COUNTS", "1")
    message = "checkpoints of this run could not be loaded: 2 trained frame counts; at most 1"
    with pytest.raises(ConfigError, match=message):
        build(videos, tmp_path / "run")


class LearnedTask(FlexibleTask):
    """A loss with a parameter and a buffer of its own."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.temperature = nn.Parameter(torch.ones(()))
        self.register_buffer("weight", torch.ones(3))


def test_parameters_of_a_task_are_refused_unless_frozen(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be neither optimized nor saved."""
    monkeypatch.setitem(TASKS._entries, "learned", LearnedTask)
    monkeypatch.setitem(TASK_OPTIONS, "learned", LearnedTask.Options)
    options = config(videos, tmp_path, "task.name=learned")
    model = build_model(options, 3)
    with pytest.raises(ConfigError, match="task learned has the parameters temperature outside"):
        build_train_step(options, model, CPU, num_classes=3)

    init = LearnedTask.__init__

    def frozen(self: LearnedTask, *given: Any, **more: Any) -> None:
        init(self, *given, **more)
        self.temperature.requires_grad_(False)

    monkeypatch.setattr(LearnedTask, "__init__", frozen)
    moved = []
    monkeypatch.setattr(LearnedTask, "to", lambda self, device: moved.append(device) or self)
    step = build_train_step(options, build_model(options, 3), CPU, num_classes=3)
    assert not step.task.temperature.requires_grad
    assert moved == [CPU.device]  # class weights and the like


def test_model_without_blocks_has_no_activation_checkpointing(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(model: nn.Module) -> int:
        raise ValueError("no blocks")

    monkeypatch.setattr(build_network, "checkpoint_blocks", refuse)
    with pytest.raises(ConfigError, match="tsm_tiny: no blocks"):
        build(videos, tmp_path / "run", "train.activation_checkpointing=true")
