"""A run that is unlike those that have worked is told so, and one that is like them is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_toys import ROOT
from torch import nn

from ffn.engine import announce, recipe
from ffn.engine.config import load_config

NORMS = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))
CLASSES = ["Pushing left", "Pushing right", "Cleft"]


def said(
    *more: str,
    name: str = "sthv1/tsm_r50",
    clips: int = 8,
    model: nn.Module = NORMS,
    classes: list[str] = CLASSES,
    start: recipe.Start | None = None,
) -> list[str]:
    options = load_config(ROOT / f"configs/{name}.yaml", more)
    return recipe.warnings(options, model, classes, clips_per_norm=clips, start=start)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").rglob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_configs_follow_their_recipes(path: Path) -> None:
    name = str(path.relative_to(ROOT / "configs").with_suffix(""))
    found = said(name=name, classes=["jump", "run", "swim"])
    assert found == []


@pytest.mark.parametrize("family", ["tsm", "tea", "slowfast", "uniformer"])
def test_recipes_are_those_of_the_configs(family: str) -> None:
    (path,) = (ROOT / "configs/sthv1").glob(
        f"{family}_*50.yaml" if family != "uniformer" else "uniformer_s.yaml"
    )
    options = load_config(path)
    known = recipe.RECIPES[family]
    assert known.optimiser == options.optim.name.value
    videos = options.train.batch_size // options.train.repeated_aug
    assert known.lr / known.batch_size == pytest.approx(options.optim.lr / videos)


def test_rate_that_does_not_fit_the_batch() -> None:
    assert said("train.batch_size=128") == []
    (text,) = said("train.batch_size=256")
    assert text == (
        "the learning rate is 0.01 for 256 samples per step; tsm_r50 was published with 0.01 for "
        "32, which is 0.08 for 256: optim.lr=0.01 with optim.base_batch_size=32 scales it"
    )
    assert said("train.batch_size=256", "optim.base_batch_size=32") == []
    assert said("train.batch_size=256", "optim.lr=0.08") == []
    assert len(said("optim.lr=0.5")) == 1
    assert said("optim.name=adamw", "optim.lr=0.001") == []  # another optimiser, another rate


def test_mirror_of_sided_classes() -> None:
    (text,) = said("data.flip=random")
    assert "mirrors clips of 2 classes whose names tell left from right, as 'Pushing left'" in text
    assert said("data.flip=random", classes=["cleft", "bright"]) == []


def test_few_clips_per_norm() -> None:
    (text,) = said(clips=7)
    assert text.startswith("a BatchNorm sees 7 clips at a time; below 8")
    assert said("train.freeze_bn=true", clips=7) == []
    assert said(clips=7, model=nn.LayerNorm(3)) == []


def test_option_without_effect() -> None:
    (text,) = said("train.precise_bn=3", model=nn.LayerNorm(3))
    assert text == "train.precise_bn has no effect: tsm_r50 has no BatchNorm"


def start(**changes: object) -> recipe.Start:
    given = {"name": "best.pt", "share": 1.0, "classes": CLASSES, "new_head": False}
    return recipe.Start(**{**given, **changes})


def test_start_weights() -> None:
    assert said(start=start()) == []
    assert said(start=start(classes=None)) == []
    assert said(start=start(classes=["a", "b"], new_head=True)) == []
    (text,) = said(start=start(share=0.4))
    assert text == "best.pt brought 40% of the parameters; the others start anew"
    (text,) = said(start=start(classes=[*CLASSES[::-1]]))
    assert "the classes have other order than those of best.pt" in text
    assert "2 of 3 differ, the first is class 0, 'Pushing left' here and 'Cleft' there" in text
    (text,) = said(start=start(classes=["a", *CLASSES[1:]]))
    assert "the classes have other names" in text


def test_run_says_it_at_its_start(videos: Path, finished: Path, tmp_path: Path) -> None:
    """Classes in another order than the network that it starts from has them."""
    other = tmp_path / "names.txt"
    other.write_text("right\nleft\nstill\n")
    more = (f"model.weights={finished / 'best.pt'}", f"data.classes={other}", "data.flip=random")
    run = build(videos, tmp_path / "run", *more)

    lines = list(announce.start(trainer))

    warned = [line for line in lines if line.startswith("warning: ")]
    assert len(warned) == 3
    assert "data.flip=random mirrors clips of 2 classes" in warned[0]
    assert "a BatchNorm sees 6 clips" in warned[1]
    assert "2 of 3 differ, the first is class 0, 'right' here and 'left' there" in warned[2]


def test_rate_is_scaled_and_said(videos: Path, tmp_path: Path) -> None:
    more = ("optim.lr=0.02", "optim.base_batch_size=12", "train.epochs=1", "optim.milestones=[]")
    run = build(videos, tmp_path / "run", *more)
    assert any("learning rate 0.01 (0.02 for 12)" in line for line in announce.start(trainer))
    loop.train(run)
    assert {g["lr"] / g["lr_scale"] for g in run.train_step.optimiser.param_groups} == {0.01}
