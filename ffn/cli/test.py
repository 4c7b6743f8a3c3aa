"""``tools/test.py CONFIG --weights W --frames 2 4 …``: test networks at any frame counts."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ffn.cli.arguments import (
    add_device_argument,
    add_overrides_argument,
    frame_count,
    names_of,
    refuse_existing,
)
from ffn.cli.configs import read_run
from ffn.cli.program import Parser, called_as, fail_once, prefix, program
from ffn.files import make_writable

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from ffn.data import Splits, VideoDataset
    from ffn.engine.distributed import World
    from ffn.engine.options import Config
    from ffn.evaluation import Sweep
    from ffn.export import Calibration
    from ffn.zoo import WeightRecord

HELD_OUT_CLIPS = 256  # other training clips, which decide how much of a network stays in fp32
# What the files per network end in.
PREDICTION_KINDS = ("predictions.csv", "predictions.safetensors")
DETAIL_KINDS = ("classes.csv", "classes.png", "confusion.csv", "confusion.png", "mistakes.png")


@program(
    "test",
    "no table is written; the same command starts again (--overwrite replaces saved predictions)",
)
def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, test each network, print and write the tables; returns the exit status."""
    given = _parser().parse_with_overrides(arguments)

    try:
        config, device = read_run(given)
        _check_precisions(given)
        folder = config.log.output or Path("runs", Path(given.config).stem)
        given.output = Path(given.output or Path(folder) / "test")
        for path in _targets(given):
            refuse_existing(path, given.overwrite)
        make_writable(given.output)
    except (ValueError, OSError) as error:
        return fail_once("test", error)

    from ffn.engine.failures import run_command

    run = partial(_test, given, config)
    return run_command(prefix("test"), run, data_timeout=config.data.timeout, device=device)


def _check_precisions(given: argparse.Namespace) -> None:
    """Raise ValueError for options that contradict the precisions."""
    precisions = given.precision
    if len({*precisions}) < len(precisions):
        raise ValueError(f"--precision {' '.join(precisions)} has one of them twice")
    if given.ensemble and len(precisions) > 1:
        raise ValueError("--ensemble is of networks in one precision; name one --precision")
    if "int8" in precisions and (given.no_fuse or given.compile):
        raise ValueError(
            "--precision int8 takes neither --no-fuse nor --compile, since its networks are fused "
            "and run in ONNX Runtime; test int8 in a command of its own"
        )
    if given.calibration and "int8" not in precisions:
        raise ValueError("--calibration: of --precision int8 only; add it, or leave this out")


def _targets(given: argparse.Namespace) -> list[Path]:
    """The files that the test writes; more than it writes if a name may get a prefix."""
    names = list(names_of(given.weights).values())
    if given.interpolate is not None:  # the networks are not loaded yet
        names += [f"{_way(given)}/{name}" for name in names]
    names = [_full_name(name, p, given) for name in names for p in given.precision]
    names += ["ensemble"] * given.ensemble
    files = ["results.json", "results.csv", "results.png"]
    starts = [name.replace("/", "_") for name in names]
    twice = sorted({start for start in starts if starts.count(start) > 1})
    if twice and (given.save_predictions or given.details):
        raise ValueError(
            f"two networks would write the files {given.output / twice[0]}.*; rename one of their "
            "weights, or test them one by one"
        )
    for start in starts:
        kinds = PREDICTION_KINDS * given.save_predictions + DETAIL_KINDS * given.details
        files += [f"{start}.{kind}" for kind in kinds]
    return [given.output / file for file in files]


def _way(given: argparse.Namespace) -> str:
    return "interpolated" if given.interpolate else "nearest"


def _full_name(name: str, precision: str, given: argparse.Namespace) -> str:
    """The name of a network in the results, with what distinguishes it from its other tests."""
    named = f"{precision}/" * (len(given.precision) > 1)
    return f"{'shuffled/' * given.shuffle_frames}{named}{name}"


class _Tested(NamedTuple):
    """A network's results, and the videos that it was tested on."""

    sweep: Sweep
    dataset: VideoDataset
    classes: Sequence[str]
    weights_sha256: str | None  # of a network that ran as it is stored


def _test(given: argparse.Namespace, config: Config, world: World) -> None:
    from ffn.export import ExportError

    if given.ensemble:
        _check_ensemble(given.weights, config)
    if "int8" in given.precision:
        _check_int8(given, config, world)
    tested = []
    networks = product(names_of(given.weights).items(), given.precision)
    try:
        for (weights, name), precision in networks:
            tested.append(_sweep(weights, name, precision, given, config, world))
            if given.save_predictions and world.is_main:
                _save_predictions(tested[-1], given.output)
        if given.ensemble and world.is_main:
            tested.append(_ensemble(tested))
            if given.save_predictions:
                _save_predictions(tested[-1], given.output)
    except Exception as error:
        if tested and world.is_main:
            _write(tested, given)  # what took long is not lost
        if isinstance(error, ExportError):  # its message needs no traceback
            raise ValueError(str(error)) from error
        raise
    if world.is_main:
        _write(tested, given)


def _ensemble(tested: Sequence[_Tested]) -> _Tested:
    from ffn.evaluation import ensemble

    joined = ensemble([one.sweep for one in tested])
    return tested[0]._replace(sweep=joined, weights_sha256=None)


def _write(tested: Sequence[_Tested], given: argparse.Namespace) -> None:
    """Print and write the tables of all networks."""
    from ffn.evaluation import print_table, save_details, save_table

    sweeps = [one.sweep for one in tested]
    print_table(sweeps)
    for file in save_table(sweeps, given.output):
        print(file)
    for one in tested if given.details else ():
        for file in save_details(one.sweep, one.dataset, one.classes, given.output):
            print(file)


def _sweep(
    weights: str,
    name: str,
    precision: str,
    given: argparse.Namespace,
    config: Config,
    world: World,
) -> _Tested:
    """Test one network in one precision at all frame counts; every process calls this."""
    from ffn.core import FrameFlexible
    from ffn.engine.build_data import clips_per_forward
    from ffn.engine.failures import explain_failures
    from ffn.evaluation import sweep
    from ffn.zoo import load_with_record, state_sha256

    model, record = load_with_record(weights, device=world.device)
    as_stored = not given.shuffle_frames and precision != "int8"
    digest = state_sha256(model.state_dict()) if as_stored else None
    if given.interpolate is not None and isinstance(model, FrameFlexible):
        if given.interpolate and record.private == "all":
            raise ValueError(f"{weights} shares no weights (private: all); drop --interpolate")
        if given.interpolate != model.interpolate:
            name, digest = f"{_way(given)}/{name}", None
        model.interpolate = given.interpolate
    loader, classes = loader_for(
        weights,
        record,
        config,
        world,
        frames=given.frames or config.data.test_frames,
        protocol=given.protocol,
        shuffle_frames=given.shuffle_frames,
    )
    batch_size = clips_per_forward(config, world)
    remedy = "lower train.batch_size, or raise train.grad_accum_steps"
    with explain_failures(world, loader, batch_size=batch_size, remedy=remedy):
        result = sweep(
            model,
            loader,
            name=_full_name(name, precision, given),
            trained_frames=_trained_frames(record.config),
            precision=precision,
            fused=not given.no_fuse,
            compiled=given.compile,
            calibrate=partial(_calibration, given, config, record),
            latency=not given.no_latency,
            keep_logits=given.save_predictions or given.ensemble or given.details,
            batch_size=batch_size,
            progress=True,
        )
    return _Tested(result, loader.dataset, classes, digest)


def loader_for(
    weights: str,
    record: WeightRecord,
    config: Config,
    world: World,
    *,
    frames: Sequence[int],
    protocol: str | None = None,
    shuffle_frames: bool = False,
) -> tuple[DataLoader, Sequence[str]]:
    """Batches of the test videos of a config for a network, and the class names."""
    from ffn.data import Preprocessing
    from ffn.engine.build_data import build_test_loader

    splits = _read_splits(weights, record, config)
    loader = build_test_loader(
        config,
        splits,
        world,
        frames=frames,
        preprocessing=Preprocessing.from_dict(record.preprocessing),
        protocol=protocol,
        shuffle_frames=shuffle_frames,
    )
    return loader, splits.classes


def _calibration(
    given: argparse.Namespace,
    config: Config,
    record: WeightRecord,
    frames: int,
    size: tuple[int, int],
) -> Calibration:
    """Clips for int8: of ``--calibration``, or of the training list; never test videos."""
    from ffn.cli.calibration import read_calibration
    from ffn.data import Preprocessing

    return read_calibration(
        [given.calibration] if given.calibration else [given.config, *given.options],
        classes=record.classes,
        # Views of a protocol may be larger than the trained crop.
        preprocessing=replace(Preprocessing.from_dict(record.preprocessing), crop=size[0]),
        pattern=config.data.frame_pattern,
        frames=frames,
        held_out=HELD_OUT_CLIPS,
        root=config.data.root,
        training_only=True,
    )


def _read_splits(weights: str, record: WeightRecord, config: Config) -> Splits:
    """The test videos; ValueError if the network has another kind of labels or number of classes.

    Without class names in the record, the names are those of the data set.
    """
    from ffn.engine.build_data import read_config_splits

    kind = "multi" if record.multi_label else "single"
    if config.data.labels != kind:
        raise ValueError(
            f"data.labels is {config.data.labels}; {weights} was trained with {kind}. Set "
            f"data.labels={kind}, with lists of this kind, or name other weights"
        )
    splits = read_config_splits(config.data, with_train=False, classes=record.classes)
    if record.num_classes != len(splits.classes):
        raise ValueError(
            f"{weights} has {record.num_classes} classes without names; the data set has "
            f"{len(splits.classes)}. Set data.classes to a file with the {record.num_classes} "
            "names in the order of the network, one per line, or name weights of this data set"
        )
    return splits


def _check_ensemble(names: Sequence[str], config: Config) -> None:
    """Raise ValueError if networks cannot form an ensemble, before the first test."""
    from ffn.data import Preprocessing
    from ffn.evaluation import check_members
    from ffn.zoo import read_weights

    members = {}
    for name in names:
        record, _ = read_weights(name)
        classes = _read_splits(name, record, config).classes
        members[name] = classes, Preprocessing.from_dict(record.preprocessing)
    check_members(members)


def _check_int8(given: argparse.Namespace, config: Config, world: World) -> None:
    """Raise an error for what int8 cannot run with, before the first test."""
    from ffn.data import Preprocessing
    from ffn.zoo import read_weights

    if world.size > 1 or world.device.type != "cpu":
        raise ValueError(
            "--precision int8 runs in one process on a CPU; start the command without torchrun and "
            "with --device cpu"
        )
    for name in given.weights:
        record, _ = read_weights(name)
        if record.multi_label:
            raise ValueError(
                f"{name} has several labels per video, but int8 is compared with fp32 by top-1; "
                "leave int8 out of --precision"
            )
        crop = Preprocessing.from_dict(record.preprocessing).crop
        _calibration(given, config, record, 1, (crop, crop))  # reads the lists


def _save_predictions(tested: _Tested, output: Path) -> None:
    from ffn.evaluation import save_prediction_table, save_predictions

    start = f"{output / tested.sweep.name.replace('/', '_')}.predictions"
    digest = tested.weights_sha256
    print(save_predictions(tested.sweep, f"{start}.safetensors", weights_sha256=digest))
    print(save_prediction_table(tested.sweep.predictions, tested.classes, f"{start}.csv"))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=called_as("test"),
        description="Test networks at any frame counts, in one process or under torchrun. Reports "
        "accuracy, the sub-network used, multiply-accumulates, parameters and latency; prints a "
        "table and writes CSV, JSON and a figure. Exit status: 0 tested; 2 error, with a message "
        "that names the cause.",
    )
    parser.add_argument(
        "config", help="YAML file, or a name of `ffn configs`; its data section selects the videos"
    )
    add_overrides_argument(parser)
    parser.add_argument(
        "--weights",
        nargs="+",
        required=True,
        help="names in the zoo, .pt or .safetensors files, or hf://user/name",
    )
    parser.add_argument(
        "--frames",
        nargs="+",
        type=frame_count,
        metavar="T",
        help="frames of a clip; default: data.test_frames",
    )
    parser.add_argument(
        "--protocol",
        metavar="CLIPSxCROPS",
        help="clips x crops per video: 1x1, 1x3, 2x3 or 10x3; default: data.test_protocol",
    )
    parser.add_argument(
        "--shuffle-frames",
        action="store_true",
        help="put the frames of each clip in a random, reproducible order: the accuracy without "
        "the order of the frames",
    )
    parser.add_argument(
        "--interpolate",
        action=argparse.BooleanOptionalAction,
        help="interpolate the private modules of frame-flexible networks for frame counts between "
        "two trained ones, or use the nearest sub-network; default: as stored with the weights. If "
        "this changes a network, its name in the results starts with interpolated/ or nearest/",
    )
    _add_precision(parser)
    _add_output(parser)
    return parser


def _add_precision(parser: argparse.ArgumentParser) -> None:
    """Options about how the networks run."""
    parser.add_argument(
        "--precision",
        nargs="+",
        default=["fp32"],
        choices=["fp32", "bf16", "fp16", "auto", "int8"],
        help="precision of the forward pass; of several, each is tested. auto: the fastest one on "
        "this device, as predict chooses it, in one process; int8: as `export --int8`, in ONNX "
        "Runtime, in one process on a CPU; default: fp32",
    )
    parser.add_argument(
        "--calibration",
        metavar="LIST",
        help="annotation list of videos that set the ranges of int8, with paths under data.root, "
        "or a config with a training list; default: the training list of CONFIG",
    )
    parser.add_argument(
        "--no-fuse", action="store_true", help="run the network as it was trained, not fused"
    )
    parser.add_argument(
        "--compile", action="store_true", help="compile the network; slow for the first clips"
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    """Options about what is measured and written."""
    parser.add_argument("--no-latency", action="store_true", help="do not measure latency")
    parser.add_argument(
        "--ensemble",
        action="store_true",
        help="also average the probabilities of all networks, as one more network `ensemble`",
    )
    parser.add_argument(
        "--save-predictions",
        action="store_true",
        help="also write the answer for every video as CSV, and the logits as safetensors",
    )
    parser.add_argument(
        "--details",
        action="store_true",
        help="also write, per network, the accuracy of each class, the confusion matrix (CSV and "
        "figure), and a picture of the most confident mistakes",
    )
    parser.add_argument("--output", help="folder for the results; default: test/ in log.output")
    parser.add_argument("--overwrite", action="store_true", help="replace existing results")
    add_device_argument(parser)


def _trained_frames(config: dict[str, Any] | None) -> Iterable[int] | None:
    """The trained frame counts, with their ranges, from the config of the training run."""
    task = config["task"] if config else {}
    counts = task.get("frames")
    if not task.get("ranges"):
        return counts
    return dict(zip(sorted(counts), task["ranges"], strict=True))
