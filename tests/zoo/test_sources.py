"""Names of other implementations: every entry of a network is renamed correctly.

The expected names are written the other way round, from ours to theirs, as their code builds them.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import parity
import pytest
import torch
import torchvision
from torch import Tensor

from ffn.backbones import slowfast
from ffn.layers import ShiftConv2d
from ffn.zoo import WeightsError, create_model
from ffn.zoo.remap import detect_source, from_foreign, preprocessing_of, read_foreign, rename

State = dict[str, Tensor]


def numbered(model: str, num_classes: int = 5) -> State:
    """The state dict of a network of ours whose entries all differ."""
    with torch.device("meta"):
        state = create_model(model, num_classes=num_classes).state_dict()
    generator = torch.Generator().manual_seed(0)
    return {
        k: torch.rand(v.shape, generator=generator) if v.ndim else torch.tensor(3)
        for k, v in state.items()
    }


def tsm_name(ours: str) -> str:
    """TSM's repository: TemporalShift wraps conv1 of every block in ``net``."""
    name = ours.replace("net.fc.", "new_fc.").replace("net.", "base_model.")
    return re.sub(r"(layer\d\.\d+\.conv1)\.weight", r"\1.net.weight", name)


def mmaction2_tsm_name(ours: str) -> str:
    """MMAction2: ConvModules, with conv and bn; TemporalShift wraps the conv inside conv1."""
    name = ours.replace("net.fc.", "cls_head.fc_cls.").replace("net.", "backbone.")
    name = re.sub(r"conv(\d)\.weight", r"conv\1.conv.weight", name)
    name = re.sub(r"bn(\d)\.", r"conv\1.bn.", name)
    name = re.sub(r"(layer\d\.\d+\.conv1\.conv)\.weight", r"\1.net.weight", name)
    return name.replace("downsample.0.", "downsample.conv.").replace(
        "downsample.1.", "downsample.bn."
    )


def mmaction2_slowfast_name(ours: str) -> str:
    name = ours.replace("head.", "cls_head.fc_cls.")
    name = re.sub(r"^(slow|fast)\.", r"backbone.\1_path.", name)
    name = name.replace("fusions.0.", "backbone.slow_path.conv1_lateral.")
    name = re.sub(r"fusions\.(\d)\.", r"backbone.slow_path.layer\1_lateral.", name)
    name = re.sub(r"stages\.(\d)\.", lambda m: f"layer{int(m[1]) + 1}.", name)
    name = re.sub(r"(?:stem\.)?conv(\d)\.weight", r"conv\1.conv.weight", name)
    name = re.sub(r"(?:stem\.)?bn(\d)\.", r"conv\1.bn.", name)
    return name.replace("downsample.0.", "downsample.conv.").replace(
        "downsample.1.", "downsample.bn."
    )


def mobilenet_place(ours: str) -> tuple[int, int, int, str] | None:
    """Stage, block and, in the order they run, layer of an entry of a timm MobileNetV2's block."""
    match = re.fullmatch(r"net\.blocks\.(\d)\.(\d)\.(\w+)\.(\w+)", ours)
    if match is None:
        return None
    order = ["conv_pw", "bn1", "conv_dw", "bn2", "conv_pwl", "bn3"]
    order = ["conv_dw", "bn1", "conv_pw", "bn2"] if match[1] == "0" else order
    return int(match[1]), int(match[2]), order.index(match[3]), match[4]


def tsm_mobilenet_name(ours: str) -> str:
    """TSM's repository: a flat list of 19 features; TemporalShift wraps conv.0 where x is added."""
    ends = {"conv_stem": "features.0.0", "bn1": "features.0.1", "conv_head": "features.18.0"}
    ends |= {"bn2": "features.18.1"}
    place = mobilenet_place(ours)
    if place is None:
        name, leaf = ours.removeprefix("net.").rsplit(".", 1)
        return f"new_fc.{leaf}" if name == "classifier" else f"base_model.{ends[name]}.{leaf}"
    stage, block, layer, leaf = place
    feature = 1 + sum((1, 2, 3, 4, 3, 3, 1)[:stage]) + block
    theirs = [0, 1, 3, 4, 6, 7][layer]  # ReLU6 is at 2 and 5
    wrapped = ".net" if theirs == 0 and block > 0 else ""
    return f"base_model.features.{feature}.conv.{theirs}{wrapped}.{leaf}"


def mmaction2_mobilenet_name(ours: str) -> str:
    """MMAction2: seven layers of ConvModules; TemporalShift wraps a whole ConvModule."""
    ends = {"conv_stem": "backbone.conv1.conv", "bn1": "backbone.conv1.bn"}
    ends |= {"conv_head": "backbone.conv2.conv", "bn2": "backbone.conv2.bn"}
    ends |= {"classifier": "cls_head.fc_cls"}
    place = mobilenet_place(ours)
    if place is None:
        name, leaf = ours.removeprefix("net.").rsplit(".", 1)
        return f"{ends[name]}.{leaf}"
    stage, block, layer, leaf = place
    wrapped = ".net" if layer < 2 and block > 0 else ""
    kind = ("conv", "bn")[layer % 2]
    return f"backbone.layer{stage + 1}.{block}.conv.{layer // 2}{wrapped}.{kind}.{leaf}"


def caffe2_name(ours: str) -> str | None:
    """The blob of an entry; Caffe2 counts no batches."""
    name = parity.slowfast_name(ours)
    if name.endswith("num_batches_tracked"):
        return None
    owner, leaf = name.rsplit(".", 1)
    is_norm = owner.endswith("bn")
    letter = {"weight": "s" if is_norm else "w", "bias": "b"}
    letter |= {"running_mean": "rm", "running_var": "riv"}
    depths = dict(zip("234", (2, 3, 5), strict=True))  # last block of a stage of R50
    fast = "t_" if "pathway1" in owner or "fuse" in owner else ""
    if owner == "head.projection":
        blob = "pred"
    elif owner.endswith(("stem.conv", "stem.bn")):
        blob = "res_conv1_bn" if is_norm else "conv1"
    elif match := re.match(r"s(\d)_fuse", owner):
        stage = match[1]
        blob = "pool1" if stage == "1" else f"res{stage}_{depths[stage]}_branch2c_bn"
        blob += "_subsample" + ("_bn" if is_norm else "")
    else:
        stage, block, rest = re.match(r"s(\d)\.pathway\d_res(\d+)\.(.*)", owner).groups()
        blob = f"res{stage}_{block}_{rest.replace('.', '')}"
    return f"{fast}{blob}_{letter[leaf]}"


CASES: dict[str, tuple[str, str, Callable[[str], str | None]]] = {
    "TSM's repository": ("tsm", "tsm_r18", tsm_name),
    "MMAction2's TSM": ("mmaction2", "tsm_r18", mmaction2_tsm_name),
    "TSM's MobileNetV2": ("tsm", "tsm_mobilenetv2", tsm_mobilenet_name),
    "MMAction2's MobileNetV2": ("mmaction2", "tsm_mobilenetv2", mmaction2_mobilenet_name),
    "MMAction2's SlowFast": ("mmaction2", "slowfast_r50_8x8_mmaction2", mmaction2_slowfast_name),
    "PySlowFast": ("pyslowfast", "slowfast_r50", parity.slowfast_name),
    "PySlowFast, R101": ("pyslowfast", "slowfast_r101", parity.slowfast_name),
    "PySlowFast's Slow": ("pyslowfast", "slowonly_r50", parity.slowfast_name),
    "PySlowFast from Caffe2": ("pyslowfast", "slowfast_r50", caffe2_name),
    "PySlowFast from Caffe2, 4x16": ("pyslowfast", "slowfast_r50_4x16", caffe2_name),
    "PySlowFast's Slow from Caffe2": ("pyslowfast", "slowonly_r50", caffe2_name),
    "UniFormer": ("uniformer", "uniformer_s", parity.uniformer_name),
    "UniFormer-B": ("uniformer", "uniformer_b", parity.uniformer_name),
}


@pytest.mark.parametrize(("source", "model", "name"), CASES.values(), ids=CASES)
def test_every_entry_finds_its_place(
    source: str, model: str, name: Callable[[str], str | None]
) -> None:
    ours = numbered(model)
    theirs = {name(k): v for k, v in ours.items() if name(k) is not None}
    assert detect_source(theirs) == source

    found = rename(theirs, source)

    assert found.keys() == {k for k in ours if name(k) is not None}
    assert all(torch.equal(value, ours[k]) for k, value in found.items())


def test_names_of_the_published_files() -> None:
    for source, theirs, ours in (
        ("pyslowfast", "t_res2_2_branch2c_bn_subsample_bn_riv", "fusions.1.bn.running_var"),
        ("pyslowfast", "t_res_conv1_bn_s", "fast.stem.bn1.weight"),
        ("tsm", "base_model.features.3.conv.0.net.weight", "net.blocks.1.1.conv_pw.weight"),
        ("mmaction2", "backbone.layer2.1.conv.0.net.bn.bias", "net.blocks.1.1.bn1.bias"),
        ("image", "features.1.conv.0.0.weight", "net.blocks.0.0.conv_dw.weight"),
        ("uniformer", "blocks4.2.mlp.fc1.bias", "blocks.3.2.mlp.fc1.bias"),
    ):
        assert [*rename({theirs: torch.ones(2)}, source)] == [ours]


@pytest.mark.slow
def test_a_caffe2_checkpoint_becomes_a_frame_flexible_network(tmp_path: Path) -> None:
    ours = numbered("slowfast_r50", num_classes=7)
    blobs = {caffe2_name(k): v.numpy() for k, v in ours.items() if caffe2_name(k)}
    blobs |= {"conv1_w_momentum": np.ones(3), "lr": np.float32(0.1), "model_iter": np.ones(1)}
    path = tmp_path / "SLOWFAST_8x8_R50.pkl"
    path.write_bytes(pickle.dumps({"blobs": blobs, "cfg": "TRAIN: ..."}, protocol=2))

    found = from_foreign(read_foreign(path), model="slowfast_r50", trained_frames=(8, 32))

    assert (found.source, found.preprocessing["mean"]) == ("pyslowfast", [0.45] * 3)
    assert found.model.trained_frames == (8, 32)
    state = found.model.state_dict()
    assert torch.equal(state["head.weight"], ours["head.weight"])
    norm = "slow.stages.0.0.bn1.32.running_var"
    assert torch.equal(state[norm], ours["slow.stages.0.0.bn1.running_var"])


def test_torchvision_s_mobilenet_gives_its_outputs() -> None:
    image = torchvision.models.mobilenet_v2(num_classes=7).eval()
    for module in image.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    assert detect_source(image.state_dict()) == "image"
    flexible = from_foreign(
        image.state_dict(), model="tsm_mobilenetv2", num_classes=4, trained_frames=(2, 8)
    )
    assert flexible.match.classes == (7, 4)
    network = from_foreign(image.state_dict(), model="tsm_mobilenetv2").model.eval()
    for module in network.modules():
        if isinstance(module, ShiftConv2d):
            module.divisor = 10**6  # shifts no channel

    frame = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(network(frame[:, :, None]), image(frame), rtol=1e-4, atol=1e-5)


def test_a_tsm_that_shifts_elsewhere_is_refused() -> None:
    ours = numbered("tsm_r101_alternate")
    theirs = {tsm_name(k): v for k, v in ours.items()}
    every_second = re.compile(r"base_model\.layer\d\.\d*[13579]\.conv1\.net\.")
    theirs = {k.replace(".net.", ".") if every_second.match(k) else k: v for k, v in theirs.items()}

    assert not from_foreign(theirs, model="tsm_r101_alternate").match.faults
    with pytest.raises(WeightsError, match="shifts 18 convolutions, the model 33"):
        from_foreign(theirs, model="tsm_r101")


def test_slow_frames_of_mmaction2() -> None:
    """It takes every alpha-th frame, by nearest-neighbour interpolation."""
    for frames in (4, 8, 32):
        index = slowfast.slow_frames(frames, 4, spread=False)
        stamps = torch.arange(frames).float()[None, None]
        nearest = torch.nn.functional.interpolate(stamps, scale_factor=0.25, mode="nearest")
        assert index.tolist() == nearest[0, 0].tolist()


def test_a_caffe2_pickle_holds_arrays_and_runs_nothing(tmp_path: Path, payload) -> None:
    path = tmp_path / "x.pkl"
    for content in (
        {"blobs": {"conv1_w": payload}},
        {"blobs": {}, "more": payload},
        {"blobs": {"conv1_w": np.array([payload], dtype=object)}},
    ):
        path.write_bytes(pickle.dumps(content, protocol=2))
        with pytest.raises(WeightsError, match=r"it requests (io|_io|builtins|__builtin__)\.open"):
            read_foreign(path)
    assert not payload.path.exists()

    for dtype, protocol in ((np.float32, 2), (np.int64, 3), (">f4", 4)):
        array = np.arange(24, dtype=dtype).reshape(2, 3, 4)
        content = pickle.dumps({"blobs": {"a": array, "b": array.T}}, protocol=protocol)
        path.write_bytes(content)
        state = read_foreign(path)
        assert np.array_equal(state["a"].numpy(), array)
        assert np.array_equal(state["b"].numpy(), array.T)
        for keep in (0, 1, 30, len(content) - 1):
            path.write_bytes(content[:keep])
            with pytest.raises(WeightsError, match=r"x\.pkl"):
                read_foreign(path)


def test_a_backbone_without_a_classifier_needs_a_number_of_classes() -> None:
    """TSM's published MobileNetV2 for Jester: names without prefix, ``classifier.weight``."""
    theirs = {
        tsm_mobilenet_name(k).removeprefix("base_model.").replace(".net.", "."): v
        for k, v in numbered("tsm_mobilenetv2", 27).items()
    }
    head = {f"classifier.{leaf}": theirs.pop(f"new_fc.{leaf}") for leaf in ("weight", "bias")}

    ours = from_foreign(theirs | head, model="tsm_mobilenetv2").model.state_dict()
    assert torch.equal(ours["net.classifier.weight"], head["classifier.weight"])
    assert torch.equal(ours["net.blocks.1.0.conv_pw.weight"], theirs["features.2.conv.0.weight"])

    with pytest.raises(WeightsError, match="--num-classes K"):
        from_foreign(theirs, model="tsm_mobilenetv2")
    found = from_foreign(theirs, model="tsm_mobilenetv2", num_classes=6)
    assert (found.match.total, found.match.classes) == (312, (0, 6))
    assert found.model.net.classifier.out_features == 6

    with pytest.raises(ValueError, match="num_classes is 0"):
        from_foreign(theirs | head, model="tsm_mobilenetv2", num_classes=0)
    with pytest.raises(WeightsError, match="of none of ffn-pytorch, tsm, pyslowfast"):
        detect_source({"encoder.weight": torch.ones(1)})
    with pytest.raises(ValueError, match='source is "mmaction"; allowed: ffn-pytorch'):
        rename({}, "mmaction")


def test_preprocessing_travels() -> None:
    bgr = preprocessing_of("ffn-pytorch", {"patch_embed1.norm_4.weight": torch.ones(1)})
    known = {"mean": [0.45] * 3, "std": [0.225] * 3}
    assert bgr == known | {"sampling": "interval", "color": "bgr"}
    assert preprocessing_of("tsm", {"base_model.conv1.weight": torch.ones(1)}) == {}
