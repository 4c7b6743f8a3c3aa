"""Training steps of a ViT against VideoMAE of transformers, and its forward passes in FP8.

    python experiments/videomae.py steps --model vit_tiny --size 32 --batch-size 8  # a CPU
    python experiments/videomae.py steps --precision bf16 --compile                 # CUDA
    python experiments/videomae.py fp8                                              # Hopper

`steps`: a training step of one network for 4, 8 and 16 frames, and those of three VideoMAE networks
("plain"), which run through the same train step; with --compile, these are compiled as well. `fp8`:
forward passes in bf16, and with the linear layers of the blocks in FP8 by torchao; both compiled.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from itertools import product

import torch
from torch import Tensor, nn
from transformers import VideoMAEConfig, VideoMAEForVideoClassification

import ffn
from ffn.benchmarks.report import print_comparison
from ffn.benchmarks.timing import interleave, quartiles
from ffn.benchmarks.training import compare_training
from ffn.cli.benchmark import build_step
from ffn.devices import describe_measurement
from ffn.engine import build
from ffn.engine.config import load_config
from ffn.engine.distributed import World
from ffn.engine.train_step import TrainStep

VIEWS, CLASSES = (4, 8, 16), 174
FORWARD = (1, 64)  # clips of a forward pass


class VideoMAE(nn.Module):
    """transformers' network for clips of T frames, as large as a ViT of ffn."""

    def __init__(self, like: nn.Module, frames: int, size: int) -> None:
        super().__init__()
        block = like.blocks[0]
        config = VideoMAEConfig(
            image_size=size,
            patch_size=like.patch,
            num_frames=frames,
            hidden_size=like.patch_embed.out_channels,
            num_hidden_layers=len(like.blocks),
            num_attention_heads=block.attn.num_heads,
            intermediate_size=block.mlp.fc1.out_features,
            num_labels=CLASSES,
        )
        self.network = VideoMAEForVideoClassification(config)
        patches = self.network.videomae.embeddings.patch_embeddings.projection
        patches.to(memory_format=torch.channels_last_3d)  # as in ffn

    def forward(self, clip: Tensor) -> Tensor:
        """(B, C, T, H, W) to (B, K)."""
        return self.network(clip.transpose(1, 2)).logits


def step(
    args: argparse.Namespace,
    device: torch.device,
    task: str,
    frames: Sequence[int],
    options: Sequence[str],
) -> TrainStep:
    """The train step of ffn's network for the views, or of a VideoMAE for one count."""
    if task == "flexible":
        return build_step(args.model, CLASSES, device, task, frames, options)
    options = [*options, "task.name=plain", f"task.frames={list(frames)}"]
    config = load_config(None, [*options, f"train.compile={str(args.compile).lower()}"])
    like = ffn.create_model(args.model, num_classes=CLASSES)
    network = VideoMAE(like, frames[0], args.size).to(device)
    return build.build_train_step(config, network, World(0, 1, device), num_classes=CLASSES)


@torch.no_grad()
def compare_fp8(model: str, size: int, frames: int, clips: int, device: torch.device) -> str:
    """Speed of FP8 relative to bf16, quartiles, and the largest difference of the logits."""
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow, quantize_

    torch.compiler.reset()  # there is a limit of graphs
    torch.manual_seed(0)
    flexible = ffn.convert(ffn.create_model(model, num_classes=CLASSES), VIEWS).eval()
    networks = {"bf16": ffn.extract(flexible, frames).to(device, torch.bfloat16)}
    networks["fp8"] = deepcopy(networks["bf16"])
    config = Float8DynamicActivationFloat8WeightConfig(granularity=PerRow())
    quantize_(networks["fp8"].blocks, config)
    clip = torch.randn(clips, 3, frames, size, size, device=device, dtype=torch.bfloat16)
    options = {"dynamic": False, "fullgraph": True}
    calls = {name: partial(torch.compile(one, **options), clip) for name, one in networks.items()}
    logits = {name: call().float() for name, call in calls.items()}
    difference = (logits["fp8"] - logits["bf16"]).abs().max() / logits["bf16"].abs().max()
    seconds = interleave(calls, rounds=20, device=device)
    ratios = [b / a for a, b in zip(seconds["fp8"], seconds["bf16"], strict=True)]
    speed = ", ".join(f"{ratio:.3f}" for ratio in quartiles(ratios))
    return f"{frames} frames, {clips} clips: speed {speed}; largest difference {difference:.4f}"


def main() -> None:
    """Print a comparison."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("what", choices=["steps", "fp8"])
    parser.add_argument("--model", default="vit_b")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    measured = describe_measurement(device, "transformers", *["torchao"] * (args.what == "fp8"))
    print(*(f"{key}: {value}" for key, value in measured.items()), sep="\n", flush=True)
    if args.what == "fp8":
        for frames, clips in product(VIEWS, FORWARD):
            print(compare_fp8(args.model, args.size, frames, clips, device), flush=True)
        return
    compared = compare_training(
        args.model,
        VIEWS,
        partial(step, args, device),
        batch_size=args.batch_size,
        size=args.size,
        num_classes=CLASSES,
        precision=args.precision,
        compiled=args.compile,
        rounds=args.rounds,
        device=device,
    )
    print_comparison(compared, "videos")


if __name__ == "__main__":
    main()
