"""Test networks at any frame counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter, validators

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
from ffn.files import make_writable, refuse_existing

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from ffn.data import Splits
    from ffn.engine.distributed import World
    from ffn.engine.options import Config
    from ffn.evaluation import Sweep
    from ffn.zoo import WeightRecord


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
        beams: Texts: decode by a beam search that keeps this many prefixes, as predictions do, not
            by the most probable path (greedy). The name in the results starts with beam/.
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
    beams: Annotated[int | None, Parameter(validator=validators.Number(gte=1))] = None
    output: Path | None = None
    overwrite: Overwrite = False


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
    refuse_existing([output / "results.json"], options.overwrite)
    if len({name.replace("/", "_") for name in names.values()}) < len(names):
        raise ValueError("two of the weights would write files of one name; test them one by one")
    make_writable(output)

    from ffn.engine.failures import processes
    from ffn.evaluation import ensemble

    tested: list[tuple[Sweep, Sequence[str]]] = []  # results of the networks, and their classes
    timeout = read.data.timeout
    remedy = "lower train.batch_size, or raise train.grad_accum_steps"
    with processes("ffn test", data_timeout=timeout, device=chosen, remedy=remedy) as world:
        if options.ensemble:
            check_ensemble(options.weights, read)
        try:
            for weights, name in names.items():
                tested.append(_test_one(weights, name, options, read, world))
            if options.ensemble and world.is_main:
                tested.append((ensemble([sweep for sweep, _ in tested]), tested[0][1]))
        finally:  # what took long is not lost
            if tested and world.is_main:
                _write(tested, options, output)
        if world.is_main and len(names) == 1 and options.weights[0].endswith(".pt"):
            results = output / "results.json"
            print(f"publish: ffn publish {options.weights[0]} NAME --results {results}")


def _default_output(read: Config, config: Path, weights: str) -> Path:
    if read.log.output:
        return Path(read.log.output) / "test"
    return (Path(weights).parent if Path(weights).is_file() else Path("runs", config.stem)) / "test"


def _write(tested: Sequence[tuple[Sweep, Sequence[str]]], options: Options, output: Path) -> None:
    """Print and write the results of all networks."""
    from ffn.evaluation import (
        print_table,
        save_details,
        save_prediction_table,
        save_predictions,
        save_table,
    )

    sweeps = [sweep for sweep, _ in tested]
    print_table(sweeps)
    files = save_table(sweeps, output)
    for sweep, classes in tested:
        if options.save_predictions:
            start = f"{output / sweep.name.replace('/', '_')}.predictions"
            files.append(save_predictions(sweep, f"{start}.safetensors"))
            files.append(save_prediction_table(sweep.predictions, classes, f"{start}.csv"))
        if options.details:
            files += save_details(sweep, classes, output)
    print(*files, sep="\n")


def _test_one(
    weights: str, name: str, options: Options, config: Config, world: World
) -> tuple[Sweep, Sequence[str]]:
    """Test one network at all frame counts; every process calls this."""
    from ffn.core import FrameFlexible
    from ffn.engine.build_data import clips_per_forward
    from ffn.evaluation import sweep
    from ffn.zoo import load_with_record

    model, record = load_with_record(weights, device=world.device)
    if options.details or options.ensemble:
        record.require_classes("--details or --ensemble")
    if options.interpolate is not None and isinstance(model, FrameFlexible):
        if options.interpolate != model.interpolate:
            name = f"{'interpolated' if options.interpolate else 'nearest'}/{name}"
        model.interpolate = options.interpolate
    loader, classes = loader_for(
        weights,
        record,
        config,
        world,
        beams=options.beams,
        frames=options.frames or config.data.test_frames,
        protocol=options.protocol,
        shuffle_frames=options.shuffle_frames,
    )
    result = sweep(
        model,
        loader,
        name=f"{'shuffled/' * options.shuffle_frames}{'beam/' * bool(options.beams)}{name}",
        trained_frames=_trained_frames(record),
        precision=options.precision,
        runtime=options.runtime,
        latency=not options.no_latency,
        keep_logits=options.save_predictions or options.ensemble or options.details,
        batch_size=clips_per_forward(config, world),
        progress=True,
    )
    return result, classes


def _trained_frames(record: WeightRecord) -> Iterable[int] | None:
    """The trained frame counts, with their ranges, from the config of the training run."""
    task = record.options("task")
    counts, ranges = task.get("frames"), task.get("ranges")
    return dict(zip(sorted(counts), ranges, strict=True)) if ranges else counts


def loader_for(
    weights: str,
    record: WeightRecord,
    config: Config,
    world: World,
    *,
    beams: int | None = None,
    **options: Any,
) -> tuple[DataLoader, Sequence[str]]:
    """Batches of the test videos of a config for a network, and the class names.

    Texts are decoded with ``beams``. The other options are those of
    :func:`ffn.engine.build_data.build_test_loader`.
    """
    from ffn.data import Preprocessing
    from ffn.engine.build_data import build_test_loader

    splits = _read_splits(weights, record, config)
    if beams and not hasattr(splits.labels, "beams"):
        raise ValueError(f"--beams decodes texts; {weights} names classes. Leave it out")
    if beams:
        splits.labels.beams = beams
    preprocessing = Preprocessing.from_dict(record.preprocessing)
    loader = build_test_loader(config, splits, world, preprocessing=preprocessing, **options)
    return loader, splits.classes


def _read_splits(weights: str, record: WeightRecord, config: Config) -> Splits:
    """The test videos; ValueError if the network has another kind of labels or number of classes.

    Without class names in the record, the names are those of the data set.
    """
    from ffn.engine.build_data import read_config_splits

    kind = record.labels or ("multi" if record.multi_label else "single")
    if config.data.labels != kind:
        raise ValueError(
            f"data.labels is {config.data.labels}; {weights} was trained with {kind}. Set "
            f"data.labels={kind}, with lists of this kind, or name other weights"
        )
    try:
        splits = read_config_splits(config.data, with_train=False, classes=record.classes)
    except ValueError as error:
        if record.classes is None:
            raise
        raise ValueError(f"{weights}, tested with its own classes: {error}") from None
    if record.num_classes != len(splits.classes):
        raise ValueError(
            f"{weights} has {record.num_classes} classes without names; the data set has "
            f"{len(splits.classes)}. Set data.classes to a file with the {record.num_classes} "
            "names in the order of the network, one per line, or name weights of this data set"
        )
    return splits


def check_ensemble(names: Sequence[str], config: Config) -> None:
    """Raise ValueError if networks cannot form an ensemble, before the first test."""
    from ffn.zoo import read_weights

    if len(names) < 2:
        raise ValueError("--ensemble needs the weights of two or more networks")
    first, *others = [_read_splits(name, read_weights(name)[0], config).classes for name in names]
    for name, classes in zip(names[1:], others, strict=True):
        if classes != first:
            raise ValueError(
                f"{names[0]} and {name} have different classes, or another order of them; leave "
                "one of them out, or --ensemble"
            )
