"""convert and extract on networks of ours and of others: exact, private, shared, reported."""

from __future__ import annotations

import copy

import pytest
import torch
from core_models import TINY, Case, every_case, private_of, randomize, zero_alterations
from torch import nn

from ffn import backbones
from ffn.core import FrameFlexible, PrivateModules, WeightAlteration, convert, extract
from ffn.layers import PerFrame

COUNTS = (2, 4, 8)


def everything(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


def storages(module: nn.Module) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in everything(module) if t.numel()}


@every_case
@torch.no_grad()
def test_bit_equal_to_the_plain_network_while_alterations_are_zero(case: Case) -> None:
    plain = case.plain()
    flexible = zero_alterations(convert(plain, COUNTS, **case.options))
    small = {count: extract(flexible, count) for count in COUNTS}

    for frames in (1, 3, 4, 9):
        clip = case.clip(frames)
        expected = plain(clip)
        assert torch.equal(flexible(clip), expected)
        for count in COUNTS:
            assert torch.equal(flexible(clip, active=count), expected)
            assert torch.equal(small[count](clip), expected)


@every_case
@torch.no_grad()
def test_extracted_network_is_the_active_one(case: Case) -> None:
    flexible = case.flexible(COUNTS)

    outputs = []
    for count in COUNTS:
        small = extract(flexible, count)
        for frames in (1, 4, 5):
            assert torch.equal(small(case.clip(frames)), flexible(case.clip(frames), active=count))
        outputs.append(small(case.clip(4)))
        kinds = FrameFlexible, PrivateModules
        assert not any(isinstance(module, kinds) for module in small.modules())
        assert not storages(small) & storages(flexible)
    assert not torch.equal(outputs[0], outputs[1])  # or the above would show nothing


@every_case
def test_original_stays_as_it_is(case: Case) -> None:
    plain = case.plain()
    before = copy.deepcopy(plain)

    flexible = randomize(convert(plain, COUNTS, **case.options)).train()
    flexible(case.clip(4)).sum().backward()

    torch.testing.assert_close(plain.state_dict(), before.state_dict(), rtol=0, atol=0)
    assert [type(m) for m in plain.modules()] == [type(m) for m in before.modules()]
    assert not any(m._forward_pre_hooks for m in plain.modules())
    assert all(p.grad is None for p in plain.parameters())
    assert not storages(plain) & storages(flexible)


@every_case
@torch.no_grad()
def test_a_count_uses_its_own_norms_and_alterations_only(case: Case) -> None:
    flexible = case.flexible(COUNTS)
    clips = {count: case.clip(count) for count in COUNTS}
    expected = {count: flexible(clips[count]) for count in COUNTS}

    for count in COUNTS:
        others = copy.deepcopy(flexible)
        for other in set(COUNTS) - {count}:
            for module in private_of(others, other).values():
                for tensor in module.state_dict().values():
                    tensor.fill_(7)
        assert torch.equal(others(clips[count]), expected[count])

        for is_alteration in (True, False):
            own = copy.deepcopy(flexible)
            for module in private_of(own, count).values():
                if isinstance(module, WeightAlteration) == is_alteration:
                    module.weight.mul_(2)
            assert not torch.equal(own(clips[count]), expected[count])


@every_case
def test_training_moves_only_what_the_active_count_owns_or_all_share(case: Case) -> None:
    """Every such parameter gets a gradient, and the statistics of every such norm move."""
    flexible = case.flexible(COUNTS).train()

    def owned(count: int) -> set[int]:
        return {id(t) for m in private_of(flexible, count).values() for t in everything(m)}

    for frames, active in ((8, 8), (3, 4), (1, 2)):
        others = set().union(*(owned(n) for n in COUNTS if n != active))
        before = {name: buffer.clone() for name, buffer in flexible.named_buffers()}
        flexible.zero_grad(set_to_none=True)
        flexible(case.clip(frames, batch=4)).square().sum().backward()
        for name, buffer in flexible.named_buffers():
            assert torch.equal(buffer, before[name]) == (id(buffer) not in owned(active)), name
        for name, parameter in flexible.named_parameters():
            assert (parameter.grad is None) == (id(parameter) in others), name


@every_case
@torch.no_grad()
def test_clips_of_a_batch_do_not_influence_each_other(case: Case) -> None:
    flexible = case.flexible(COUNTS)

    for frames in (1, 4, 5):
        clip = case.clip(frames, batch=3)
        changed = clip.clone()
        changed[1] = case.clip(frames, batch=1, seed=9)[0]
        one, other = flexible(clip), flexible(changed)
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[2], other[2])
        assert not torch.equal(one[1], other[1])
        torch.testing.assert_close(flexible(clip[2:]), one[2:], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_any_trained_counts() -> None:
    for counts in ((7,), (3, 1), (1, 2, 3, 11, 64)):
        flexible = TINY.flexible(counts)

        assert flexible.trained_frames == tuple(sorted(counts))
        for count in counts:
            clip = TINY.clip(count)
            assert torch.equal(flexible(clip), extract(flexible, count)(clip))
            assert flexible.active == count
        keys = {key for key in flexible.state_dict() if key.startswith("net.bn1.")}
        assert {int(key.split(".")[2]) for key in keys} == set(counts)


def test_frames_may_stand_in_another_dimension() -> None:
    layers = nn.BatchNorm3d(4), nn.Conv3d(4, 4, 1), nn.AdaptiveAvgPool3d(1), nn.Flatten()
    flexible = convert(nn.Sequential(*layers), COUNTS, frame_dim=1, alter="none")
    flexible(TINY.clip(4).transpose(1, 2))
    assert flexible.active == 4


def test_private_all_shares_nothing() -> None:
    flexible = convert(TINY.plain(), (2, 4), private="all").train()
    own = {
        count: {id(t) for m in private_of(flexible, count).values() for t in everything(m)}
        for count in (2, 4)
    }

    assert own[2] | own[4] == {id(t) for t in everything(flexible)}
    flexible(TINY.clip(4)).sum().backward()
    for parameter in flexible.parameters():
        assert (parameter.grad is not None) == (id(parameter) in own[4])


def test_other_private_modules_and_no_alterations() -> None:
    plain = TINY.plain()

    extra = set(convert(plain, (2, 4), private="none").state_dict()) - set(plain.state_dict())
    assert extra
    assert all(".site." in name for name in extra)
    flexible = convert(plain, (2, 4), private=lambda name, module: name == "net.fc", alter="none")
    assert (flexible.report.private, flexible.report.altered) == (("net.fc",), ())
    assert {*flexible.state_dict()} - {*plain.state_dict()} == {
        f"net.fc.{count}.{name}" for count in (2, 4) for name in ("weight", "bias")
    }
    named = convert(plain, (2, 4), private="net.f?,net.fc,norms", alter="none").report.private
    assert {*named} == {*convert(plain, (2, 4)).report.private, "net.fc"}
    norm = nn.BatchNorm2d(3)  # used twice, it stays one
    flexible = convert(nn.Sequential(norm, nn.Conv2d(3, 3, 1), norm), (2, 4), alter="none")
    assert flexible.model[0] is flexible.model[2]
    assert len(flexible.report.private) == 1


def test_private_modules_keep_the_type_of_the_network() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        plain = TINY.plain().to(dtype)
        flexible = zero_alterations(convert(plain, COUNTS))
        clip = TINY.clip(4).to(dtype)

        assert torch.equal(flexible(clip), plain(clip))


def test_report_of_resnet50_counted_by_hand() -> None:
    with torch.device("meta"):
        plain = backbones.build("tsm_r50", num_classes=174)
        report = convert(plain, (4, 8, 16)).report

    # ResNet-50 (He et al. 2016, table 1): per stage blocks, width w and output 4 w.
    stages = [(3, 64), (4, 128), (6, 256), (3, 512)]
    norm_channels = 64 + sum(blocks * (w + w + 4 * w) + 4 * w for blocks, w in stages)
    inputs = [64, *[4 * w for blocks, w in stages for _ in range(blocks)][:-1]]
    added = 2 * 2 * norm_channels + 3 * sum(inputs)
    assert report.parameters_after - report.parameters_before == added == 145_600
    assert report.parameters_before == 23_864_558
    assert added / report.parameters_before < 0.01
    assert (len(report.private), len(report.altered)) == (53, 16)
    assert "145,600 parameters added to 23,864,558 (0.61 %)" in str(report)


def test_convert_of_a_converted_and_of_an_extracted_network() -> None:
    flexible = TINY.flexible()
    for model in (flexible, flexible.model, nn.Sequential(flexible)):
        with pytest.raises(ValueError, match="frame-flexible already"):
            convert(model, COUNTS)
    small = extract(flexible, 4)
    again = convert(small, (3, 6), alter="none")
    assert torch.equal(again(TINY.clip(5)), small(TINY.clip(5)))


def test_count_that_was_not_trained() -> None:
    flexible = convert(TINY.plain(), COUNTS)

    for count in (3, "4"):
        for call in (lambda n: flexible(TINY.clip(4), active=n), lambda n: extract(flexible, n)):
            with pytest.raises(ValueError, match=rf"no sub-network for {count} frames"):
                call(count)


def test_clip_with_other_dimensions() -> None:
    """The first convolution of any network tells how many channels it takes."""

    def network(channels: int) -> FrameFlexible:
        layers = nn.Conv3d(channels, 4, 1), nn.BatchNorm3d(4), nn.AdaptiveAvgPool3d(1), nn.Flatten()
        return convert(nn.Sequential(*layers), (4, 8), alter="none")

    for shape, remedy in {
        (1, 8, 3, 6, 6): r"\(B, T, C, H, W\): pass clip\.transpose\(1, 2\)",
        (1, 8, 6, 6, 3): r"\(B, T, H, W, C\): pass clip\.movedim\(-1, 1\)",
    }.items():
        with pytest.raises(ValueError, match=remedy):
            network(3)(torch.zeros(shape))
    network(3)(torch.zeros(1, 3, 3, 6, 3))
    network(8)(torch.zeros(1, 8, 3, 6, 3))
    with pytest.raises(ValueError, match=r"4 dims .*expected \(B, C, T, H, W\)"):
        network(3)(torch.zeros(3, 4, 16, 16))


def test_selections_that_select_nothing() -> None:
    network = PerFrame(nn.Sequential(nn.Flatten(), nn.Linear(3, 2)))
    for options, message in (
        ({"alter": "none"}, "'norms' selects no module of PerFrame"),
        ({"private": "norms,fc9"}, r"fc9 in private matches none"),
        ({"private": "none", "alter": "site"}, 'alter is "site"; allowed'),
        ({"private": "none", "alter": "sites"}, "marks no site"),
        ({"private": "none", "alter": ["net.0"]}, r"net\.0 is a Flatten; name convolutions"),
        ({"private": "none", "alter": ["net.1", "net.con*"]}, r"^net\.con\* in alter"),
        ({"private": "none", "alter": "none", "frame_dim": 5}, "frame_dim is 5"),
    ):
        with pytest.raises(ValueError, match=message):
            convert(network, COUNTS, **options)


@torch.no_grad()
def test_deepcopy_is_its_own_network() -> None:
    flexible, clip = TINY.flexible(), TINY.clip(4)
    expected = flexible(clip)
    flexible.activate(2)
    twin = copy.deepcopy(flexible)

    assert torch.equal(twin(clip), expected)
    assert (flexible.active, twin.active) == (2, 4)
    assert torch.equal(flexible.model(clip), extract(flexible, 2)(clip))
    assert not storages(twin) & storages(flexible)


@torch.no_grad()
def test_synchronized_norms_before_or_after() -> None:
    flexible = TINY.flexible()
    before = convert(nn.SyncBatchNorm.convert_sync_batchnorm(TINY.plain()), COUNTS)
    before.load_state_dict(flexible.state_dict(), strict=True)
    after = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(flexible))

    assert list(before.state_dict()) == list(after.state_dict()) == list(flexible.state_dict())
    for model in (before, after):
        assert any(isinstance(m, nn.SyncBatchNorm) for m in model.modules())
        assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
        for count in COUNTS:
            clip = TINY.clip(count)
            assert torch.equal(model(clip), flexible(clip))
