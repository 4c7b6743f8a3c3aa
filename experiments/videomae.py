"""A ViT at 4, 8 and 16 frames against VideoMAE of transformers, and its forward passes in FP8.

    python experiments/videomae.py --model vit_tiny --size 32 --batch-size 8                  # CPU
    python experiments/videomae.py --model vit_b --batch-size 16 --precision bf16 --compile  # CUDA

A training step of one network for all counts is compared with those of three VideoMAE networks
("plain"), which run through the same train step. Then, on a card with FP8, forward passes in bf16
with those whose linear layers torchao computes in FP8.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn
from transformers import VideoMAEConfig, VideoMAEForVideoClassification

import ffn
from ffn.benchmarks.report import describe_run, print_comparison
from ffn.benchmarks.timing import interleave, quartiles
from ffn.benchmarks.training import compare_training
from ffn.cli.benchmark import build_step
from ffn.engine import build
from ffn.engine.config import load_config
from ffn.engine.distributed import World
from ffn.engine.train_step import TrainStep

VIEWS, CLASSES = (4, 8, 16), 174
FP8 = (8, 9)  # the first compute capability that has it


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


@torch.inference_mode()
def compare_fp8(model: str, size: int, frames: int, clips: int, device: torch.device) -> str:
    """Time of FP8 relative to bf16, both compiled, and the largest difference of the logits."""
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow, quantize_

    flexible = ffn.convert(ffn.create_model(model, num_classes=CLASSES), VIEWS).eval()
    networks = {"bf16": ffn.extract(flexible, frames).to(device, torch.bfloat16)}
    networks["fp8"] = deepcopy(networks["bf16"])
    config = Float8DynamicActivationFloat8WeightConfig(granularity=PerRow())
    quantize_(networks["fp8"].blocks, config)
    clip = torch.randn(clips, 3, frames, size, size, device=device, dtype=torch.bfloat16)
    calls = {name: partial(torch.compile(one), clip) for name, one in networks.items()}
    logits = {name: call().float() for name, call in calls.items()}
    difference = (logits["fp8"] - logits["bf16"]).abs().max() / logits["bf16"].abs().max()
    seconds = interleave(calls, rounds=20, device=device)
    ratios = [b / a for a, b in zip(seconds["fp8"], seconds["bf16"], strict=True)]
    speed = ", ".join(f"{ratio:.3f}" for ratio in quartiles(ratios))
    return f"{frames} frames, {clips} clips: speed {speed}; largest difference {difference:.4f}"


def main() -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="vit_b")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(*(f"{key}: {value}" for key, value in describe_run(device).items()), sep="\n")
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
    if device.type == "cpu" or torch.cuda.get_device_capability(device) < FP8:
        print("FP8 needs a CUDA device of compute capability 8.9 or more")
        return
    for frames in VIEWS:
        for clips in (1, 64):
            print(compare_fp8(args.model, args.size, frames, clips, device))


if __name__ == "__main__":
    main()
