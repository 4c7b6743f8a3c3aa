"""Class weights: their formulas, and runs with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engine_toys import CLASSES, build, read_log, train

from ffn.engine import loop
from ffn.engine.build_data import class_weights

LABELS = [[0]] * 8 + [[1]] * 4 + [[2]] * 2
SEVERAL = [[0, 1], [0, 2], [2], *[[0]] * 4, *[[]] * 5]  # 12 videos


def test_one_label_per_video() -> None:
    """``n / (K n_c)``, as scikit-learn has it; square roots are scaled to the same mean."""
    assert class_weights(LABELS, 3).tolist() == pytest.approx([14 / 24, 14 / 12, 14 / 6])
    roots = np.sqrt([14 / 24, 14 / 12, 14 / 6])
    scaled = roots * 14 / (roots * [8, 4, 2]).sum()
    assert class_weights(LABELS, 3, power=0.5).tolist() == pytest.approx(scaled)
    swapped = class_weights(LABELS, 3, swapped=[[0, 1]])  # 6 videos of each
    assert swapped.tolist() == pytest.approx([14 / 18, 14 / 18, 14 / 6])
    assert class_weights([[0]] * 7 + [[2]] * 2, 3).tolist() == pytest.approx([9 / 14, 0, 9 / 4])


def test_several_labels_per_video() -> None:
    """``(n - n_c) / n_c``."""
    assert class_weights(SEVERAL, 3, multi_label=True).tolist() == pytest.approx([1, 11, 5])
    roots = class_weights(SEVERAL, 3, multi_label=True, power=0.5)
    assert roots.tolist() == pytest.approx([1, 11**0.5, 5**0.5])


def test_run_with_weights_resumes(videos: Path, tmp_path: Path) -> None:
    """8 videos of the first class, 4 of the second, 2 of the third."""
    lines = ["path,label"]
    for number, (name, videos_of_it) in enumerate(zip(CLASSES, (8, 4, 2), strict=True)):
        lines += [f"{videos}/train_{3 * i + number}.mp4,{name}" for i in range(videos_of_it)]
    (tmp_path / "train.csv").write_text("\n".join(lines))
    val = (videos / "val.csv").read_text().replace("val_", f"{videos}/val_")
    (tmp_path / "val.csv").write_text(val)
    weighted = ("train.class_weights=balanced", "train.batch_size=14", "model.dropout=0")

    run = build(tmp_path, tmp_path / "run", *weighted)
    loop.train(run)
    plain = train(tmp_path, tmp_path / "plain", *weighted[1:])
    first, other = (read_log(folder)[0] for folder in (run.folder, plain))
    assert first["loss/ce_4"] != pytest.approx(other["loss/ce_4"], rel=1e-4)

    again = build(tmp_path, tmp_path / "run", *weighted)
    assert again.checkpointer.restore().epoch == 2
    assert not any("class_weights" in key for key in run.train_step.model.state_dict())
