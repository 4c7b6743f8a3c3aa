"""Warnings about settings that differ from published recipes."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_toys import ROOT, build
from torch import nn

from ffn.engine import recipe
from ffn.engine.build_network import scaled_learning_rate
from ffn.engine.config import load_config
from ffn.engine.freezing import freeze
from ffn.engine.options import Config

NORMS = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
CLASSES = ["Pushing left", "Pushing right", "Cleft"]


def rate_warnings(options: Config) -> list[str]:
    train = options.train
    rate = scaled_learning_rate(options)
    name, optimizer = options.model.name, options.optim.name
    tuned = options.model.weights is not None
    return [
        *recipe.learning_rate_warnings(name, optimizer, rate, train.batch_size, fine_tuning=tuned)
    ]


@pytest.mark.parametrize("path", sorted((ROOT / "configs").rglob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_configs_give_no_warnings(path: Path) -> None:
    options = load_config(path)

    assert rate_warnings(options) == []
    if options.data.flip == "random":
        assert not list(recipe.flip_warnings(["jump", "run", "swim"]))
    bn = {key: getattr(options.train, key) for key in ("sync_bn", "precise_bn")}
    assert not list(recipe.batch_norm_warnings(NORMS, clips=8, **bn))


@pytest.mark.parametrize("family", ["tsm", "tea", "slowfast", "uniformer"])
def test_recipes_are_those_of_the_configs(family: str) -> None:
    name = "uniformer_s.yaml" if family == "uniformer" else f"{family}_*50.yaml"
    (path,) = (ROOT / "configs/sthv1").glob(name)
    options = load_config(path)
    known = recipe.RECIPES[family]
    assert known.optimizer == options.optim.name
    videos = options.train.batch_size // options.train.repeated_aug
    assert known.lr / known.batch_size == pytest.approx(options.optim.lr / videos)


def test_learning_rate_that_does_not_fit_the_batch() -> None:
    def warnings(lr: float, batch_size: int, name: str = "tsm_r50", by: str = "sgd") -> list[str]:
        return [*recipe.learning_rate_warnings(name, by, lr, batch_size)]

    assert warnings(0.01, 128) == []  # within a factor of 4
    (text,) = warnings(0.01, 256)
    assert text == (
        "the learning rate is 0.01 for 256 samples per step; the published one of tsm_r50 is 0.01 "
        "for 32, or 0.08 for 256. optim.lr=0.01 with optim.base_batch_size=32 scales it"
    )
    assert warnings(0.08, 256) == []
    assert len(warnings(0.5, 32)) == 1
    assert warnings(0.001, 32, by="adamw") == []  # there is no published rate
    assert warnings(0.5, 32, name="mine_r50") == []
    assert warnings(0.5, 32, name="tsm_tiny") == []
    assert len(warnings(0.5, 32, name="tsm.resnet34")) == 1


def test_lower_learning_rate_of_fine_tuning() -> None:
    def warnings(lr: float, fine_tuning: bool) -> list[str]:
        given = {"fine_tuning": fine_tuning}
        return [*recipe.learning_rate_warnings("tsm_r50", "sgd", lr, 32, **given)]

    assert [len(warnings(lr, False)) for lr in (0.001, 0.01, 0.1)] == [1, 0, 1]
    assert [len(warnings(lr, True)) for lr in (0.001, 0.01, 0.1)] == [0, 0, 1]


def test_learning_rate_scaled_by_the_config() -> None:
    def warnings(*more: str) -> list[str]:
        return rate_warnings(load_config(ROOT / "configs/sthv1/tsm_r50.yaml", more))

    assert len(warnings("train.batch_size=256")) == 1
    assert warnings("train.batch_size=256", "optim.base_batch_size=32") == []


def test_random_flip_of_classes_with_sides() -> None:
    (text,) = recipe.flip_warnings(CLASSES)
    assert "flips clips of 2 classes with left or right in their names, e.g. 'Pushing left'" in text
    assert list(recipe.flip_warnings(["cleft", "bright"])) == []


def test_few_clips_for_batch_norm() -> None:
    (text,) = recipe.batch_norm_warnings(NORMS, clips=7)
    assert text.startswith("BatchNorm takes its statistics over 7 clips; below 8")
    assert list(recipe.batch_norm_warnings(NORMS, clips=8)) == []
    assert list(recipe.batch_norm_warnings(NORMS, clips=7, freeze_bn=True)) == []
    assert list(recipe.batch_norm_warnings(nn.LayerNorm(3), clips=7)) == []


@pytest.mark.parametrize(("name", "value"), [("precise_bn", 3), ("sync_bn", True)])
def test_batch_norm_option_without_effect(name: str, value: int) -> None:
    given = {"clips": 8, name: value}
    (text,) = recipe.batch_norm_warnings(nn.LayerNorm(3), **given)
    assert text == f"train.{name} has no effect: the model has no BatchNorm"
    assert list(recipe.batch_norm_warnings(NORMS, **given)) == []


def test_exact_statistics_of_frozen_norms() -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.BatchNorm2d(3))
    freeze(model, ["1"])
    assert list(recipe.batch_norm_warnings(model, clips=8, precise_bn=2)) == []
    freeze(model, ["2"])
    (text,) = recipe.batch_norm_warnings(model, clips=8, precise_bn=2)
    assert text == "train.precise_bn has no effect: all BatchNorms are frozen"


def test_warm_up_that_does_not_end() -> None:
    assert list(recipe.warmup_warnings(2, 3)) == []
    (text,) = recipe.warmup_warnings(2, 2)
    assert text.startswith("optim.warmup_epochs is 2 and train.epochs is 2: the whole run")


def test_mixing_a_single_video() -> None:
    assert list(recipe.mix_warnings(2, mixup=0.8, cutmix=1.0)) == []
    (text,) = recipe.mix_warnings(1, mixup=0.0, cutmix=1.0)
    assert text.startswith("train.cutmix has no effect")


def test_start_weights() -> None:
    def warnings(share: float = 1.0, start: list[str] | None = CLASSES) -> list[str]:
        return [
            *recipe.start_weight_warnings(
                "best.pt", share=share, start_classes=start, classes=CLASSES
            )
        ]

    assert warnings() == []
    assert warnings(start=None) == []
    (text,) = warnings(share=0.4)
    assert text == "best.pt contains 40% of the parameters; the others are initialized"
    (text,) = warnings(start=CLASSES[::-1])
    assert "the order of the classes differs from that of best.pt" in text
    assert "2 of 3 differ, the first is class 0, 'Pushing left' here and 'Cleft' there" in text
    (text,) = warnings(start=["a", *CLASSES[1:]])
    assert "the names of the classes differ" in text


def test_folded_norms_are_reported() -> None:
    folded = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    (text,) = recipe.folded_norm_warnings("image.safetensors", folded)
    assert text.startswith("all BatchNorms of image.safetensors have mean 0 and variance 1")
    assert "train.freeze=[norms]" in text

    trained = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
    trained[1].running_mean[1] = 0.5
    for network in (trained, folded.eval(), nn.Conv2d(3, 3, 1)):  # frozen norms stay as they are
        assert not list(recipe.folded_norm_warnings("image", network))


@pytest.mark.parametrize(
    ("threads", "processes", "cores", "advice"),
    [(2, 2, 2, 1), (8, 4, 16, 4), (3, 4, 2, 1), (1, 2, 2, None), (8, 1, 2, None), (4, 4, 16, None)],
)
def test_more_threads_than_cores(
    threads: int, processes: int, cores: int, advice: int | None
) -> None:
    found = [*recipe.thread_warnings(threads, processes, cores)]
    assert len(found) == (advice is not None)
    if advice:
        assert found[0].endswith(f"start with OMP_NUM_THREADS={advice}")


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        ((), []),
        (["schedule=cosine", "final_lr=1e-5"], []),
        (["schedule=cosine", "milestones=[3]"], ["optim.milestones has no effect with optim.sch"]),
        (["schedule=cosine", "gamma=0.5"], ["optim.gamma has no effect with optim.schedule=cosi"]),
        (["final_lr=1e-5"], ["optim.final_lr has no effect with optim.schedule=step"]),
        (["name=adamw", "momentum=0.5"], ["optim.momentum has no effect with optim.name=adamw"]),
        (["layer_decay=0.5"], []),
        (["milestones=[50,60]"], ["optim.milestones is [50.0, 60.0] and train.epochs is 50"]),
        (["milestones=[]"], ["optim.milestones is [] and train.epochs is 50"]),
    ],
)
def test_options_of_the_optimizer_without_effect(
    videos: Path, tmp_path: Path, given: list[str], warned: list[str]
) -> None:
    defaults = ["schedule=step", "milestones=[20,40]", "final_lr=0", "name=sgd", "momentum=0.9"]
    options = [f"optim.{option}" for option in (*defaults, *given)]
    for more in ([], ["train.freeze=[head_only]"]):
        run = build(videos, tmp_path / f"run{len(more)}", *options, "train.epochs=50", *more)
        lines = [line for line in run.settings if line.startswith("warning: optim.")]
        expected = [
            *warned,
            *["optim.layer_decay has no"] * ("layer_decay=0.5" in given and bool(more)),
        ]
        assert len(lines) == len(expected)
        for line, start in zip(lines, expected, strict=True):
            assert line.startswith(f"warning: {start}")
