"""Cost of an answer: a causal network that reads one frame against a window of T frames.

    python examples/stream_cost.py [MODEL …]

Prints milliseconds and multiply-accumulates for random weights at 224 px, with one thread. Windows
run through a fused network that reads both ways, as in `ffn live`. The two are timed in turns.
"""

import sys
import time

import torch
from torch.utils.flop_counter import FlopCounterMode

import ffn

ROUNDS = 5


def gmacs(run, x):
    """10^9 multiply-accumulates of a call."""
    with FlopCounterMode(display=False) as counter:
        run(x)
    return counter.get_total_flops() / 2e9


torch.set_num_threads(1)
print("| model | T | ms: window, step | ratio | GMACs: window, step | ratio |")
print("|---|---|---|---|---|---|")
for name in sys.argv[1:] or ["tsm_mobilenetv2", "tsm_r50"]:
    step = ffn.stream(ffn.create_model(name, causal=True).eval()).step
    step(torch.randn(1, 3, 224, 224))  # builds the network
    window = ffn.fuse(ffn.create_model(name).eval(), 16)
    for frames in (8, 16):
        clip = torch.randn(1, 3, frames, 224, 224)
        runs, best = [(window, clip), (step, clip[:, :, 0])], [float("inf")] * 2
        with torch.inference_mode():
            macs = [gmacs(*one) for one in runs]
            for _ in range(ROUNDS):
                for place, (run, x) in enumerate(runs):
                    started = time.perf_counter()
                    run(x)
                    best[place] = min(best[place], 1000 * (time.perf_counter() - started))
        print(
            f"| `{name}` | {frames} | {best[0]:.1f}, {best[1]:.1f} | {best[0] / best[1]:.1f} "
            f"| {macs[0]:.2f}, {macs[1]:.3f} | {macs[0] / macs[1]:.1f} |"
        )
