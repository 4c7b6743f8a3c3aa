"""Activation checkpointing: the training step is the same as without."""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from engine_toys import assert_same_gradients, backward, batch, in_float64
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchvision.models import mobilenet_v3_large

from ffn import backbones
from ffn.core import convert, extract
from ffn.engine.activation_checkpointing import LAYERS, checkpoint_blocks, find_blocks
from ffn.engine.tasks import FlexibleTask
from ffn.recomputation import run_restorably

COUNTS = (2, 4, 7)
FAMILIES = ("tsm", "tea", "slowfast", "uniformer", "vit")


def small(name: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: backbones.build(name, num_classes=3, **options)


KINDS = {
    **{family: small(f"{family}_tiny", width=8, dropout=0.3) for family in FAMILIES},
    "mobilenet": small("tsm.mobilenetv3_small_050", drop_path=0.5, dropout=0.3),
}


def task_of(kind: str, **options: Any) -> FlexibleTask:
    torch.manual_seed(0)
    model = convert(KINDS[kind](), COUNTS, alter="sites", **options)
    for parameter in model.parameters():  # sub-networks differ; no value is near zero
        if parameter.ndim == 1:
            nn.init.uniform_(parameter, 0.3, 1.2)
    return FlexibleTask(model.double(), COUNTS).train()


def batch_of(side: int = 16) -> dict[str, Any]:
    return in_float64(batch(COUNTS, size=2, side=side))


def assert_same_step(task: nn.Module, other: nn.Module) -> None:
    """Compare gradients, to 1e-10 of the largest, and buffers, bit for bit."""
    assert_same_gradients(task, other)
    buffers = dict(task.named_buffers())
    for name, buffer in other.named_buffers():
        assert torch.equal(buffer, buffers[name]), name


@contextmanager
def counted(model: nn.Module) -> Iterator[list[str]]:
    """Record the name of a block each time that its first layer runs."""
    runs: list[str] = []
    handles = []
    for name, block in find_blocks(model).items():
        first = next(m for m in block.modules() if isinstance(m, LAYERS))
        handles.append(first.register_forward_pre_hook(lambda *_, name=name: runs.append(name)))
    yield runs
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize(
    ("kind", "views"), [*((kind, "together") for kind in KINDS), ("mobilenet", "sequential")]
)
def test_the_step_is_the_same(kind: str, views: str) -> None:
    """Gradients, loss, random numbers afterwards, and statistics that are updated once."""
    task, data = task_of(kind), batch_of(side=32 if kind == "uniformer" else 16)
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


def test_private_blocks() -> None:
    """A private block has a copy per count."""

    def selected(name: str, module: nn.Module) -> bool:
        return name.endswith("layer2.0") or isinstance(module, nn.BatchNorm2d)

    task, data = task_of("tsm", private=selected), batch_of()
    other = copy.deepcopy(task)
    assert checkpoint_blocks(other.model) == 3 + len(COUNTS)
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
    task, data = task_of("tea"), batch_of()
    other = copy.deepcopy(task)
    checkpoint_blocks(other.model)
    losses = []
    for one in (task, other):
        torch.manual_seed(2)
        losses.append(one(data)["loss"])
    for loss in losses:  # twice through one graph
        loss.backward(retain_graph=True)
    losses[0].backward()

    thread = threading.Thread(target=losses[1].backward)
    thread.start()
    thread.join()

    assert_same_step(task, other)


@pytest.mark.parametrize("mode", ["eval", "no_grad"])
def test_blocks_run_once_without_backward(mode: str) -> None:
    task, data = task_of("tsm"), batch_of()
    checkpoint_blocks(task.model)
    task.train(mode != "eval")

    with counted(task.model) as runs, torch.set_grad_enabled(mode != "no_grad"):
        loss = task(data)["loss"]
        if mode == "eval":
            loss.backward()

    assert len(runs) == len(COUNTS) * 4


def test_keys_copies_and_extraction_do_not_change() -> None:
    model, clip = task_of("tsm").model, batch_of()["clips"][4]
    keys, text = list(model.state_dict()), repr(model)
    expected = model.eval()(clip)

    assert checkpoint_blocks(model) == 4

    assert list(model.state_dict()) == keys
    assert repr(model) == text
    assert torch.equal(extract(model, 4)(clip), expected)
    copied = copy.deepcopy(model)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    assert torch.equal(copied(clip), expected), "a copy must use its own weights"


def test_blocks_of_every_backbone() -> None:
    """Block counts of the papers; twice as many for two pathways. LipNet has no blocks."""
    residual = {"r18": 2 + 2 + 2 + 2, "r50": 3 + 4 + 6 + 3, "r101": 3 + 4 + 23 + 3, "tiny": 4}
    residual |= {"mobilenetv2": 1 + 2 + 3 + 4 + 3 + 3 + 1, "s": 3 + 4 + 8 + 3, "b": 5 + 8 + 20 + 7}
    plain = {"vit": 12, "vit_s": 12, "vit_b": 12, "vit_l": 24, "vit_tiny": 5, "vjepa2_l": 24 + 3}
    for name in backbones.model_names():
        with torch.device("meta"):
            model = backbones.build(name)
        if name.startswith("lipnet"):
            assert find_blocks(model) == {}
            continue
        if name in plain:
            expected = plain[name]
        else:
            expected = residual[name.split("_")[1]] * (2 if name.startswith("slowfast") else 1)
        assert len(find_blocks(model)) == expected, name


def test_blocks_of_other_networks() -> None:
    """In torchvision, the gate of a block, two convolutions, is inside an nn.Sequential of it."""
    with torch.device("meta"):
        networks = {
            "ConvNeXtBlock": (timm.create_model("convnext_atto"), 2 + 2 + 6 + 2),
            "InvertedResidual": (mobilenet_v3_large(), 15),
        }
    for kind, (network, number) in networks.items():
        blocks = find_blocks(network)
        assert {type(block).__name__ for block in blocks.values()} == {kind}
        assert len(blocks) == number
    with pytest.raises(ValueError, match="Sequential has no blocks"):
        checkpoint_blocks(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)))


class Foreign(nn.Module):
    """A network that checkpoints itself, keeps a tensor and returns any object."""

    def __init__(self, wrap: Callable[[Tensor], Any], run: Callable) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4), nn.Linear(4, 2)
        self.wrap, self.run = wrap, run

    def block(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))

    def forward(self, clip: Tensor) -> Any:
        self.kept = self.run(self.block, clip.requires_grad_()).mean((2, 3, 4))
        return self.wrap(self.fc(self.kept))


def again(block: Callable, clip: Tensor) -> Tensor:
    return checkpoint(block, clip, use_reentrant=False)


def by_keyword(block: Callable, clip: Tensor) -> Tensor:
    return checkpoint(lambda x: block(x), x=clip, use_reentrant=False)


def reentrant(block: Callable, clip: Tensor) -> Tensor:
    return checkpoint(lambda x: checkpoint(block, x, use_reentrant=True), clip, use_reentrant=True)


def once(block: Callable, clip: Tensor) -> Tensor:
    return block(clip)


def gradients(
    read: Callable, wrap: Callable = Tensor.clone, run: Callable = again, whole: Callable = once
) -> list[Tensor]:
    """Of the weights, for a loss of two clips of other lengths, the shorter one last."""
    torch.manual_seed(0)
    model, loss = convert(Foreign(wrap, run), (2, 4), alter="none"), 0.0
    nn.init.constant_(model.model.norm["2"].weight, 3.0)  # the sub-networks differ
    for frames in (4, 2):
        outputs = whole(model, torch.randn(2, 3, frames, 4, 4, requires_grad=True))
        loss = loss + read(outputs, model.model).square().sum()
    loss.backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("run", [again, reentrant])
@pytest.mark.parametrize(
    ("wrap", "read"),
    [
        (lambda y: SimpleNamespace(logits=[y]), lambda o, _: o.logits[0]),
        (lambda y: (y for _ in "1"), lambda o, _: next(o)),
        (Tensor.detach, lambda _, network: network.kept),
    ],
    ids=["object", "generator", "attribute"],
)
def test_a_foreign_network_gets_its_gradients(
    wrap: Callable, read: Callable, run: Callable
) -> None:
    expected = gradients(read, wrap, once)

    found = gradients(read, wrap, run)

    assert len(found) == len(expected) >= 6
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("whole", [again, by_keyword, reentrant])
def test_a_whole_network_runs_again(whole: Callable) -> None:
    expected = gradients(lambda o, _: o, run=once)
    found = gradients(lambda o, _: o, run=once, whole=whole)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two)


def test_a_part_whose_count_is_unknown() -> None:
    with pytest.raises(RuntimeError, match="without its frame count"):
        gradients(lambda _, network: network.kept, Tensor.detach, by_keyword)


def test_a_forward_pass_without_a_backward_is_freed() -> None:
    output = run_restorably(torch.exp, torch.ones(2, requires_grad=True), lambda: None)
    reference = weakref.ref(output)
    del output
    assert reference() is None


def test_in_place_changes_are_found() -> None:
    """torch's own check has no effect on tensors that a hook saves."""

    def network(x: Tensor) -> Tensor:
        y = x.exp()
        return y.add_(1)

    with pytest.raises(RuntimeError, match="in-place"):
        run_restorably(network, torch.ones(2, requires_grad=True), lambda: None).sum().backward()
    offloaded: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: offloaded.append(x) or x, Tensor.clone):
        run_restorably(torch.exp, torch.ones(2, requires_grad=True), lambda: None).sum().backward()
    assert len(offloaded) == 1
