"""Contrastive training against its formula, in loops; on several processes; what it saves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from engine_toys import (
    CPU,
    batch,
    build,
    flexible_task,
    in_float64,
    read_log,
    toy_step,
    train,
    weights,
)
from forked import Ranks

import ffn
from ffn.data import Normalize
from ffn.engine import loop
from ffn.engine.config import ConfigError
from ffn.engine.contrastive import ContrastiveTask, features
from ffn.engine.distributed import World
from ffn.engine.freezing import freeze

COUNTS = (2, 4, 8)


def contrastive_task() -> ContrastiveTask:
    """In float64; the embeddings of a video depend on this video only."""
    model = flexible_task(COUNTS).model
    freeze(model, "norms")
    return ContrastiveTask(model, COUNTS, temperature=0.2).double().train()


def nt_xent(one: np.ndarray, two: np.ndarray, temperature: float) -> np.ndarray:
    """Eq. 1 for each embedding: those of one view, then those of the other."""
    z, losses = [*one, *two], []
    for i in range(len(z)):
        j = (i + len(one)) % len(z)
        terms = {k: np.exp(z[i] @ z[k] / temperature) for k in range(len(z)) if k != i}
        losses.append(-np.log(terms[j] / sum(terms.values())))
    return np.array(losses)


def test_loss_is_the_formula() -> None:
    task, videos, z = contrastive_task(), in_float64(batch(COUNTS, size=5)), {}
    first, norm, _, second = task.projection
    for n, clip in videos["clips"].items():
        maps = task.model.forward_features(clip)  # (B, T, C, H, W)
        x = first(maps.mean((1, 3, 4)))
        x = (x - x.mean(0)) / (x.var(0, correction=0) + norm.eps).sqrt()
        rows = second(x.clamp(min=0)).detach().numpy()
        z[n] = rows / np.linalg.norm(rows, axis=1, keepdims=True)

    outputs = task(videos)

    pairs = {(a, b): nt_xent(z[a], z[b], 0.2) for a in COUNTS for b in COUNTS if b != a}
    for a in COUNTS:
        expected = np.mean([pairs[a, b][:5].mean() for b in COUNTS if b != a]) / 3
        assert outputs[f"loss/ntxent_{a}"].item() == pytest.approx(expected, rel=1e-9)
    expected = np.mean([pairs[2, 4], pairs[2, 8], pairs[4, 8]])
    assert outputs["loss"].item() == pytest.approx(expected, rel=1e-9)
    logits = outputs["logits/2"].numpy()  # to the view of 8: the positive, and the negatives
    terms = np.exp(logits)
    assert -np.log(terms[:, 0] / terms.sum(1)) == pytest.approx(pairs[2, 8][:5], rel=1e-9)


def trained(world: World, sizes: tuple[int, ...]) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and parameters of SGD steps; a process has its part of the videos."""
    task, losses = contrastive_task(), []
    step = toy_step(world, task)
    for number in range(3):
        videos = in_float64(batch(COUNTS, size=sum(sizes), seed=number))
        clips = {n: clip.split(sizes)[world.rank] for n, clip in videos["clips"].items()}
        own = {"clips": clips, "label": torch.zeros(sizes[world.rank]), "skipped": []}
        result = step.step([own], number=number, lr=0.1)
        losses.append(result.outputs[0]["loss"].item())
    return losses, {name: p.detach() for name, p in task.named_parameters()}


@pytest.mark.parametrize(
    "sizes", [(4, 4), (5, 3), pytest.param((2, 2, 3, 1), marks=pytest.mark.slow)], ids=str
)
def test_processes_train_on_the_loss_of_all_videos(
    two_ranks: Ranks, tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    """As one process does, also if a process has fewer readable videos."""
    losses, parameters = trained(CPU, (8,))
    ranks = two_ranks if len(sizes) == 2 else Ranks(len(sizes), tmp_path)
    found = ranks.run(trained, sizes)
    if ranks is not two_ranks:
        ranks.close()
    assert np.mean([one for one, _ in found], 0) == pytest.approx(losses, rel=1e-9)
    for _, own in found:
        torch.testing.assert_close(own, parameters, rtol=1e-8, atol=1e-10)


def test_a_training_with_labels_starts_from_the_network_without_projection(
    videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """The linear probe trains a new classifier alone."""
    options = "task.name=contrastive", "data.color_jitter=[1,1,1,0]", "train.group_videos=true"
    run = build(videos, tmp_path / "run", *options)
    assert len({*run.train_loader.sampler.groups}) == len(run.train_loader.dataset)
    task = run.train_step.task
    before = task.projection[0].weight.clone()
    loop.train(run)

    assert not torch.equal(task.projection[0].weight, before)
    normalize, batches = Normalize(run.val_loader.dataset.preprocessing), [*run.val_loader]
    found = read_log(tmp_path / "run", "val")[-1]
    clips = {n: normalize(torch.cat([b["clips"][n] for b in batches])) for n in (2, 3, 4)}
    task.eval()
    z = {n: task.embed(features(task.model, clip)) for n, clip in clips.items()}
    for n, other in ((2, 4), (3, 4), (4, 2)):
        right = [int((z[other] @ row).argmax()) == i for i, row in enumerate(z[n])]
        assert found[f"matched/{n}"] == pytest.approx(100 * np.mean(right))

    saved, network = weights(tmp_path / "run"), ffn.load(tmp_path / "run/last.pt")
    assert saved.keys() == network.state_dict().keys()
    assert (network.record.classes, network.num_classes) == (("unlabelled",), 1)
    start = f"model.weights={tmp_path / 'run/last.pt'}"
    probe = weights(train(videos, tmp_path / "probe", start, "train.freeze=[head_only]"))
    assert "classifier: 1 classes in the weights, 3 in the model" in capsys.readouterr().out
    changed = {key for key, value in saved.items() if not torch.equal(value, probe[key])}
    assert changed == {"net.fc.weight", "net.fc.bias"}


def test_refuses_one_view_and_options_without_effect(videos: Path, tmp_path: Path) -> None:
    unfit = ("train.views=sequential", "train.compile=true", "train.repeated_aug=2")
    one = "task.frames=[8] task.ranges=[[1,12]] task.draws=[[1,4],[5,12]]"
    for option in ("task.frames=[4]", one, "data.test_protocol=1x3", *unfit):
        with pytest.raises(ConfigError, match="contrastive compares"):
            build(videos, tmp_path / "run", "task.name=contrastive", *option.split())
    with pytest.raises(ConfigError, match="forward passes of one video"):
        build(videos, tmp_path / "run", "task.name=contrastive", "train.grad_accum_steps=6")
    with pytest.raises(ConfigError, match="no parameter is left"):
        build(videos, tmp_path / "run", "task.name=contrastive", "train.freeze=[head_only]")
    with pytest.raises(ConfigError, match="need classes; task contrastive"):
        build(videos, tmp_path / "run", "task.name=contrastive", "train.label_smoothing=0.1")
