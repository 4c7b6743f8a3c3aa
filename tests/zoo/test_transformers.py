"""VideoMAE and V-JEPA 2 in folders and repositories of transformers, against its networks."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import ffn
from ffn import backbones
from ffn.zoo import WeightsError
from ffn.zoo.remap import from_foreign

VIDEOMAE = {
    "image_size": 24,
    "patch_size": 8,
    "num_frames": 8,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 60,
    "decoder_hidden_size": 12,
    "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 20,
}
VJEPA2 = {
    "crop_size": 24,
    "patch_size": 8,
    "frames_per_clip": 8,
    "hidden_size": 42,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "mlp_ratio": 3.0,
    "num_pooler_layers": 2,
    "pred_hidden_size": 12,
    "pred_num_attention_heads": 2,
    "pred_num_hidden_layers": 1,
}
PROCESSOR = {
    "size": {"shortest_edge": 28},
    "crop_size": {"height": 24, "width": 24},
    "image_mean": [0.4, 0.5, 0.6],
    "image_std": [0.2, 0.3, 0.4],
}
CLASSES = {0: "left", 1: "right", 2: "still"}


@pytest.fixture(scope="module")
def transformers() -> ModuleType:
    return pytest.importorskip("transformers")


def saved(transformers: ModuleType, folder: Path, name: str, **options: Any) -> nn.Module:
    """A network of transformers in a folder, with values that all differ."""
    kind, values = ("VideoMAE", VIDEOMAE) if "MAE" in name else ("VJEPA2", VJEPA2)
    options = {"id2label": CLASSES, **values, **options}
    torch.manual_seed(0)
    network = getattr(transformers, name)(getattr(transformers, f"{kind}Config")(**options)).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    network.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return network


def clip_of(frames: int, side: int = 24) -> Tensor:
    return torch.randn(2, 3, frames, side, side, generator=torch.Generator().manual_seed(frames))


def assert_same(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "counts"),
    [
        ("VideoMAEForVideoClassification", {}, (8,)),
        ("VideoMAEForVideoClassification", {"use_mean_pooling": False}, (8,)),
        ("VideoMAEForVideoClassification", {"qv_bias": False}, (8,)),
        ("VJEPA2ForVideoClassification", {}, (8, 2, 16)),
    ],
)
@torch.no_grad()
def test_logits_are_those_of_transformers(
    transformers: ModuleType, tmp_path: Path, name: str, options: dict, counts: tuple
) -> None:
    network = saved(transformers, tmp_path, name, **options)

    model = ffn.load(tmp_path)

    for frames in counts:  # VideoMAE refuses others
        assert_same(model(clip_of(frames)), network(clip_of(frames).transpose(1, 2)).logits)
    assert model.record.classes == tuple(CLASSES.values())
    assert model.record.options("task") == {"frames": [8]}
    expected = {"crop": 24, "resize": 28, "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]}
    assert model.record.preprocessing == expected | {"color": "rgb", "sampling": "segment"}
    flexible = ffn.convert(model, (4, 8), alter="none")
    for frames in range(1, 34):
        assert flexible(clip_of(frames)).isfinite().all()
    assert torch.equal(flexible(clip_of(8)), model(clip_of(8)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["VideoMAEForPreTraining", "VideoMAEModel", "VJEPA2Model"])
@torch.no_grad()
def test_encoders_are_what_a_network_starts_from(
    transformers: ModuleType, tmp_path: Path, name: str
) -> None:
    network = saved(transformers, tmp_path, name, use_mean_pooling=False)
    encoder = getattr(network, "videomae", network)
    with pytest.raises(WeightsError, match=r"has no classifier; start a network.*pretrained="):
        ffn.load(tmp_path)

    form = {"dim": 24, "heads": 3, "mlp_ratio": 2.5, "grid": (4, 3, 3), "eps": (1e-12, 1e-5)}
    if name == "VJEPA2Model":
        form = {"dim": 42, "heads": 3, "mlp_ratio": 3.0, "positions": "rotary", "pool": "attention"}
    form |= {"depth": 2, "patch": 8}
    model = ffn.create_model("vit", num_classes=7, pretrained=tmp_path, **form)

    found = model.eval().forward_features(clip_of(8)).flatten(2).transpose(1, 2)
    if name != "VJEPA2Model":  # its last norm is not that of a classifier
        found = encoder.layernorm(found)
    assert_same(found, encoder(clip_of(8).transpose(1, 2)).last_hidden_state)
    assert model(clip_of(3)).shape == (2, 7)
    flexible = ffn.convert(backbones.build("vit", num_classes=7, **form), (4, 8), alter="none")
    match, _ = ffn.zoo.load_start_weights(flexible, tmp_path)
    assert match.classes == (0, 7)
    for frames in (3, 8):
        clip = clip_of(frames)
        assert torch.equal(flexible.eval().forward_features(clip), model.forward_features(clip))
    head = {"name": "probe", "width": 64, "depth": 0, "grid": 1}
    probe = ffn.create_model("vit", num_classes=7, pretrained=tmp_path, head=head, **form)
    assert torch.equal(probe.backbone.eval().forward_features(clip), model.forward_features(clip))


@pytest.mark.slow
@torch.no_grad()
def test_from_the_hub(transformers: ModuleType, tmp_path: Path, hub) -> None:
    network = saved(transformers, tmp_path / "net", "VideoMAEForVideoClassification")
    weights = tmp_path / "net/model.safetensors"
    state = safetensors.torch.load_file(weights)
    names = {"query.bias": "q_bias", "value.bias": "v_bias"}  # of older versions, as published
    for new, old in names.items():
        state = {k.replace(f"attention.{new}", f"attention.{old}"): v for k, v in state.items()}
    safetensors.torch.save_file(state, weights)
    hub.folder = tmp_path / "net"

    model = ffn.load("hf://me/net")

    assert_same(model(clip_of(8)), network(clip_of(8).transpose(1, 2)).logits)
    assert (model.record.name, model.record.classes[2]) == ("net", "still")
    assert ffn.zoo.fetch_weights("hf://me/net").name == "model.safetensors"
    weights.unlink()  # as older repositories, which have a pickle
    hub.commit = "1" * 40
    torch.save(state, tmp_path / "net/pytorch_model.bin")
    for name in ("hf://me/net@v1", tmp_path / "net"):
        assert_same(ffn.load(name)(clip_of(8)), model(clip_of(8)))
    answer = ffn.Predictor("hf://me/net")(torch.zeros(9, 30, 40, 3, dtype=torch.uint8).numpy())
    assert answer.top(1)[0][0] in CLASSES.values()


def test_the_names_of_videomae_s_repositories() -> None:
    """They have q_bias and v_bias beside qkv; a pretraining has them under ``encoder``."""
    ours = {k: torch.rand_like(v) for k, v in backbones.build("vit_tiny").state_dict().items()}
    theirs = {}
    for key, value in ours.items():
        if key.endswith("qkv.bias"):
            q, k, v = value.chunk(3)
            k.zero_()
            theirs |= {key.replace("qkv", "q").replace(".bias", "_bias"): q}
            theirs |= {key.replace("qkv", "v").replace(".bias", "_bias"): v}
        else:
            theirs[key.replace("patch_embed.", "patch_embed.proj.")] = value
    found = from_foreign(theirs, model="vit_tiny")
    assert (found.source, found.preprocessing) == ("videomae", {"resize": 224})
    assert all(torch.equal(value, ours[k]) for k, value in found.model.state_dict().items())

    extra = {"encoder.norm.bias", "decoder.blocks.0.attn.q_bias", "mask_token"}
    pretrained = {f"encoder.{k}": v for k, v in theirs.items() if not k.startswith(("head", "fc_"))}
    pretrained |= dict.fromkeys(extra, torch.ones(3))
    with pytest.raises(WeightsError, match="--num-classes K"):
        from_foreign(pretrained, model="vit_tiny")
    found = from_foreign(pretrained, model="vit_tiny", num_classes=3)
    assert found.match.classes == (0, 3)
    state = found.model.state_dict()
    assert torch.equal(state["blocks.4.attn.qkv.bias"], ours["blocks.4.attn.qkv.bias"])


@pytest.mark.parametrize(
    ("config", "processor", "message"),
    [
        ({"model_type": "timesformer"}, {}, "'timesformer'; ffn reads videomae and vjepa2"),
        ({"tubelet_size": 4}, {}, "tubelet_size 4; ffn has 2 alone"),
        ({"hidden_act": "relu"}, {}, "hidden_act 'relu'; ffn has 'gelu'"),
        ({"patch_size": [8, 4]}, {}, "config.json or preprocessor_config.json"),
        ({}, {"crop_size": {"height": 24, "width": 20}}, "ffn takes a center crop that is square"),
        ({}, {"size": {"height": 24, "width": 24}}, "shortest_edge"),
        ({"num_hidden_layers": 3}, {}, r"blocks\.\d\S* is missing"),
        ("[]", {}, "has no keys and values"),
        ("{", {}, "is not valid JSON"),
        ({}, None, "has no preprocessor_config.json or video_preprocessor_config.json"),
    ],
)
def test_folders_that_are_refused(
    tmp_path: Path, config: Any, processor: Any, message: str
) -> None:
    state = {"classifier.weight": torch.zeros(3, 24), "classifier.bias": torch.zeros(3)}
    safetensors.torch.save_file(state, tmp_path / "model.safetensors")
    if isinstance(config, dict):
        config = json.dumps({"model_type": "videomae", **VIDEOMAE, **config})
    (tmp_path / "config.json").write_text(config)
    if processor is not None:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(PROCESSOR | processor))
    with pytest.raises(WeightsError, match=message):
        ffn.load(tmp_path)
