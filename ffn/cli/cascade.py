"""``tools/cascade.py fit|report …``: fit a cascade of frame counts, and test cascades."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ffn.cli.arguments import (
    WEIGHTS_HELP,
    add_imports_argument,
    load_imports,
    positive_int,
    positive_number,
    refuse_existing,
)
from ffn.cli.program import Parser, called_as, fail, prefix, program
from ffn.files import make_writable

if TYPE_CHECKING:
    from ffn.evaluation.cascades.fit import CascadeFit, Point
    from ffn.evaluation.results import Predictions
    from ffn.zoo import WeightRecord

PREDICTIONS_HELP = "*.predictions.safetensors of ffn test --save-predictions"


@program("cascade", "the same command starts again")
def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, fit or test, print and write; returns the exit status."""
    given = _parser().parse_args(arguments)

    from safetensors import SafetensorError

    from ffn.zoo import WeightsError

    try:
        given.run(given)
    except (ValueError, OSError, ImportError, WeightsError, SafetensorError) as error:
        return fail("cascade", error)
    return 0


def _fit(given: argparse.Namespace) -> None:
    from ffn.evaluation.cascades.file import CascadeFile, path_digests
    from ffn.evaluation.cascades.fit import COUNTS, fit_cascades
    from ffn.serve import Predictor
    from ffn.zoo import state_sha256

    output = _output(given)
    if output.suffix != ".safetensors":
        raise ValueError(f"--output {output}; expected a name that ends with .safetensors")
    refuse_existing(output, given.overwrite, inputs=(given.weights, *given.predictions))
    make_writable(output.parent)
    load_imports(given)
    predictor = Predictor(given.weights, precision="fp32")
    digest = state_sha256(predictor.model.state_dict())
    predictions = _joined(given.predictions, given.weights, digest)
    _warn_of_training_videos(given.weights, predictor.record, predictions)
    frames = given.frames or predictor.trained_frames
    if len(frames) > COUNTS:
        raise ValueError(
            f"the network has {len(frames)} trained counts; give --frames with at most {COUNTS}"
        )
    classes = next(iter(predictions.logits.values())).shape[1]
    if not predictions.multi_label and classes != len(predictor.classes):
        raise ValueError(
            f"the predictions have {classes} classes, {given.weights} {len(predictor.classes)}; "
            "give the predictions of these weights"
        )
    fit = fit_cascades(predictions, frames, {n: predictor.gmacs(n) for n in {*frames}})
    chosen = _choose(given, fit)
    file = CascadeFile(
        fit,
        chosen,
        digest,
        predictions.name or predictor.record.name,
        predictor.classes,
        path_digests(predictions.paths),
    )
    file.save(output)
    print(_describe(given, fit, chosen))
    print(output)


def _warn_of_training_videos(weights: str, record: WeightRecord, predictions: Predictions) -> None:
    """Print a warning if the network was trained on videos of the fit: its run folder lists them.

    Its probabilities for them are too high, and the thresholds with them.
    """
    from ffn.data.video_list import read_videos
    from ffn.engine.run_videos import NAME

    listed = Path(weights).with_name(NAME)
    if not Path(weights).is_file() or not listed.is_file():
        return
    try:
        rows = [row for row in read_videos(listed) if row.split == "train"]
    except (ValueError, OSError):  # damaged, or of an early version
        return
    root = record.options("data").get("root", "")
    trained = {os.path.abspath(Path(root, row.path)) for row in rows}
    videos = {*map(os.path.abspath, predictions.paths)}
    if shared := len(videos & trained):
        print(
            f"{prefix('cascade')}: warning: {shared} of {len(videos)} videos are training videos "
            f"of {weights} ({listed}), so that the cascade is too confident; give predictions for "
            "other videos",
            file=sys.stderr,
        )


def _output(given: argparse.Namespace) -> Path:
    """The file to write: by default, the one that is kept with the weights."""
    if given.output is not None:
        return Path(given.output)
    from ffn.zoo import cascade_path

    if not Path(given.weights).is_file():
        raise ValueError(
            f"{given.weights} is no file, next to which a cascade is kept; give --output"
        )
    return cascade_path(Path(given.weights))


def _joined(paths: Sequence[str], weights: str, digest: str) -> Predictions:
    """The predictions of several files, for different videos, checked against the weights."""
    from dataclasses import replace

    import torch

    parts = [_load(path) for path in paths]
    for path, part in zip(paths, parts, strict=True):
        _check_weights(path, part, weights, digest)
    first = parts[0]
    for path, part in zip(paths, parts, strict=True):
        if [*part.logits] != [*first.logits] or part.label.ndim != first.label.ndim:
            raise ValueError(f"{path} and {paths[0]} have different frame counts or kinds of label")
    videos = tuple(video for part in parts for video in part.paths)
    # The clips of a video have its path; relative and absolute paths may be of one video.
    per_file = [{*map(os.path.abspath, part.paths)} for part in parts]
    if len(set().union(*per_file)) < sum(map(len, per_file)):
        raise ValueError("the files of --predictions have videos in common; give each video once")
    return replace(
        first,
        paths=videos,
        label=torch.cat([part.label for part in parts]),
        ok=torch.cat([part.ok for part in parts]),
        logits={n: torch.cat([part.logits[n] for part in parts]) for n in first.logits},
    )


def _load(path: str) -> Predictions:
    """The predictions of a file.

    Raises:
        ValueError: it is not a file of predictions, or they are of several views per video.
    """
    from safetensors import SafetensorError

    from ffn.evaluation import load_predictions

    if not Path(path).is_file():
        raise FileNotFoundError(f"no file {path}; expected {PREDICTIONS_HELP}")
    try:
        predictions = load_predictions(path)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} has no predictions; expected {PREDICTIONS_HELP}") from error
    if predictions.protocol not in (None, "1x1"):
        raise ValueError(
            f"{path} was tested with {predictions.protocol} views per video; a cascade looks at "
            "one. Test with --protocol 1x1"
        )
    return predictions


def _check_weights(path: str, predictions: Predictions, weights: str, digest: str) -> None:
    """Raise ValueError for predictions of other weights; a note if they do not store which."""
    found = predictions.weights_sha256
    if found is None:
        print(
            f"{prefix('cascade')}: {path} does not store its weights, it has the name "
            f"{predictions.name}; it is taken for predictions of {weights}",
            file=sys.stderr,
        )
    elif found != digest:
        raise ValueError(
            f"{path} has the predictions of other weights, {predictions.name} with SHA-256 "
            f"{found[:12]}…; {weights} has {digest[:12]}…. Give predictions of the same weights"
        )


def _choose(given: argparse.Namespace, fit: CascadeFit) -> Point:
    if given.budget_gmacs is not None:
        return fit.within(given.budget_gmacs)
    return fit.for_accuracy(given.accuracy)


def _describe(given: argparse.Namespace, fit: CascadeFit, chosen: Point) -> str:
    from ffn.evaluation.cascades.report import less_or_more

    largest = max(fit.gmacs)
    saved = less_or_more(100 * (1 - chosen.gmacs / fit.gmacs[largest]))
    stages = ", ".join(map(str, chosen.stages))
    thresholds = ", ".join(f"{x:.3f}" for x in chosen.thresholds) or "none"
    gained = chosen.accuracy - fit.raw[largest]
    change = (
        f"{abs(gained):.2f} points {'lower' if gained < 0 else 'higher'}" if gained else "the same"
    )
    if given.accuracy is None and given.budget_gmacs is None and gained < 0:
        change += "; a fit to more videos may find a more accurate one"
    return (
        f"stages {stages}; thresholds {thresholds}\n"
        f"{chosen.accuracy:.2f} % for {chosen.gmacs:.4g} GMACs in the mean, out of fold, on "
        f"{fit.videos} videos\n"
        f"{largest} frames: {fit.raw[largest]:.2f} % for {fit.gmacs[largest]:.4g} GMACs; the "
        f"cascade takes {saved}, and its accuracy is {change}"
    )


def _report(given: argparse.Namespace) -> None:
    from ffn.evaluation.cascades.report import SUFFIXES, markdown, save_report
    from ffn.evaluation.cascades.trials import mean_trial

    stem = Path(given.output)
    inputs = [*given.predictions, *filter(None, (given.cascade, given.results, given.earlier))]
    for suffix in SUFFIXES:
        refuse_existing(stem.with_name(stem.name + suffix), given.overwrite, inputs=inputs)
    _refuse(given)
    make_writable(stem.parent)
    networks, how, timing = _of_file(given) if given.cascade else _on_halves(given)
    print(markdown([mean_trial(trials) for trials in networks.values()], how, timing))
    for file in save_report(networks, stem, how, timing):
        print(file)


def _refuse(given: argparse.Namespace) -> None:
    """Raise ValueError for options that contradict each other or would do nothing."""
    if given.cascade is None:
        if given.results is None or given.frames is None:
            raise ValueError(
                "without --cascade, cascades are fitted on half of the videos; give --frames, the "
                "counts to choose from, and --results, a results.json with their cost"
            )
        return
    for name in ("frames", "accuracy", "budget_gmacs", "earlier"):
        if getattr(given, name) is not None:
            option = name.replace("_", "-")
            raise ValueError(f"--{option} is for a report without --cascade; leave one of them out")
    if len(given.predictions) > 1:
        raise ValueError(
            f"--cascade belongs to one network; got {len(given.predictions)} files of predictions. "
            "For several networks leave --cascade out: each is fitted on half of its videos"
        )


def _of_file(given: argparse.Namespace) -> tuple[dict, str, str | None]:
    """The trial of a fitted cascade on other videos."""
    from ffn.evaluation.cascades.file import CascadeFile
    from ffn.evaluation.cascades.trials import trial

    file = CascadeFile.load(Path(given.cascade))
    (path,) = given.predictions
    predictions = _load(path)
    _check_weights(path, predictions, file.network, file.weights_sha256)
    file.check_new(predictions.paths)
    how = f"{file.network}, fitted to {file.fit.videos:,} videos, tested on "
    how += f"{len(predictions.label):,} others"
    latencies, timing = None, None
    if given.results is not None:
        _, latencies, timing = _costs(given.results, [*file.fit.gmacs], [predictions.name])
        if latencies is None:
            raise ValueError(f"{given.results} has no latencies; test without --no-latency")
    found = trial(file.fit, file.chosen, predictions, file.fit.gmacs, latencies=latencies)
    return {file.network: [found]}, how, timing


def _costs(
    path: str, counts: Sequence[int], names: Collection[str]
) -> tuple[dict[int, float], dict[int, float] | None, str | None]:
    """Cost of a results.json at each count: GMACs, milliseconds, and how these were measured.

    Of a file with several networks, those of the first one that is in ``names``. A note tells if a
    single one has another name.

    Raises:
        ValueError: it is no such file, has none of these networks, or a count was not tested.
    """
    from ffn.evaluation import load_table
    from ffn.evaluation.report import timing

    sweeps = load_table(path)
    found = [sweep for sweep in sweeps if sweep.name in names] if sweeps[1:] else sweeps
    if not found:
        has = ", ".join(sweep.name for sweep in sweeps)
        raise ValueError(
            f"{path} has the networks {has}, and the predictions are of {', '.join(names)}; give "
            "the results of one of these"
        )
    sweep = found[0]
    known = [name for name in names if name is not None]
    if known and sweep.name not in known:
        print(
            f"{prefix('cascade')}: {path} has the cost of {sweep.name}, and the predictions are of "
            f"{', '.join(known)}; it is taken for the cost of these",
            file=sys.stderr,
        )
    gmacs = {row.frames: row.gmacs for row in sweep.rows}
    missing = [n for n in counts if n not in gmacs]
    if missing:
        raise ValueError(f"{path} has no cost at {missing[0]} frames; test this count too")
    if any(row.latency_ms is None for row in sweep.rows):
        return gmacs, None, None
    return gmacs, {row.frames: row.latency_ms for row in sweep.rows}, timing(sweep)


def _on_halves(given: argparse.Namespace) -> tuple[dict, str, str | None]:
    """The trials of several networks, each fitted on half of its videos."""
    from ffn.evaluation.cascades.report import load_report
    from ffn.evaluation.cascades.trials import half_trials

    loaded = [_load(path) for path in given.predictions]
    names = [predictions.name for predictions in loaded]
    gmacs, latencies, timing = _costs(given.results, given.frames, names)
    earlier, then = load_report(Path(given.earlier)) if given.earlier else ({}, timing)
    if then != timing:
        raise ValueError(
            f"latencies of {given.earlier}: {then or 'none'}; of {given.results}: "
            f"{timing or 'none'}. Give --results whose latencies were measured in the same way"
        )
    found: dict[str, list] = {name: [one] for name, one in earlier.items()}
    for predictions in loaded:
        if predictions.name in found:
            where = "--earlier and --predictions have" if predictions.name in earlier else ""
            raise ValueError(
                f"{where or '--predictions has'} the network {predictions.name} twice; give it once"
            )
        found[predictions.name] = half_trials(
            predictions, given.frames, gmacs, lambda fit: _choose(given, fit), latencies
        )
    how = (
        f"{', '.join(found)}, each fitted on half of {len(predictions.label):,} videos and tested "
        "on the other half, both ways"
    )
    return found, how, timing


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=called_as("cascade"),
        description="Cascades: a network looks at few frames first, and at more if it is not "
        "confident. See docs/cascade.md. Exit status: 0 done; 2 error, with a message that names "
        "the cause.",
    )
    commands = parser.add_subparsers(required=True, metavar="fit|report")
    fit = commands.add_parser(
        "fit",
        help="fit a cascade to the predictions of a network",
        description="Fit the stages, thresholds and calibrations of a cascade to the predictions "
        "of a network for videos that it was not trained on.",
    )
    fit.add_argument("--weights", required=True, help=WEIGHTS_HELP)
    _add_predictions(fit, "; several files: of different videos")
    _add_goal(fit, "default: the trained counts")
    fit.add_argument(
        "--output",
        metavar="FILE",
        help="the cascade, *.safetensors; default: *.cascade.safetensors next to the weights, "
        "where ffn predict finds it",
    )
    fit.add_argument("--overwrite", action="store_true", help="replace an existing file")
    add_imports_argument(fit)
    fit.set_defaults(run=_fit)
    _add_report(commands)
    return parser


def _add_report(commands: argparse._SubParsersAction) -> None:
    report = commands.add_parser(
        "report",
        help="test a fitted cascade, or cascades of several seeds",
        description="Test a fitted cascade on other videos (--cascade). Or, without --cascade, fit "
        "a cascade of each network on half of its videos and test it on the other half, both ways: "
        "mean and standard deviation over networks that differ in their seed.",
    )
    report.add_argument("--cascade", metavar="FILE", help="file of `cascade fit`")
    _add_predictions(report, "; several files: of several networks, without --cascade")
    _add_goal(report, "without --cascade only")
    report.add_argument(
        "--results",
        metavar="RESULTS.json",
        help="file of ffn test with the cost at each count; with --cascade, for its latencies",
    )
    report.add_argument(
        "--earlier",
        metavar="STEM.json",
        help="an earlier report with the same options; its networks are added; without --cascade "
        "only",
    )
    report.add_argument(
        "--output",
        required=True,
        metavar="STEM",
        help="path of the .json, .md, .csv and .png file, without suffix",
    )
    report.add_argument("--overwrite", action="store_true", help="replace existing files")
    report.set_defaults(run=_report)


def _add_predictions(parser: argparse.ArgumentParser, several: str) -> None:
    parser.add_argument(
        "--predictions",
        nargs="+",
        required=True,
        metavar="FILE",
        help=PREDICTIONS_HELP + several,
    )


def _add_goal(parser: argparse.ArgumentParser, frames: str) -> None:
    """Options about the stages and the goal."""
    parser.add_argument(
        "--frames",
        nargs="+",
        type=positive_int,
        metavar="n",
        help=f"counts to choose up to three stages from, at most six; {frames}",
    )
    goal = parser.add_mutually_exclusive_group()
    goal.add_argument(
        "--accuracy",
        type=positive_number,
        metavar="PERCENT",
        help="the cheapest cascade of this accuracy; default: that of the largest count, or the "
        "best that costs no more than it",
    )
    goal.add_argument(
        "--budget-gmacs",
        type=positive_number,
        metavar="G",
        help="the most accurate cascade of at most so many giga multiply-accumulates in the mean",
    )
