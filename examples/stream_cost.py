"""Cost of an answer: a causal network that reads one frame against a window of T frames.

    python examples/stream_cost.py [MODEL …]

Prints milliseconds and multiply-accumulates, with random weights at 224 px and one thread; the
window has a network that reads both ways, as `ffn live` runs it. The two are timed in turns.
"""

import sys
import time

import torch
from torch.utils.flop_counter import FlopCounterMode

import ffn

ROUNDS = 5


def measure(run, x):
    """Seconds and multiply-accumulates of a call."""
    started = time.perf_counter()
    run(x)
    seconds = time.perf_counter() - started
    with FlopCounterMode(display=False) as counter:
        run(x)
    return seconds, counter.get_total_flops() / 2


def network(name, **options):
    """A network whose norms have seen clips: others let values vanish, which CPUs compute slowly."""
    model = ffn.create_model(name, **options)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = 1.0
        model(torch.randn(2, 3, 4, 224, 224))
    return model.eval()


torch.set_num_threads(1)
print(
    "| model | T | ms: window, step | ratio | GMACs: window, step | ratio |\n|---|---|---|---|---|---|"
)
for name in sys.argv[1:] or ["tsm_mobilenetv2", "tsm_r50"]:
    clip = torch.randn(1, 3, 16, 224, 224)
    step = ffn.stream(network(name, causal=True)).step
    window = ffn.fuse(network(name), 16, example=clip)
    with torch.inference_mode():
        for frames in (8, 16):
            runs = ((window, clip[:, :, :frames]), (step, clip[:, :, 0]))
            found = [[measure(*run) for run in runs] for _ in range(ROUNDS + 1)][1:]
            (ms, macs), (step_ms, step_macs) = (map(min, zip(*one)) for one in zip(*found))
            print(
                f"| `{name}` | {frames} | {1e3 * ms:.1f}, {1e3 * step_ms:.1f} | "
                f"{ms / step_ms:.1f} | {macs / 1e9:.2f}, {step_macs / 1e9:.3f} | "
                f"{macs / step_macs:.1f} |"
            )
