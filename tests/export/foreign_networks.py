"""Convert, fuse and export networks of other packages; the table in docs/foreign_networks.md.

``python tests/export/foreign_networks.py`` runs all and writes the table. A row states a network,
the shape of its clips, and what happened; a cell that is no number is the reason of a refusal.
"""

from __future__ import annotations

import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import timm
import torch
import torchvision
from torch import Tensor, nn

import ffn
from ffn.export import Networks
from ffn.layers import PerFrame

PAGE = Path(__file__).resolve().parents[2] / "docs/foreign_networks.md"
COLUMNS = (
    "network",
    "clip",
    "private modules",
    "norms and alterations folded, kept",
    "packed",
    "`.pt2`",
    "`.onnx`",
)
START = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"


@dataclass(frozen=True)
class Foreign:
    """A network of another package.

    Attributes:
        name: as the table states it.
        build: makes the network, a module of clips (B, C, T, H, W).
        frames: T of its clips.
        size: height and width.
    """

    name: str
    build: Callable[[], nn.Module]
    frames: int = 8
    size: int = 64


class HuggingFace(nn.Module):
    """A video network of Hugging Face with a small configuration."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        import transformers

        sizes = {"hidden_size": 48, "intermediate_size": 96, "image_size": 64, "num_labels": 5}
        layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_frames": 8}
        config = getattr(transformers, f"{kind}Config")(**sizes, **layers)
        self.net = getattr(transformers, f"{kind}ForVideoClassification")(config)

    def forward(self, clip: Tensor) -> Tensor:
        return self.net(clip.transpose(1, 2)).logits


class Recurrent(nn.Module):
    """A recurrent layer over the features of the frames."""

    def __init__(self) -> None:
        super().__init__()
        self.net = timm.create_model("resnet18", num_classes=0)
        self.lstm = nn.LSTM(512, 32, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 5)

    def forward(self, clip: Tensor) -> Tensor:
        features = self.net(clip.transpose(1, 2).flatten(0, 1))
        steps, _ = self.lstm(features.unflatten(0, (clip.shape[0], -1)))
        return self.head(self.norm(steps[:, -1]))


class Encoder(nn.Module):
    """``nn.TransformerEncoder`` over the features of the frames."""

    def __init__(self) -> None:
        super().__init__()
        self.net = timm.create_model("resnet18", num_classes=0)
        layer = nn.TransformerEncoderLayer(512, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(512, 5)

    def forward(self, clip: Tensor) -> Tensor:
        features = self.net(clip.transpose(1, 2).flatten(0, 1))
        return self.head(self.encoder(features.unflatten(0, (clip.shape[0], -1))).mean(1))


class Tied(nn.Module):
    """A norm whose weight is also that of a layer which all counts share."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torchvision.models.video.r3d_18(num_classes=5)
        self.net.layer4[1].conv2[0].bias = self.net.layer4[1].conv2[1].bias

    def forward(self, clip: Tensor) -> Tensor:
        return self.net(clip)


def networks() -> Iterator[Foreign]:
    """The networks of the table."""
    video = torchvision.models.video
    for name in ("r3d_18", "mc3_18", "r2plus1d_18", "swin3d_t"):
        yield Foreign(f"torchvision `{name}`", lambda n=name: getattr(video, n)())
    for name in ("s3d", "mvit_v1_b", "mvit_v2_s"):
        yield Foreign(f"torchvision `{name}`", lambda n=name: getattr(video, n)(), 16, 224)

    def image(name: str, size: int, **options: object) -> Foreign:
        build = lambda: PerFrame(getattr(torchvision.models, name)(**options))  # noqa: E731
        return Foreign(f"torchvision `{name}`", build, 4, size)

    for name in (
        *("alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "mnasnet0_5"),
        *("mobilenet_v2", "mobilenet_v3_small", "regnet_y_400mf", "resnet18", "resnext50_32x4d"),
        *("shufflenet_v2_x0_5", "squeezenet1_0", "swin_t", "vgg11", "vgg11_bn"),
    ):
        yield image(name, 64)
    yield image("googlenet", 64, init_weights=False)
    yield image("vit_b_32", 224)

    for name, size in {
        **dict.fromkeys(("convnext_atto", "dla34", "edgenext_xx_small", "efficientnet_lite0"), 64),
        **dict.fromkeys(("fastvit_t8", "ghostnet_050", "hrnet_w18_small", "levit_128s"), 224),
        **dict.fromkeys(("mobilevit_xxs", "nf_resnet26", "poolformer_s12", "pvt_v2_b0"), 64),
        **dict.fromkeys(("regnety_002", "repvgg_a0", "res2net50_14w_8s", "resnetv2_50"), 64),
        **dict.fromkeys(("seresnet50", "tf_efficientnetv2_b0", "mobilenetv4_conv_small"), 64),
        **dict.fromkeys(("tiny_vit_5m_224", "vit_tiny_patch16_224", "xcit_nano_12_p16_224"), 224),
    }.items():
        build = lambda n=name: PerFrame(timm.create_model(n, num_classes=5))  # noqa: E731
        yield Foreign(f"timm `{name}`", build, 4, size)

    for kind in ("VideoMAE", "Timesformer", "Vivit"):
        yield Foreign(f"Hugging Face `{kind}`", lambda k=kind: HuggingFace(k), 8)
    for kind in (Recurrent, Encoder, Tied):
        label = {Recurrent: "`nn.LSTM` after `resnet18`", Encoder: "`nn.TransformerEncoder`"}
        yield Foreign(label.get(kind, "a norm with a shared parameter"), kind, 4)


def row(network: Foreign) -> tuple[str, ...]:
    """The cells of a network; raises AssertionError if an output is wrong."""
    torch.manual_seed(0)
    shape = (3, network.frames, network.size, network.size)
    cells = [network.name, " x ".join(map(str, shape))]
    plain = network.build().eval()
    for parameter in plain.parameters():
        if parameter.ndim > 1 and not parameter.any():  # as in a new classifier of ViT
            nn.init.normal_(parameter, std=0.02)
    clip = torch.randn(2, *shape)
    try:
        model = ffn.convert(plain, (4, 8, 16), alter="none").eval()
    except ValueError as error:
        return (*cells, _reason(error), "", "", "", "")
    assert _differ(model(clip), plain(clip)) < 1e-5
    _perturb(model)
    cells.append(str(len(model.report.private)))

    try:
        fused = ffn.fuse(model, network.frames, example=clip)
        assert _differ(fused(clip), model(clip)) < 1e-4
        cells += [f"{len(fused.fusion.folded)}, {len(fused.fusion.kept)}", packed(model, clip)]
    except ffn.export.ExportError as error:
        cells += [_reason(error), ""]
    for suffix in ("pt2", "onnx"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"net.{suffix}"
            try:
                report = ffn.export(model, path, frames=network.frames, size=network.size)
                cells.append(f"{report.difference / report.largest:.0e}")
            except Exception as error:  # of many kinds, of other packages too
                cells.append(_reason(error))
    return tuple(cells)


def packed(model: nn.Module, clip: Tensor) -> str:
    """What ffn.Predictor runs: the largest difference, or that the network runs fused only."""
    run = Networks(model, precision="fp32")
    difference = _differ(run(clip), model(clip))
    assert difference < 1e-4
    return f"{difference:.0e}" if "packed" in run.describe(clip.device) else "fused only"


def main() -> int:
    """Write the table."""
    wanted = sys.argv[1:]
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(START)
    rows = {line.split(" | ")[0]: line for line in rest.splitlines() if line.startswith("| ")}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for network in networks():
            if not wanted or any(word in network.name for word in wanted):
                line = f"| {' | '.join(row(network))} |"
                rows[line.split(" | ")[0]] = line
                print(line, flush=True)
                known = [f"| {one.name}" for one in networks()]
                lines = [rows[name] for name in known if name in rows]
                PAGE.write_text(head + START + "\n".join(lines) + "\n", encoding="utf-8")
    return 0


def _perturb(model: nn.Module) -> None:
    """Statistics of a trained network's kind, for folds that matter."""
    for module in model.modules():
        if getattr(module, "running_var", None) is not None:
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.running_var, 0.8, 1.25)


def _differ(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).abs().max() / expected.abs().max()).item()


def _reason(error: Exception) -> str:
    text = re.sub(r"\s+", " ", str(error)).replace("|", "/")
    return f"{text[:120]}…" if len(text) > 120 else text


if __name__ == "__main__":
    sys.exit(main())
