"""Early exit: more frames only if few are not enough."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cyclopts.types import PositiveFloat

from ffn.cli.arguments import (
    ConfigFile,
    Device,
    FrameCounts,
    Override,
    Overwrite,
    Weights,
    find_device,
    read_run,
)
from ffn.cli.test import loader_for
from ffn.files import make_writable, refuse_existing


def early_exit(
    config: ConfigFile,
    /,
    *overrides: Override,
    weights: Weights,
    frames: FrameCounts | None = None,
    budget_gmacs: PositiveFloat | None = None,
    output: Path | None = None,
    overwrite: Overwrite = False,
    device: Device = None,
) -> None:
    """Fit early exit: the network looks at few frames first, and at more if it is not confident.

    The videos of the config's validation list (data.val) set the thresholds; the network must not
    be trained on them. Prints what early exit gains or loses on videos that its thresholds were not
    fitted to. Without --budget-gmacs, the fit keeps the accuracy of the largest count at the lowest
    cost. `ffn predict --frames early_exit` uses the file.

    Args:
        frames: Counts to choose up to three stages from, six at most; default: the trained counts.
        budget_gmacs: Find the best accuracy at this mean cost, in giga multiply-accumulates.
        output: The file; default: beside the weights, e.g. best.early_exit.json.
    """
    options, _ = read_run(config, overrides, device)
    if output is None and not Path(weights).is_file():
        raise ValueError(f"{weights} is no file that early exit is kept beside; give --output")

    from rich.console import Console

    from ffn.engine.distributed import World
    from ffn.evaluation.early_exit import early_exit_table, fit_early_exit, held_out
    from ffn.evaluation.sweep import sweep
    from ffn.zoo import early_exit_path, load_with_record, state_sha256

    output = output or early_exit_path(Path(weights))
    refuse_existing([output], overwrite, inputs=[weights])
    make_writable(output.parent)
    world = World(0, 1, find_device(device))
    model, record = load_with_record(weights, device=world.device)
    record.require_classes("early exit")
    digest = state_sha256(model.state_dict())
    counts = sorted({*(frames or record.trained_frames or options.data.test_frames)})
    loader, _ = loader_for(weights, record, options, world, frames=counts, protocol="1x1")
    result = sweep(model, loader, name=record.name, latency=False, keep_logits=True, progress=True)
    gmacs = {row.frames: row.gmacs for row in result.rows}
    found = fit_early_exit(result.predictions, gmacs, budget_gmacs)
    found = replace(found, network=record.name, weights_sha256=digest)
    tested = held_out(result.predictions, gmacs, budget_gmacs)
    Console().print(early_exit_table(result.predictions, gmacs, found, tested))
    found.save(output)
    print(output)
