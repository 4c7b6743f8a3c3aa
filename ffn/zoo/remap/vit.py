"""Vision transformers of VideoMAE's repositories and of Hugging Face's ``transformers``.

``videomae`` is the layout of MCG-NJU/VideoMAE and OpenGVLab/VideoMAEv2, ``huggingface`` that of
``VideoMAEForVideoClassification`` and ``VJEPA2ForVideoClassification``, and of their encoders.
Decoders and predictors of the pretraining are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ffn.zoo.records import WeightRecord, WeightsError

_UNUSED = ("decoder.", "encoder_to_decoder.", "mask_token", "predictor.")
_RULES = (
    (r"^(videomae|vjepa2)\.", ""),
    (r"^(encoder\.)?embeddings\.patch_embeddings\.proj(ection)?\.", "patch_embed."),
    (r"^(encoder\.)?patch_embed\.proj\.", "patch_embed."),
    (r"^(encoder\.)?(layer|blocks)\.", "blocks."),
    (r"^(encoder\.)?(layer)?norm\.", "norm."),
    (r"^classifier\.", "head."),
    (r"^pooler\.self_attention_layers\.", "pooler.blocks."),
    (r"^pooler\.query_tokens$", "pooler.attn.latent"),
    (r"^pooler\.cross_attention_layer\.layer_norm1\.", "pooler.norm."),
    (r"^pooler\.cross_attention_layer\.layer_norm2\.", "pooler.attn.norm."),
    (r"^pooler\.cross_attention_layer\.cross_attn\.", "pooler.attn."),
    (r"^pooler\.cross_attention_layer\.mlp\.", "pooler.attn.mlp."),
    (r"\.(layernorm_before|layer_norm1)\.", ".norm1."),
    (r"\.(layernorm_after|layer_norm2)\.", ".norm2."),
    (r"\.attention\.output\.dense\.", ".attn.proj."),
    (r"\.(attention\.attention|attention|self_attn)\.", ".attn."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
    (r"\.attn\.out_proj\.", ".attn.proj."),
    (r"\.attn\.(q|k|v)(uery|ey|alue|_proj)?[._]", r".attn.\1."),
)
# What the networks of transformers may have otherwise.
_FIXED = {"tubelet_size": 2, "num_channels": 3, "in_chans": 3, "hidden_act": "gelu"}


def rename(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries with the names of :class:`ffn.backbones.ViT`; unknown names are kept.

    ====================================================  =============================
    ``blocks.0.attn.q_bias``, ``….v_bias`` (VideoMAE)     ``blocks.0.attn.qkv.bias``
    ``….layer.0.attention.attention.query.weight``, …     ``blocks.0.attn.qkv.weight``
    ``videomae.encoder.layer.0.output.dense.weight``      ``blocks.0.mlp.fc2.weight``
    ``pooler.cross_attention_layer.cross_attn.k_proj.…``  ``pooler.attn.kv.…``
    ====================================================  =============================

    Note:
        V-JEPA 2's pooler adds the query to its attention, timm's projects the attention: an
        identity whose bias is the query is the same. Keys of VideoMAE have no bias; any would do.
        The norm after an encoder of VideoMAE without a classifier is not used in a classifier.
    """
    ours = {}
    for key, value in state.items():
        if not key.removeprefix("vjepa2.").startswith(_UNUSED):
            for pattern, by in _RULES:
                key = re.sub(pattern, by, key)
            ours[key] = value
    _join(ours)
    is_vjepa = any("encoder.layer.0.norm1." in key for key in state)
    if "head.weight" not in ours and not is_vjepa:
        ours = {k: v for k, v in ours.items() if not k.startswith("norm.")}
    return ours


def _join(state: dict[str, Tensor]) -> None:
    """Join queries, keys and values, in place."""
    for name in [key[: -len("k.weight")] for key in state if key.endswith(".attn.k.weight")]:
        parts, joined = "kv" if name == "pooler.attn." else "qkv", []
        weights = [state.pop(f"{name}{part}.weight") for part in parts]
        for part, weight in zip(parts, weights, strict=True):
            joined.append(state.pop(f"{name}{part}.bias", weight.new_zeros(len(weight))))
        state |= {f"{name}{parts}.weight": torch.cat(weights)}
        state |= {f"{name}{parts}.bias": torch.cat(joined)}
    for name in [key[: -len("q.bias")] for key in state if key.endswith(".attn.q.bias")]:
        if f"{name}qkv.weight" in state:  # of VideoMAE's repositories
            q, v = state.pop(f"{name}q.bias"), state.pop(f"{name}v.bias")
            state[f"{name}qkv.bias"] = torch.cat([q, torch.zeros_like(q), v])
    if (query := state.get("pooler.attn.latent")) is not None:
        state["pooler.attn.proj.weight"] = torch.eye(query.shape[-1], dtype=query.dtype)
        state["pooler.attn.proj.bias"] = query.flatten().clone()


def record_of(
    config: Mapping[str, Any], processor: Mapping[str, Any], state: Mapping[str, Tensor], name: str
) -> WeightRecord:
    """The record of a network of ``transformers``.

    Args:
        config: content of its config.json.
        processor: content of its preprocessor_config.json or video_preprocessor_config.json.
        state: from :func:`rename`.
        name: of the record.

    Raises:
        WeightsError: it is another network, or its frames are prepared in another way.
    """
    kind = config.get("model_type")
    if kind not in ("videomae", "vjepa2"):
        raise WeightsError(f"config.json has model_type {kind!r}; ffn reads videomae and vjepa2")
    for key, ours in _FIXED.items():
        if config.get(key, ours) != ours:
            raise WeightsError(f"config.json has {key} {config[key]!r}; ffn has {ours!r} alone")
    try:
        frames, args = (_videomae if kind == "videomae" else _vjepa2)(config)
        preprocessing = _preprocessing(processor)
    except (KeyError, TypeError) as error:
        files = "config.json or preprocessor_config.json"
        raise WeightsError(f"{files} has no value of the expected kind: {error!r}") from None
    classes = len(state["head.weight"]) if "head.weight" in state else 0
    named = {int(index): label for index, label in config.get("id2label", {}).items()}
    return WeightRecord(
        name=name,
        model="vit",
        model_args=args,
        num_classes=classes,
        classes=tuple(named[k] for k in range(classes)) if len(named) == classes else None,
        preprocessing=preprocessing,
        source=f"transformers: {name}",
        config={"task": {"frames": [frames]}},
    )


def _videomae(config: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """The number of frames of the training and the arguments of ``vit``."""
    return config["num_frames"], {
        "dim": config["hidden_size"],
        "depth": config["num_hidden_layers"],
        "heads": config["num_attention_heads"],
        "mlp_ratio": config["intermediate_size"] / config["hidden_size"],
        "patch": config["patch_size"],
        "grid": _grid(config, "num_frames", "image_size"),
        "pool": "mean" if config.get("use_mean_pooling", True) else "first",
        "eps": [config.get("layer_norm_eps", 1e-12), 1e-5],  # torch's default after the mean
    }


def _vjepa2(config: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    eps = config.get("layer_norm_eps", 1e-6)
    return config["frames_per_clip"], {
        "dim": config["hidden_size"],
        "depth": config["num_hidden_layers"],
        "heads": config["num_attention_heads"],
        "mlp_ratio": config.get("mlp_ratio", 4.0),
        "patch": config["patch_size"],
        "positions": "rotary",
        "grid": _grid(config, "frames_per_clip", "crop_size"),
        "pool": "attention",
        "pool_depth": config.get("num_pooler_layers", 3),
        "eps": [eps, eps],
    }


def _grid(config: Mapping[str, Any], frames: str, side: str) -> list[int]:
    return [config[frames] // 2, *[config[side] // config["patch_size"]] * 2]


def _preprocessing(processor: Mapping[str, Any]) -> dict[str, Any]:
    """That of ffn: the shorter side, a center crop, mean and standard deviation."""
    size, crop = processor["size"], processor["crop_size"]
    resize = size["shortest_edge"] if isinstance(size, Mapping) else size
    sides = {*crop.values()} if isinstance(crop, Mapping) else {crop}
    if len(sides) > 1 or not processor.get("do_center_crop", True):
        raise WeightsError(f"crop_size is {crop}; ffn takes a center crop that is square")
    for step in ("do_resize", "do_rescale", "do_normalize"):
        if not processor.get(step, True):
            raise WeightsError(f"{step} is false in the preprocessor's file; ffn does it always")
    side = sides.pop()
    if side > resize:
        raise WeightsError(f"crop_size is {side}, larger than the resized shorter side, {resize}")
    return {
        "crop": side,
        "resize": resize,
        "mean": processor["image_mean"],
        "std": processor["image_std"],
        "color": "rgb",
        "sampling": "segment",
    }
