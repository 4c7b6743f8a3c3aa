"""Networks with a graph for each shape: torch.compile, CUDA graphs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import ffn
from ffn.devices import has_compiler
from ffn.export import can_pack
from ffn.export import networks as networks_module
from ffn.export.graphs import GRAPHS, Compiled, CudaGraphs, _OnOneDevice
from ffn.export.networks import Networks

SHAPES = [(1, 3, 8, 8), (2, 3, 8, 8), (2, 3, 12, 8)]


class Backend:
    """A compiler that counts the graphs and runs them as they are."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]):
        self.graphs += 1
        return graph.forward


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Backend:
    backend = Backend()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    return backend


@pytest.fixture
def dynamic_shapes() -> Iterator[None]:
    """torch 2.6 leaves this option off where first calls of several threads overlap."""
    yield
    torch._dynamo.config.automatic_dynamic_shapes = True


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Messages of ffn; torch logs traces of its own."""
    return [record.message for record in caplog.records if record.name.startswith("ffn")]


def test_twelve_networks_of_a_class_keep_their_graphs(backend: Backend) -> None:
    """torch has one limit, of eight graphs, for all networks of a class."""
    plain = [network() for _ in range(12)]
    compiled = [Compiled(one) for one in plain]
    for one, fast in zip(plain, compiled, strict=True):
        for shape in SHAPES:
            clip = torch.randn(shape)
            assert torch.equal(fast(clip), one(clip))
    graphs = backend.graphs
    assert graphs == len(SHAPES) * len(plain)

    with torch.compiler.set_stance("fail_on_recompile"):
        for one, fast in zip(plain, compiled, strict=True):
            for shape in SHAPES:
                clip = torch.randn(shape)
                assert torch.equal(fast(clip), one(clip))
    assert backend.graphs == graphs


def test_inference_tensors_and_others_have_the_same_graph(backend: Backend) -> None:
    fast, clip = Compiled(network()), torch.randn(SHAPES[0])
    logits = fast(clip)
    assert not logits.requires_grad
    with torch.inference_mode():
        assert torch.equal(fast(clip + 0), logits)
    with torch.no_grad():
        assert torch.equal(fast(clip), logits)
    assert backend.graphs == 1


def test_more_shapes_than_graphs(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    plain = network()
    fast = Compiled(plain)
    for size in (*range(4, 16), 4, 15):
        clip = torch.randn(1, 3, 8, size)
        assert torch.equal(fast(clip), plain(clip))
    assert backend.graphs == GRAPHS
    (warning,) = warnings(caplog)
    assert f"for clips of shape (1, 3, 8, {4 + GRAPHS}): it has graphs for 8 other" in warning


def test_a_shape_for_which_torch_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_for_wide(graph: torch.fx.GraphModule, inputs: list[Tensor]):
        widths = [x.shape[-1] for x in inputs if x.dim() == 4]
        if 12 in widths:
            raise RuntimeError("cannot be compiled\nmore lines")
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=fail_for_wide))
    plain = network()
    fast = Compiled(plain)
    for size in (8, 12, 8, 12):
        clip = torch.randn(1, 3, 8, size)
        assert torch.equal(fast(clip), plain(clip))
    (warning,) = warnings(caplog)
    assert "Sequential is not compiled for clips of shape (1, 3, 8, 12): torch.compile" in warning
    assert "cannot be compiled" in warning
    assert "\n" not in warning


@pytest.mark.usefixtures("dynamic_shapes")
def test_options_of_the_process_are_as_before(backend: Backend) -> None:
    """First calls of several threads overlap; each sets the option, and one resets it last."""
    from torch._inductor import config

    compiled = [Compiled(network()) for _ in range(6)]
    with config.patch(freezing=False):
        threads = [
            threading.Thread(target=fast, args=(torch.randn(1, 3, 8, 8),)) for fast in compiled
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert config.freezing is False
    assert backend.graphs == len(compiled)


@pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")
@pytest.mark.skipif(not can_pack(torch.float32), reason="needs the operators of oneDNN")
def test_weights_are_packed() -> None:
    plain, clip = network(), torch.randn(1, 3, 16, 16)
    fast = Compiled(plain)
    torch.testing.assert_close(fast(clip), plain(clip), rtol=1e-5, atol=1e-6)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        fast(clip)
    names = [event.key for event in profiled.key_averages()]
    assert any("mkldnn::_convolution_pointwise" in name for name in names), names


@pytest.mark.slow
@pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")
@pytest.mark.parametrize("family", ["tsm", "slowfast", "tea", "uniformer"])
def test_the_families_at_several_shapes(family: str, caplog: pytest.LogCaptureFixture) -> None:
    """One graph for several numbers of frames fails for TEA."""
    model = ffn.convert(ffn.create_model(f"{family}_tiny", num_classes=5), [4, 8]).eval()
    fused = ffn.fuse(model, 8)
    fast = Compiled(fused)
    for shape in [(1, 3, 8, 32, 32), (1, 3, 9, 32, 32), (2, 3, 8, 32, 32)]:
        clip = torch.randn(shape)
        torch.testing.assert_close(fast(clip), fused(clip), rtol=1e-4, atol=1e-5)
    assert not warnings(caplog)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks_module, "has_compiler", lambda: False)
    model = ffn.convert(ffn.create_model("tsm_tiny", num_classes=3), [4, 8]).eval()
    Networks(model)
    with pytest.raises(ValueError, match=r"no C\+\+ compiler .* looked for \$CXX.* do not compile"):
        Networks(model, compiled=True)


def test_cuda_graphs_need_a_fused_network_on_cuda() -> None:
    model = ffn.convert(ffn.create_model("tsm_tiny", num_classes=3), [4, 8]).eval()
    with pytest.raises(ValueError, match="on a CUDA device; this one is on device cpu and fused"):
        Networks(model, cuda_graphs=True)


def test_networks_run_without_a_cuda_graph_where_none_can_be_recorded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain, clip = network(), torch.randn(SHAPES[0])
    fast = CudaGraphs(plain)
    for _ in range(2):
        assert torch.equal(fast(clip), plain(clip))
    (warning,) = warnings(caplog)
    assert "Sequential has no CUDA graph for clips of shape (1, 3, 8, 8): a CUDA graph" in warning


class CountingClips(nn.Module):
    """Python runs in the first calls only, kernels in all."""

    def __init__(self, layers: nn.Module, does: str = "") -> None:
        super().__init__()
        self.layers, self.does, self.calls = layers, does, 0

    def forward(self, clip: Tensor) -> Tensor:
        self.calls += 1
        if self.does == "reads" and clip.sum().item() == 0:
            return clip
        if self.does == "selects":
            clip = clip[clip.flatten(1).sum(1) < 1e9]
        if self.does == "moves":
            clip = clip + torch.ones(clip.shape).to(clip.device)
        if self.does == "waits":
            torch.cuda.synchronize()
        return self.layers(clip)


@pytest.mark.parametrize(("does", "reason"), [("reads", "_local_scalar"), ("selects", "index")])
def test_operators_that_read_values_are_found(does: str, reason: str) -> None:
    clip = torch.randn(SHAPES[0])
    with _OnOneDevice():
        CountingClips(network())(clip)
        clip[torch.tensor([0, 0])]  # as tables of relative positions
        with pytest.raises(RuntimeError, match=f"aten.*{reason}.* reads values of a tensor"):
            CountingClips(network(), does)(clip)


def test_operators_of_two_devices_are_found() -> None:
    x = torch.ones(2, device="meta")
    with _OnOneDevice():
        x.mul_(torch.tensor(2.0))[0] = 1
        for move in (
            lambda: x.copy_(torch.ones(2)),
            lambda: torch.tensor(2.0).to("meta"),
            lambda: torch.ones(2).to("meta"),
        ):
            with pytest.raises(RuntimeError, match="uses tensors on cpu and meta"):
                move()


@pytest.fixture
def _whole_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of cuDNN differ by the rounding of TF32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.gpu
@pytest.mark.usefixtures("_whole_precision")
def test_cuda_graphs_answer_as_their_network(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain = CountingClips(network()).cuda()
    fast = CudaGraphs(plain)
    clips = [torch.randn(shape, device="cuda") for shape in SHAPES]
    clips += [torch.randn(n, 3, w, h, device="cuda").mT for n, _, h, w in SHAPES]
    answers = [fast(clip) for clip in clips]
    calls = plain.calls
    answers += [fast(clip) for clip in clips]
    with torch.inference_mode():
        answers += [fast(clip + 0) for clip in clips]
    assert plain.calls == calls == 4 * len(SHAPES)
    for clip, answer in zip(clips * 3, answers, strict=True):
        torch.testing.assert_close(answer, plain(clip))
    assert not warnings(caplog)


@pytest.mark.gpu
@pytest.mark.usefixtures("_whole_precision")
def test_more_shapes_than_cuda_graphs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain = network().cuda()
    fast = CudaGraphs(plain)
    for size in (*range(4, 16), 4, 15):
        clip = torch.randn(1, 3, 8, size, device="cuda")
        torch.testing.assert_close(fast(clip), plain(clip))
    assert len({id(run) for run in fast._runs.values()}) == GRAPHS + 1
    (warning,) = warnings(caplog)
    assert "it has graphs for 8 other shapes" in warning


@pytest.mark.gpu
@pytest.mark.usefixtures("_whole_precision")
@pytest.mark.parametrize("does", ["reads", "selects", "moves", "waits"])
def test_what_has_no_cuda_graph(does: str, caplog: pytest.LogCaptureFixture) -> None:
    plain = CountingClips(network(), does).cuda()
    fast = CudaGraphs(plain)
    other = CudaGraphs(network().cuda())
    for _ in range(2):
        for clip in (torch.randn(SHAPES[0], device="cuda"), torch.zeros(SHAPES[0], device="cuda")):
            torch.testing.assert_close(fast(clip), plain(clip))
            torch.testing.assert_close(other(clip), other.network(clip))  # the device still works
    (warning,) = warnings(caplog)
    assert "CountingClips has no CUDA graph for clips of shape (1, 3, 8, 8): a CUDA" in warning
    assert (does == "waits") is ("of a tensor" not in warning and "uses tensors" not in warning)


@pytest.mark.gpu
@pytest.mark.usefixtures("_whole_precision")
@pytest.mark.parametrize("family", ["tsm", "slowfast", "tea", "uniformer"])
@pytest.mark.parametrize("compiled", [False, True])
def test_cuda_graphs_of_the_families(
    family: str, compiled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Eight threads, each with a stream of its own, at several frame counts."""
    model = ffn.convert(ffn.create_model(f"{family}_tiny", num_classes=5), [4, 8]).eval().cuda()
    run = Networks(model, precision="fp32", compiled=compiled, cuda_graphs=True)
    clips = [torch.randn(1 + t % 2, 3, t, 32, 32, device="cuda") for t in (4, 5, 8, 9)]
    with torch.inference_mode():
        expected = [model(clip) for clip in clips]
        run(clips[0]), run(clips[2])  # others are recorded while these run
    torch.cuda.synchronize()
    right, wrong = [], []

    def ask(first: int) -> None:
        with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
            for number in range(first, first + 40):
                found, answer = run(clips[number % 4]), expected[number % 4]
                if (found - answer).abs().max() > 1e-4 * answer.abs().max():
                    wrong.append(number)
                else:
                    right.append(number)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(wrong), len(right)) == (0, 320)
    assert not warnings(caplog)
    assert str(run) == f"fused, fp32, {'compiled, ' * compiled}CUDA graphs"
