"""Rename the entries of other implementations: one pure function of a state dict per source.

The functions rename entries and reshape alterations.
:func:`ffn.zoo.remap.from_foreign` compares the result with a network.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from torch import Tensor

from ffn.zoo.remap.mobilenet import is_mobilenetv2, mobilenetv2
from ffn.zoo.remap.vit import rename as vit

State = dict[str, Tensor]
videomae = huggingface = vit
Rules = Iterable[tuple[str, str | Callable[[re.Match[str]], str]]]

_BRANCHES = ("4", "8", "16")  # suffixes of FFN-pytorch's branches L, M and H, at any counts
_BRANCH = re.compile(r"_(4|8|16)\.")


def ffn_pytorch(state: Mapping[str, Tensor], trained_frames: tuple[int, ...] | None) -> State:
    """FFN-pytorch, the code of the paper: TSM, TEA, SlowFast, UniFormer; flexible or plain.

    =========================================  ===============================
    ``base_model.layer1.0.conv1.weight``       ``net.layer1.0.conv1.weight``
    ``….bn1_16.weight``                        ``….bn1.16.weight``
    ``….bns_16.2.weight`` (TEA)                ``….bns.2.16.weight``
    ``….downsample_bn_16.weight``              ``….downsample.1.16.weight``
    ``….adaconv_16.weight`` (C, 1, 1, 1)       ``….conv1.site.16.weight`` (C,)
    ``new_fc.weight``                          ``net.fc.weight``
    ``s2.pathway0_res1.branch2.a_bn_16.bias``  ``slow.stages.0.1.bn1.16.bias``
    ``blocks3.0.norm1_16.weight``              ``blocks.2.0.norm1.16.weight``
    =========================================  ===============================

    Args:
        state: entries by name.
        trained_frames: the counts of its branches L, M, H, ascending; not needed for a plain
            checkpoint.

    Raises:
        ValueError: a flexible checkpoint without its three trained counts.
    """
    if any(key.startswith("patch_embed") for key in state):
        ours = uniformer(state)
    elif any(key.startswith("s1.pathway0_stem") for key in state):
        ours = pyslowfast(state)
    else:
        ours = _rename(state, _TWO_D)
    if is_flexible(state):
        if trained_frames is None or len(trained_frames) != len(_BRANCHES):
            raise ValueError(
                f"trained_frames is {trained_frames}; this checkpoint is frame-flexible with three "
                "branches: name the three counts it was trained at, e.g. 4 8 16"
            )
        counts = dict(zip(_BRANCHES, sorted(trained_frames), strict=True))
        ours = _rename(ours, [(_BRANCH.pattern, lambda branch: f".{counts[branch[1]]}.")])
    return {key: value.flatten() if ".site." in key else value for key, value in ours.items()}


def tsm(state: Mapping[str, Tensor]) -> State:
    """TSM's repository, where a shifted convolution is called ``conv1.net``.

    This is for ResNets; for MobileNetV2 see :func:`~ffn.zoo.remap.mobilenet.mobilenetv2`.
    """
    if is_mobilenetv2(state):
        return mobilenetv2(state)
    return _rename(state, [*_TWO_D, (r"\.conv1\.net\.", ".conv1.")])


def pyslowfast(state: Mapping[str, Tensor]) -> State:
    """PySlowFast's SlowFast and Slow networks, ``.pyth`` names.

    ======================================  =======================================
    ``s1.pathway1_stem.conv.weight``        ``fast.stem.conv1.weight``
    ``s1_fuse.conv_f2s.weight``             ``fusions.0.conv.weight``
    ``s2.pathway0_res1.branch1.weight``     ``slow.stages.0.1.downsample.0.weight``
    ``s2.pathway0_res1.branch2.a_bn.bias``  ``slow.stages.0.1.bn1.bias``
    ``head.projection.weight``              ``head.weight``
    ======================================  =======================================

    The pathway of a network with one pathway is called ``pathway``, not ``slow``.
    """
    slow = "slow" if any("pathway1" in key for key in state) else "pathway"
    names = {"0": slow, "1": "fast"}

    def block(match: re.Match[str]) -> str:
        return f"{names[match[2]]}.stages.{int(match[1]) - 2}.{match[3]}."

    return _rename(
        state,
        [
            (r"^s1\.pathway(\d)_stem\.(conv|bn)", lambda m: f"{names[m[1]]}.stem.{m[2]}1"),
            (r"^s(\d)_fuse\.conv_f2s\.", lambda m: f"fusions.{int(m[1]) - 1}.conv."),
            (r"^s(\d)_fuse\.bn", lambda m: f"fusions.{int(m[1]) - 1}.bn"),
            (r"^s(\d)\.pathway(\d)_res(\d+)\.", block),
            (r"\.branch1_bn", ".downsample.1"),
            (r"\.branch1\.", ".downsample.0."),
            (r"\.branch2\.([abc])_bn", lambda m: f".bn{'abc'.index(m[1]) + 1}"),
            (r"\.branch2\.([abc])\.", lambda m: f".conv{'abc'.index(m[1]) + 1}."),
            (r"\.branch2\.adaconv", ".site"),
            (r"^head\.projection\.", "head."),
        ],
    )


def caffe2(state: Mapping[str, Tensor]) -> State:
    """PySlowFast's model zoo in Caffe2 format (``.pkl``), e.g. ``t_res2_0_branch2a_bn_s``.

    Blobs of the optimizer (momenta, learning rate, iteration) are dropped.
    """
    leaves = {"w": "weight", "b": "bias", "s": "weight", "rm": "running_mean", "riv": "running_var"}
    ours: State = {}
    for key, value in state.items():
        match = re.fullmatch(r"(t_)?(.+?)(_bn)?_(w|b|s|rm|riv)", key)
        if match is None:
            continue
        pathway, layer, norm = "1" if match[1] else "0", match[2], "_bn" if match[3] else ""
        if fusion := re.fullmatch(r"(?:pool(1)|res(\d)_\d+_branch2c_bn)_subsample", layer):
            stage = fusion[1] or fusion[2]
            name = f"s{stage}_fuse.{'bn' if norm else 'conv_f2s'}"
        elif place := re.fullmatch(r"res(\d)_(\d+)_branch(1|2)([abc]?)", layer):
            part = f".{place[4]}" if place[4] else ""
            name = f"s{place[1]}.pathway{pathway}_res{place[2]}.branch{place[3]}{part}{norm}"
        elif layer in ("conv1", "res_conv1"):
            name = f"s1.pathway{pathway}_stem.{'bn' if norm else 'conv'}"
        elif layer == "pred":
            name = "head.projection"
        else:
            name = layer  # reported as unknown to the model
        ours[f"{name}.{leaves[match[4]]}"] = value
    return pyslowfast(ours)


def uniformer(state: Mapping[str, Tensor]) -> State:
    """UniFormer's repository, weights of videos.

    ``patch_embed2`` becomes ``embeds.1`` and ``blocks3.0`` becomes ``blocks.2.0``.
    """
    return _rename(
        state,
        [
            (r"^patch_embed(\d)\.", lambda m: f"embeds.{int(m[1]) - 1}."),
            (r"^blocks(\d)\.", lambda m: f"blocks.{int(m[1]) - 1}."),
            (r"\.adaconv", ".site"),
        ],
    )


def mmaction2(state: Mapping[str, Tensor]) -> State:
    """MMAction2's TSM (ResNets, MobileNetV2) and SlowFast.

    ================================================  ====================================
    ``backbone.layer1.0.conv1.conv.net.weight``       ``net.layer1.0.conv1.weight``
    ``backbone.layer1.0.downsample.bn.weight``        ``net.layer1.0.downsample.1.weight``
    ``backbone.slow_path.layer1.0.conv1.bn.bias``     ``slow.stages.0.0.bn1.bias``
    ``backbone.slow_path.conv1_lateral.conv.weight``  ``fusions.0.conv.weight``
    ``cls_head.fc_cls.weight``                        ``net.fc.weight``, ``head.weight``
    ================================================  ====================================
    """
    if is_mobilenetv2(state):
        return mobilenetv2(state)
    two_pathways = any(key.startswith("backbone.slow_path.") for key in state)
    head = "head." if two_pathways else "net.fc."
    pathways = [
        (r"^backbone\.slow_path\.conv1_lateral\.", "fusions.0."),
        (
            r"^backbone\.slow_path\.layer(\d)_lateral\.",
            lambda m: f"fusions.{m[1]}.",
        ),
        (r"^backbone\.(slow|fast)_path\.conv1\.", r"\1.stem.conv1."),
        (
            r"^backbone\.(slow|fast)_path\.layer(\d)\.",
            lambda m: f"{m[1]}.stages.{int(m[2]) - 1}.",
        ),
    ]
    return _rename(
        state,
        [
            *(pathways if two_pathways else []),
            (r"^backbone\.", "net."),
            (r"^cls_head\.fc_cls\.", head),
            (r"\.downsample\.conv\.", ".downsample.0."),
            (r"\.downsample\.bn\.", ".downsample.1."),
            (r"\.conv(\d)\.bn\.", r".bn\1."),
            (r"\.conv(\d)\.conv\.(net\.)?", r".conv\1."),
        ],
    )


def image(state: Mapping[str, Tensor]) -> State:
    """Image networks of timm, and of torchvision: ResNets (same names) and MobileNetV2."""
    if is_mobilenetv2(state):
        return mobilenetv2(state)
    return {f"net.{key}": value for key, value in state.items()}


def is_flexible(state: Mapping[str, Tensor]) -> bool:
    """Whether a state dict of FFN-pytorch has entries per frame count."""
    return any(_BRANCH.search(key) for key in state)


_TWO_D: list = [
    (r"^base_model\.", "net."),
    (r"^(new_fc|net\.fc)\.", "net.fc."),
    (r"\.downsample_conv\.", ".downsample.0."),
    (r"\.downsample_bn_", ".downsample.1_"),
    (r"\.bns_(\d+)\.(\d+)\.", r".bns.\2_\1."),
    (r"\.adaconv_", ".conv1.site_"),
]


def _rename(state: Mapping[str, Tensor], rules: Rules) -> State:
    ours: State = {}
    rules = list(rules)
    for key, value in state.items():
        for pattern, by in rules:
            key = re.sub(pattern, by, key)
        ours[key] = value
    return ours
