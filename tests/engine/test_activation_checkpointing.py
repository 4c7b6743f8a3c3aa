"""Activation checkpointing: the training step is the same as without."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.distributed as dist
from rank_cases import training_steps
from ranks import Ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ffn import backbones
from ffn.core import FrameFlexible, convert, extract
from ffn.engine.activation_checkpointing import checkpoint_blocks, find_blocks
from ffn.engine.tasks import FlexibleTask
from ffn.engine.train_step import backward_each_view

NO_SCALER = torch.amp.GradScaler("cpu", enabled=False)
COUNTS = (2, 4, 7)
TINY = ("tsm_tiny", "tea_tiny", "slowfast_tiny", "uniformer_tiny")


def network(name: str) -> nn.Module:
    """Return a small network of a family, with dropout and, where supported, drop_path."""
    torch.manual_seed(0)
    if name == "uniformer":
        return backbones.UniFormer(
            3, (1, 2, 1, 1), dims=(8, 8, 16, 16), head_dim=8, patch=2, dropout=0.3, drop_path=0.5
        )
    if name == "uniformer_split":
        return backbones.UniFormer(
            3, (1, 1, 1, 1), dims=(8, 8, 16, 16), head_dim=8, patch=2, split=True, drop_path=0.5
        )
    if name == "slowonly":
        pathway = backbones.slowfast.Pathway(
            8, stem_kernel=1, kernels=(1, 1, 3, 3), depths=(1, 1, 1, 1), pool=False
        )
        return backbones.slowfast.SinglePathway(pathway, 3)
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


KINDS = (*TINY, "uniformer", "uniformer_split", "slowonly", "mobilenet", "resnet")


def task_of(name: str, **options: Any) -> FlexibleTask:
    model = convert(network(name), COUNTS, alter="sites", **options)
    for parameter in model.parameters():  # sub-networks differ; no value is near zero
        if parameter.ndim == 1:
            nn.init.uniform_(parameter, 0.3, 1.2)
    return FlexibleTask(model.double(), COUNTS).train()


def batch_of(side: int = 16) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    clips = {
        t: torch.randn(2, 3, t, side, side, generator=generator, dtype=torch.float64)
        for t in COUNTS
    }
    return {"clips": clips, "label": torch.tensor([0, 2])}


def step(task: nn.Module, batch: dict[str, Any], views: str) -> Tensor:
    torch.manual_seed(5)
    if views == "sequential":
        return backward_each_view(task, batch, 1.0, NO_SCALER, nullcontext())["loss"]
    loss = task(batch)["loss"]
    loss.backward()
    return loss


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


# --- the step -----------------------------------------------------------------------------------


@pytest.mark.parametrize("views", ["together", "sequential"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_step_is_the_same(kind: str, views: str) -> None:
    """Gradients, loss, random numbers afterwards, and statistics that are updated once."""
    task, data = task_of(kind), batch_of(side=32 if kind.startswith("uniformer") else 16)
    other = copy.deepcopy(task)
    before = {name: b.clone() for name, b in task.named_buffers()}
    number = checkpoint_blocks(other.model)

    with counted(other.model) as runs:
        found = step(other, data, views)
    after = torch.rand(3)
    expected = step(task, data, views)

    assert torch.equal(after, torch.rand(3))
    assert torch.equal(found, expected)
    assert_same_step(task, other)
    assert len(runs) == 2 * len(COUNTS) * number, "blocks did not run twice"
    counters = [n for n in before if n.endswith("num_batches_tracked")]
    assert all(task.get_buffer(n) == before[n] + 1 for n in counters)


@pytest.mark.parametrize("private", ["all", "none", "blocks"])
def test_every_choice_of_private_modules(private: str) -> None:
    def blocks(name: str, module: nn.Module) -> bool:
        return name.endswith("layer2.0") or isinstance(module, nn.BatchNorm2d)

    chosen = blocks if private == "blocks" else private
    options = {"private": chosen} | ({"alter": "none"} if private == "none" else {})
    model = convert(network("resnet"), COUNTS, **({"alter": "sites"} | options)).double()
    task, data = FlexibleTask(model, COUNTS).train(), batch_of()
    other = copy.deepcopy(task)

    # A private block has a copy per count.
    assert checkpoint_blocks(other.model) == (4 + len(COUNTS) if private == "blocks" else 5)
    for one in (task, other):
        step(one, data, "together")

    assert_same_step(task, other)


def test_frozen_norms_stay_frozen() -> None:
    task, data = task_of("tsm_tiny"), batch_of()
    norms = [m for m in task.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        nn.init.uniform_(norm.running_mean)
        norm.eval().requires_grad_(False)
    other = copy.deepcopy(task)
    checkpoint_blocks(other.model)

    for one in (task, other):
        step(one, data, "together")

    assert_same_step(task, other)
    assert all(norm.num_batches_tracked == 0 for norm in norms)


class Counting(nn.Module):
    """A module that replaces its buffer by a new tensor in every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        out = x * (1 + self.mean)
        self.mean = self.mean + x.detach().mean()
        return out


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
        lambda: nn.BatchNorm1d(4),
        lambda: nn.BatchNorm1d(4, momentum=None),
        lambda: nn.BatchNorm1d(4, track_running_stats=False),
        lambda: nn.Sequential(
            nn.Unflatten(0, (2, -1)),
            nn.InstanceNorm1d(6, track_running_stats=True),
            nn.Flatten(0, 1),
        ),
        Counting,
        lambda: nn.Dropout(0.5),
    ],
)
def test_buffers_are_updated_once(between: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Block(between()), Block(between()))
    other, x = copy.deepcopy(model), torch.randn(12, 4)
    assert checkpoint_blocks(other) == 2
    identities = [id(buffer) for buffer in other.buffers()]

    losses = []
    for one in (model, other):
        torch.manual_seed(1)
        losses.append(one(x).square().sum())
        if not isinstance(between(), Counting):
            losses[-1].backward()

    assert torch.equal(*losses)
    for a, b in zip(model.buffers(), other.buffers(), strict=True):
        assert torch.equal(a, b)
    if between is not Counting:
        assert identities == [id(buffer) for buffer in other.buffers()]
        for a, b in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)


def test_second_forward_uses_the_count_and_length_of_the_first() -> None:
    """With other forwards in between, and without the hooks on logits; then state is restored."""
    task, data = task_of("tsm_tiny"), batch_of()
    other = copy.deepcopy(task)
    checkpoint_blocks(other.model)
    losses = []
    for one in (task, other):
        torch.manual_seed(2)
        logits = one.model(data["clips"][4])
        logits._backward_hooks.clear()  # they would set count and length
        losses.append(logits.square().sum())
    other.model.eval()(data["clips"][2], active=2)
    other.model.train()
    length = other.model.model.length

    for loss in losses:
        loss.backward()

    assert_same_gradients(task, other)
    assert other.model.active == 2
    assert length.frames == 2


def test_two_backwards_through_one_forward() -> None:
    task, data = task_of("tsm_tiny"), batch_of()
    checkpoint_blocks(task.model)
    loss = task(data)["loss"]

    loss.backward(retain_graph=True)
    once = [p.grad.clone() for p in task.parameters()]
    loss.backward()

    for parameter, gradient in zip(task.parameters(), once, strict=True):
        torch.testing.assert_close(parameter.grad, 2 * gradient, rtol=1e-10, atol=1e-12)


def assert_same_gradients(task: nn.Module, other: nn.Module) -> None:
    pairs = list(zip(task.parameters(), other.parameters(), strict=True))
    assert any(one.grad is not None for one, _ in pairs)
    for one, two in pairs:
        assert (one.grad is None) == (two.grad is None)
        if one.grad is not None:
            torch.testing.assert_close(one.grad, two.grad, rtol=1e-10, atol=1e-12)


def test_a_backward_in_another_thread() -> None:
    """As on a GPU: the length of the clip is stored per thread."""
    task, data = task_of("tea_tiny"), batch_of()
    other = copy.deepcopy(task)
    checkpoint_blocks(other.model)
    torch.manual_seed(2)
    task.model(data["clips"][7]).square().sum().backward()
    torch.manual_seed(2)
    logits = other.model(data["clips"][7])
    logits._backward_hooks.clear()
    errors = []

    def backward() -> None:
        try:
            logits.square().sum().backward()
        except Exception as error:  # threads do not raise in the main thread
            errors.append(error)

    thread = threading.Thread(target=backward)
    thread.start()
    thread.join()

    assert not errors
    assert_same_gradients(task, other)


def test_second_forward_uses_the_autocast_of_the_first() -> None:
    task, data = task_of("tsm_tiny").float(), batch_of()
    data["clips"] = {t: clip.float() for t, clip in data["clips"].items()}
    other = copy.deepcopy(task)
    checkpoint_blocks(other.model)

    for one in (task, other):
        torch.manual_seed(2)
        autocast = torch.autocast("cpu", torch.bfloat16)
        backward_each_view(one, data, 1.0, NO_SCALER, autocast)

    for one, two in zip(task.parameters(), other.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)


@pytest.mark.parametrize("mode", ["eval", "no_grad"])
def test_blocks_run_once_without_backward(mode: str) -> None:
    task, data = task_of("tsm_tiny"), batch_of()
    checkpoint_blocks(task.model)
    task.train(mode != "eval")
    torch.set_grad_enabled(mode != "no_grad")
    try:
        with counted(task.model) as runs:
            loss = task(data)["loss"]
            if mode == "eval":
                loss.backward()
    finally:
        torch.set_grad_enabled(True)

    assert len(runs) == len(COUNTS) * 4


# --- other properties of a network --------------------------------------------------------------


def test_keys_copies_and_extraction_do_not_change() -> None:
    model, data = task_of("resnet").model, batch_of()
    keys, text = list(model.state_dict()), repr(model)
    state = copy.deepcopy(model.state_dict())
    expected = model.eval()(data["clips"][4])

    assert checkpoint_blocks(model) == checkpoint_blocks(model) == 5

    assert list(model.state_dict()) == keys
    assert repr(model) == text
    copied = copy.deepcopy(model)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    assert torch.equal(copied(data["clips"][4]), expected), "a copy must use its own weights"
    model.load_state_dict(state)
    assert torch.equal(model(data["clips"][4]), expected)
    assert torch.equal(extract(model, 4)(data["clips"][4]), expected)
    block = model.model.net.layer1[0]
    assert isinstance(block, timm.models.resnet.Bottleneck)


@pytest.mark.filterwarnings("ignore:.*broadcast_buffers:FutureWarning")
@pytest.mark.parametrize("options", [{}, {"static_graph": True}, {"broadcast_buffers": True}])
def test_gradients_of_ddp(options: dict[str, bool], tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        task, data = task_of("tsm_tiny"), batch_of()
        other = copy.deepcopy(task)
        checkpoint_blocks(other.model)
        wrapped = DistributedDataParallel(other, **({"broadcast_buffers": False} | options))

        for _ in range(2):
            task.zero_grad(set_to_none=True)
            wrapped.zero_grad(set_to_none=True)
            step(task, data, "together")
            step(wrapped, data, "together")

        assert_same_step(task, other)
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("views", ["together", "sequential"])
def test_two_processes_with_synchronized_norms(two_ranks: Ranks, views: str) -> None:
    """Norms synchronize in the second forward, too."""
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
        ("resnetv2_50", "PreActBottleneck", 16),
        ("vit_tiny_patch16_224", "Block", 12),
        ("swin_tiny_patch4_window7_224", "SwinTransformerBlock", 2 + 2 + 6 + 2),
        ("efficientnet_b0", ("DepthwiseSeparableConv", "InvertedResidual"), 16),
    ],
)
def test_blocks_of_timm_models(name: str, kind: str | tuple[str, ...], number: int) -> None:
    blocks = find_blocks(timm.create_model(name))

    assert {type(block).__name__ for block in blocks.values()} == set(
        (kind,) if isinstance(kind, str) else kind
    )
    assert len(blocks) == number


def test_a_block_with_a_gate_counts_as_one() -> None:
    """In torchvision the gate, two convolutions, is inside an nn.Sequential of the block."""
    from torchvision.models import mobilenet_v3_large

    with torch.device("meta"):
        blocks = find_blocks(mobilenet_v3_large())

    assert {type(block).__name__ for block in blocks.values()} == {"InvertedResidual"}
    assert len(blocks) == 15


def test_custom_network_with_keyword_arguments() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block(nn.Dropout(0.5)) for _ in range(3))

        def forward(self, clip: Tensor) -> Tensor:
            x = clip.mean((2, 3, 4))
            for block in self.blocks:
                x = block(x, scale=0.5)
            return x

    torch.manual_seed(0)
    model = FrameFlexible(Net(), (2, 4)).train()
    other = copy.deepcopy(model)
    assert checkpoint_blocks(other) == 3
    clip = torch.randn(2, 4, 3, 2, 2)

    for one in (model, other):
        torch.manual_seed(1)
        one(clip).square().sum().backward()

    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


# --- refusals -----------------------------------------------------------------------------------


def test_a_network_without_blocks() -> None:
    with pytest.raises(ValueError, match="Sequential has no blocks: no child of an "):
        checkpoint_blocks(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)))


@pytest.mark.parametrize("when", ["inside", "after"])
def test_inputs_changed_in_place_are_refused(when: str) -> None:
    """The second forward would use other values, and gradients would be wrong."""
    model = nn.Sequential(Block(nn.Identity()))
    checkpoint_blocks(model)
    x = torch.randn(2, 4).requires_grad_() * 1
    if when == "inside":
        model[0].one.register_forward_pre_hook(lambda module, args: (args[0].add_(1),))
    out = model(x).sum()
    if when == "after":
        with torch.no_grad():
            x += 1

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()
