"""Activation checkpointing: the training step is the same as without."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.distributed as dist
from engine_toys import backward, batch
from rank_cases import training_steps
from ranks import Ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ffn import backbones
from ffn.core import convert, extract
from ffn.engine.activation_checkpointing import checkpoint_blocks, find_blocks
from ffn.engine.tasks import FlexibleTask

COUNTS = (2, 4, 7)
TINY = ("tsm_tiny", "tea_tiny", "slowfast_tiny", "uniformer_tiny")


def network(name: str) -> nn.Module:
    """Return a small network of a family, with dropout and, where supported, drop_path."""
    torch.manual_seed(0)
    if name == "uniformer":
        return backbones.UniFormer(
            3, (1, 2, 1, 1), dims=(8, 8, 16, 16), head_dim=8, patch=2, dropout=0.3, drop_path=0.5
        )
    if name == "mobilenet":
        name = "tsm.mobilenetv3_small_050"
        return backbones.build(name, num_classes=3, drop_path=0.5, dropout=0.3)
    if name == "resnet":  # timm's drop_path, and a stage with two blocks
        layers, channels = (2, 1, 1, 1), (8, 16, 16, 16)
        net = timm.models.resnet.ResNet(
            timm.models.resnet.Bottleneck,
            layers,
            num_classes=3,
            channels=channels,
            stem_type="deep",
            stem_width=4,
            drop_path_rate=0.5,
            zero_init_last=False,
        )
        return backbones.TSM(net)
    return backbones.build(name, num_classes=3, width=8, dropout=0.3)


KINDS = (*TINY, "uniformer", "mobilenet", "resnet")


def task_of(name: str, **options: Any) -> FlexibleTask:
    model = convert(network(name), COUNTS, alter="sites", **options)
    for parameter in model.parameters():  # sub-networks differ; no value is near zero
        if parameter.ndim == 1:
            nn.init.uniform_(parameter, 0.3, 1.2)
    return FlexibleTask(model.double(), COUNTS).train()


def assert_same_step(task: nn.Module, other: nn.Module) -> None:
    """Compare gradients, to 1e-10 of the largest, and buffers, bit for bit."""
    expected = dict(task.named_parameters())
    largest = max(float(p.grad.abs().max()) for p in expected.values() if p.grad is not None)
    assert largest > 0
    for name, parameter in other.named_parameters():
        one, two = expected[name].grad, parameter.grad
        assert (one is None) == (two is None), name
        if one is not None:
            assert (one - two).abs().max() <= 1e-10 * largest, name
    buffers = dict(task.named_buffers())
    for name, buffer in other.named_buffers():
        assert torch.equal(buffer, buffers[name]), name


@contextmanager
def counted(model: nn.Module) -> Iterator[list[str]]:
    """Record the name of a block each time that its first layer runs."""
    runs: list[str] = []
    handles = []
    for name, block in find_blocks(model).items():
        first = next(m for m in block.modules() if isinstance(m, nn.modules.conv._ConvNd))
        handles.append(first.register_forward_pre_hook(lambda *_, name=name: runs.append(name)))
    yield runs
    for handle in handles:
        handle.remove()


def batch_of(side: int = 16) -> dict[str, Any]:
    data = batch(COUNTS, size=2, side=side)
    return {**data, "clips": {t: clip.double() for t, clip in data["clips"].items()}}


# --- the step -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "views"), [*((kind, "together") for kind in KINDS), ("resnet", "sequential")]
)
def test_the_step_is_the_same(kind: str, views: str) -> None:
    """Gradients, loss, random numbers afterwards, and statistics that are updated once."""
    task, data = task_of(kind), batch_of(side=32 if kind.startswith("uniformer") else 16)
    other = copy.deepcopy(task)
    before = {name: b.clone() for name, b in task.named_buffers()}
    number = checkpoint_blocks(other.model)

    losses, after = [], []
    with counted(other.model) as runs:
        for one in (task, other):
            torch.manual_seed(5)
            losses.append(backward(one, data, views)["loss"])
            after.append(torch.rand(3))

    assert torch.equal(*losses)
    assert torch.equal(*after)
    assert_same_step(task, other)
    assert len(runs) == 2 * len(COUNTS) * number, "blocks did not run twice"
    counters = [n for n in before if n.endswith("num_batches_tracked")]
    assert all(task.get_buffer(n) == before[n] + 1 for n in counters)


@pytest.mark.parametrize("private", ["all", "blocks"])
def test_private_blocks(private: str) -> None:
    def blocks(name: str, module: nn.Module) -> bool:
        return name.endswith("layer2.0") or isinstance(module, nn.BatchNorm2d)

    task = task_of("resnet", private=blocks if private == "blocks" else private)
    other, data = copy.deepcopy(task), batch_of()

    # A private block has a copy per count.
    assert checkpoint_blocks(other.model) == (4 + len(COUNTS) if private == "blocks" else 5)
    for one in (task, other):
        torch.manual_seed(5)
        backward(one, data)

    assert_same_step(task, other)


class Block(nn.Module):
    """Two linear layers with a given module between them."""

    def __init__(self, between: nn.Module) -> None:
        super().__init__()
        self.one, self.between, self.two = nn.Linear(4, 4), between, nn.Linear(4, 4)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        return x + scale * self.two(self.between(self.one(x)))


@pytest.mark.parametrize(
    "between",
    [
        nn.BatchNorm1d(4, momentum=None),
        nn.BatchNorm1d(4).eval(),  # frozen
        nn.BatchNorm1d(4, track_running_stats=False),
        nn.Dropout(0.5),
    ],
)
def test_blocks_of_any_network(between: nn.Module) -> None:
    torch.manual_seed(0)
    model = nn.ModuleList(Block(copy.deepcopy(between)) for _ in range(2))
    other, x = copy.deepcopy(model), torch.randn(12, 4)
    assert checkpoint_blocks(other) == 2
    identities = [id(buffer) for buffer in other.buffers()]

    for one in (model, other):
        torch.manual_seed(1)
        one[1](one[0](x, scale=0.5)).square().sum().backward()

    assert_same_step(model, other)
    assert identities == [id(buffer) for buffer in other.buffers()]


def test_a_backward_in_another_thread() -> None:
    """As on a GPU: count and length of the clip are stored per thread."""
    task, data = task_of("tea_tiny"), batch_of()
    other = copy.deepcopy(task)
    checkpoint_blocks(other.model)
    losses = []
    for one in (task, other):
        torch.manual_seed(2)
        losses.append(one(data)["loss"])
    losses[0].backward()

    thread = threading.Thread(target=losses[1].backward)
    thread.start()
    thread.join()

    assert_same_step(task, other)


@pytest.mark.parametrize("mode", ["eval", "no_grad"])
def test_blocks_run_once_without_backward(mode: str) -> None:
    task, data = task_of("tsm_tiny"), batch_of()
    checkpoint_blocks(task.model)
    task.train(mode != "eval")

    with counted(task.model) as runs, torch.set_grad_enabled(mode != "no_grad"):
        loss = task(data)["loss"]
        if mode == "eval":
            loss.backward()

    assert len(runs) == len(COUNTS) * 4


def test_keys_copies_and_extraction_do_not_change() -> None:
    model, clip = task_of("resnet").model, batch_of()["clips"][4]
    keys, text = list(model.state_dict()), repr(model)
    expected = model.eval()(clip)

    assert checkpoint_blocks(model) == 5

    assert list(model.state_dict()) == keys
    assert repr(model) == text
    assert torch.equal(extract(model, 4)(clip), expected)
    copied = copy.deepcopy(model)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    assert torch.equal(copied(clip), expected), "a copy must use its own weights"


@pytest.mark.filterwarnings("ignore:.*broadcast_buffers:FutureWarning")
def test_gradients_of_ddp(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        task, data = task_of("tsm_tiny"), batch_of()
        other = copy.deepcopy(task)
        checkpoint_blocks(other.model)
        wrapped = DistributedDataParallel(other, broadcast_buffers=False)

        for one in (task, wrapped):
            torch.manual_seed(5)
            backward(one, data)

        assert_same_step(task, other)
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes(two_ranks: Ranks) -> None:
    views = "together"
    expected = two_ranks.run(training_steps, views, torch.float64, 3)
    found = two_ranks.run(training_steps, views, torch.float64, 3, True)

    for one, two in zip(expected, found, strict=True):
        assert one["losses"] == [pytest.approx(losses, rel=1e-10) for losses in two["losses"]]
        for key, value in one["state"].items():
            torch.testing.assert_close(two["state"][key], value, rtol=1e-10, atol=1e-10)


# --- the blocks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", backbones.model_names())
def test_blocks_of_every_backbone(name: str) -> None:
    """Block counts of the papers; twice as many for two pathways."""
    with torch.device("meta"):
        model = backbones.build(name)
    residual = {"r18": 2 + 2 + 2 + 2, "r50": 3 + 4 + 6 + 3, "r101": 3 + 4 + 23 + 3, "tiny": 4}
    residual |= {"mobilenetv2": 1 + 2 + 3 + 4 + 3 + 3 + 1, "s": 3 + 4 + 8 + 3, "b": 5 + 8 + 20 + 7}
    expected = residual[name.split("_")[1]] * (2 if name.startswith("slowfast") else 1)

    blocks = find_blocks(model)

    assert len(blocks) == expected
    layers = {
        id(m)
        for block in blocks.values()
        for m in block.modules()
        if isinstance(m, nn.modules.conv._ConvNd)
    }
    total = sum(isinstance(m, nn.modules.conv._ConvNd) for m in model.modules())
    assert total - len(layers) <= 12, "a part of the network was missed"  # stems, fusions, last


@pytest.mark.parametrize(
    ("name", "kind", "number"),
    [
        ("regnety_004", "Bottleneck", 1 + 3 + 6 + 6),
        ("convnext_atto", "ConvNeXtBlock", 2 + 2 + 6 + 2),
        ("swin_tiny_patch4_window7_224", "SwinTransformerBlock", 2 + 2 + 6 + 2),
    ],
)
def test_blocks_of_timm_models(name: str, kind: str, number: int) -> None:
    blocks = find_blocks(timm.create_model(name))

    assert {type(block).__name__ for block in blocks.values()} == {kind}
    assert len(blocks) == number


def test_a_block_with_a_gate_counts_as_one() -> None:
    """In torchvision the gate, two convolutions, is inside an nn.Sequential of the block."""
    from torchvision.models import mobilenet_v3_large

    with torch.device("meta"):
        blocks = find_blocks(mobilenet_v3_large())

    assert {type(block).__name__ for block in blocks.values()} == {"InvertedResidual"}
    assert len(blocks) == 15


def test_a_network_without_blocks() -> None:
    with pytest.raises(ValueError, match="Sequential has no blocks: no child of an "):
        checkpoint_blocks(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)))
