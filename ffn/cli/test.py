"""Test networks at any frame counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from cyclopts import Parameter

from ffn.cli.arguments import (
    ConfigFile,
    Device,
    FrameCounts,
    ManyWeights,
    Override,
    Overwrite,
    Runtime,
    names_of,
    read_run,
)
from ffn.cli.test_videos import check_ensemble, loader_for
from ffn.files import make_writable, refuse_existing

if TYPE_CHECKING:
    from ffn.engine.distributed import World
    from ffn.engine.options import Config
    from ffn.evaluation import Sweep

# What the files of a test end in.
TABLES = ("results.json", "results.csv", "results.png")
PREDICTIONS = (".predictions.csv", ".predictions.safetensors")
DETAILS = (".classes.csv", ".confusion.csv", ".confusion.png")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Options:
    """What is tested, measured and written.

    Attributes:
        weights: Names in the zoo, .pt or .safetensors files, or hf://user/name.
        frames: Frames of a clip; default: data.test_frames.
        protocol: Clips x crops per video: 1x1, 1x3, 2x3 or 10x3; default: data.test_protocol.
        shuffle_frames: Put the frames of each clip in a random, reproducible order.
        interpolate: Interpolate the private modules for counts between two trained ones, or use the
            nearest sub-network; default: as stored with the weights. If this changes a network, its
            name in the results starts with interpolated/ or nearest/.
        precision: Of the forward pass; auto: the fastest one on this device, in one process.
        runtime: What runs the network; unfused: torch, as it was trained.
        no_latency: Do not measure latency.
        ensemble: Also average the probabilities of all networks, as one more network `ensemble`.
        save_predictions: Also write the answer for every video as CSV, and logits as safetensors.
        details: Also write, per network, the accuracy of each class and the confusion matrix.
        output: Folder of the results; default: test in log.output, else beside the weights.
        overwrite: Replace files that exist.
    """

    weights: ManyWeights
    frames: FrameCounts | None = None
    protocol: str | None = None
    shuffle_frames: bool = False
    interpolate: Annotated[bool | None, Parameter(negative="--no-interpolate")] = None
    precision: Literal["fp32", "bf16", "fp16", "auto"] = "fp32"
    runtime: Runtime = "torch"
    no_latency: bool = False
    ensemble: bool = False
    save_predictions: bool = False
    details: bool = False
    output: Path | None = None
    overwrite: Overwrite = False


class _Tested(NamedTuple):
    """A network's results and its classes."""

    sweep: Sweep
    classes: Sequence[str]


def test(
    config: ConfigFile, /, *overrides: Override, options: Options, device: Device = None
) -> None:
    """Test networks at any frame counts, in one process or under torchrun.

    The data section of the config selects the videos. Reports accuracy, the sub-network used,
    multiply-accumulates, parameters and latency; prints a table and writes CSV, JSON and a figure.
    """
    names = names_of(options.weights)
    read, chosen = read_run(config, overrides, device)
    output = options.output or _default_output(read, config, options.weights[0])
    endings = TABLES + PREDICTIONS + DETAILS
    there = [path for path in output.glob("*") if path.name.endswith(endings)]
    refuse_existing(there, options.overwrite)
    if len({name.replace("/", "_") for name in names.values()}) < len(names):
        raise ValueError("two of the weights would write files of one name; test them one by one")
    make_writable(output)

    from ffn.engine.failures import processes

    timeout = read.data.timeout
    remedy = "lower train.batch_size, or raise train.grad_accum_steps"
    with processes("ffn test", data_timeout=timeout, device=chosen, remedy=remedy) as world:
        _test_all(names, options, output, read, world)


def _default_output(read: Config, config: Path, weights: str) -> Path:
    if read.log.output:
        return Path(read.log.output) / "test"
    return (Path(weights).parent if Path(weights).is_file() else Path("runs", config.stem)) / "test"


def _test_all(
    names: dict[str, str], options: Options, output: Path, config: Config, world: World
) -> None:
    """Test each network, print and write the tables; every process calls this."""
    if options.ensemble:
        check_ensemble(options.weights, config)
    tested: list[_Tested] = []
    try:
        for weights, name in names.items():
            tested.append(_test_one(weights, name, options, config, world))
            if options.save_predictions and world.is_main:
                _save_predictions(tested[-1], output)
        if options.ensemble and world.is_main:
            tested.append(_ensemble(tested))
            if options.save_predictions:
                _save_predictions(tested[-1], output)
    finally:  # what took long is not lost
        if tested and world.is_main:
            _write(tested, output, details=options.details)
    if world.is_main and len(names) == 1 and options.weights[0].endswith(".pt"):
        print(f"publish: ffn publish {options.weights[0]} NAME --results {output / TABLES[0]}")


def _ensemble(tested: Sequence[_Tested]) -> _Tested:
    from ffn.evaluation import ensemble

    joined = ensemble([one.sweep for one in tested])
    return tested[0]._replace(sweep=joined)


def _write(tested: Sequence[_Tested], output: Path, *, details: bool) -> None:
    """Print and write the tables of all networks."""
    from ffn.evaluation import print_table, save_details, save_table

    sweeps = [one.sweep for one in tested]
    print_table(sweeps)
    for file in save_table(sweeps, output):
        print(file)
    for one in tested if details else ():
        for file in save_details(one.sweep, one.classes, output):
            print(file)


def _test_one(weights: str, name: str, options: Options, config: Config, world: World) -> _Tested:
    """Test one network at all frame counts; every process calls this."""
    from ffn.core import FrameFlexible
    from ffn.engine.build_data import clips_per_forward
    from ffn.evaluation import sweep
    from ffn.zoo import load_with_record

    model, record = load_with_record(weights, device=world.device)
    if options.interpolate is not None and isinstance(model, FrameFlexible):
        if options.interpolate and record.private == "all":
            raise ValueError(f"{weights} shares no weights (private: all); drop --interpolate")
        if options.interpolate != model.interpolate:
            way = "interpolated" if options.interpolate else "nearest"
            name = f"{way}/{name}"
        model.interpolate = options.interpolate
    loader, classes = loader_for(
        weights,
        record,
        config,
        world,
        frames=options.frames or config.data.test_frames,
        protocol=options.protocol,
        shuffle_frames=options.shuffle_frames,
    )
    batch_size = clips_per_forward(config, world)
    result = sweep(
        model,
        loader,
        name=f"{'shuffled/' * options.shuffle_frames}{name}",
        trained_frames=_trained_frames(record.config),
        precision=options.precision,
        runtime=options.runtime,
        latency=not options.no_latency,
        keep_logits=options.save_predictions or options.ensemble or options.details,
        batch_size=batch_size,
        progress=True,
    )
    return _Tested(result, classes)


def _save_predictions(tested: _Tested, output: Path) -> None:
    from ffn.evaluation import save_prediction_table, save_predictions

    start = f"{output / tested.sweep.name.replace('/', '_')}.predictions"
    print(save_predictions(tested.sweep, f"{start}.safetensors"))
    print(save_prediction_table(tested.sweep.predictions, tested.classes, f"{start}.csv"))


def _trained_frames(config: dict[str, Any] | None) -> Iterable[int] | None:
    """The trained frame counts, with their ranges, from the config of the training run."""
    task = config["task"] if config else {}
    counts = task.get("frames")
    if not task.get("ranges"):
        return counts
    return dict(zip(sorted(counts), task["ranges"], strict=True))
