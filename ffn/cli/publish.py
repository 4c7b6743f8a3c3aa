"""``tools/publish.py CHECKPOINT NAME``: write a trained network and its record for release."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ffn.cli.arguments import add_imports_argument, load_imports, names_of, refuse_existing
from ffn.cli.program import Parser, called_as, fail, program
from ffn.files import atomic_write, make_writable

if TYPE_CHECKING:
    from torch import nn

    from ffn.data import Protocol
    from ffn.evaluation import Sweep
    from ffn.zoo import WeightRecord


@program("publish", "the same command starts again")
def main(arguments: Sequence[str] | None = None) -> int:
    """Parse, read, write; returns the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.private and not given.hub:
        parser.error("--private needs --hub")

    from ffn.zoo import WeightsError

    try:
        load_imports(given)
        _publish(given)
    except (ValueError, OSError, ImportError, WeightsError) as error:
        return fail("publish", error)
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog=called_as("publish"),
        description="Write a training checkpoint as NAME.safetensors and its record NAME.yaml "
        "(model, classes, preprocessing, metrics per frame count, SHA-256) for ffn.load. A file of "
        "early exit that is kept with the checkpoint is written beside them.",
    )
    parser.add_argument("checkpoint", help="best.pt or last.pt of a run")
    parser.add_argument("name", help="model.dataset_frames, e.g. tsm_r50.sthv1_f4_8_16")
    parser.add_argument("--output", default=".", help="folder; default: the current one")
    parser.add_argument(
        "--results",
        help="results.json of ffn test for this checkpoint, alone or with others",
    )
    kept = "; default: that of the record"
    parser.add_argument("--source", default="", help=f"origin of the weights, in a sentence{kept}")
    parser.add_argument("--licence", default="", help=f"SPDX name, e.g. Apache-2.0{kept}")
    parser.add_argument(
        "--hub", metavar="USER/REPO", help="also publish on the Hugging Face Hub, with a model card"
    )
    parser.add_argument("--private", action="store_true", help="in a private repository")
    parser.add_argument("--overwrite", action="store_true", help="replace existing files")
    add_imports_argument(parser)
    return parser


def _publish(given: argparse.Namespace) -> None:
    from ffn.zoo import early_exit_path, load_with_record, push_to_hub, save_weights
    from ffn.zoo.repositories import check_repository

    if given.hub:
        check_repository(given.hub)
    model, record = load_with_record(given.checkpoint)
    path = Path(given.output) / f"{given.name}.safetensors"
    early_exit, kept = _early_exit_of(given.checkpoint, model), early_exit_path(path)
    refuse_existing(kept, given.overwrite)
    meta = _meta(given, model, record)
    make_writable(path.parent)
    written = save_weights(model, path, meta, overwrite=given.overwrite)
    print(f"{path}: {written.size / 1e6:.2f} MB, SHA-256 {written.sha256}")
    if early_exit is not None:
        with atomic_write(kept) as file:
            file.write(early_exit.read_bytes())
        print(f"{kept}: its early exit")
    else:
        kept.unlink(missing_ok=True)  # that of the weights which were replaced
    if given.hub:
        options = {"private": given.private, "overwrite": given.overwrite}
        try:
            print(push_to_hub(path, given.hub, **options))
        except BaseException:
            again = f"ffn.push_to_hub({str(path)!r}, {given.hub!r})"
            print(f"{path} is written; to upload it later: {again}", file=sys.stderr)
            raise


def _meta(given: argparse.Namespace, model: nn.Module, record: WeightRecord) -> dict[str, Any]:
    """The record to write: that of the checkpoint, with what the command gives."""
    from ffn.data import Protocol
    from ffn.evaluation import load_table

    metrics, protocol, origin = record.metrics, record.protocol, record.origin or "measured"
    if given.results:
        sweep = _sweep_of(given.checkpoint, given.results, load_table(given.results))
        _check_network(sweep, model, given)
        origin = "measured"
        metrics = {
            row.frames: {name: round(value, 2) for name, value in row.metrics.items()}
            for row in sweep.rows
        }
        protocol = _views(Protocol.parse(sweep.protocol))
    return record.to_dict() | {
        "name": given.name,
        "metrics": metrics,
        "protocol": protocol,
        "origin": origin if metrics else None,
        "source": given.source or record.source,
        "licence": given.licence or record.licence,
        "config": without_places(record.config),
    }


def _views(protocol: Protocol) -> str | None:
    """A test protocol as records have it, "3 crops x 10 clips"; None for one of each."""
    if protocol.views == 1:
        return None
    crops, clips = (
        f"{number} {word}{'s' if number > 1 else ''}"
        for number, word in ((protocol.crops, "crop"), (protocol.clips, "clip"))
    )
    return f"{crops} x {clips}"


def _early_exit_of(checkpoint: str, model: nn.Module) -> Path | None:
    """The early exit that is kept with a checkpoint; ValueError if it belongs to other weights."""
    from ffn.evaluation.early_exit import EarlyExit
    from ffn.zoo import early_exit_beside, state_sha256

    path = early_exit_beside(checkpoint)
    if path is not None:
        EarlyExit.load(path).check_network(state_sha256(model.state_dict()), checkpoint)
    return path


def _sweep_of(checkpoint: str, results: str, sweeps: Sequence[Sweep]) -> Sweep:
    """The results with the name that :func:`names_of` gives a checkpoint, alone or with others."""
    shortest = names_of([checkpoint])[checkpoint]
    path = Path(checkpoint).resolve().with_suffix("").as_posix()
    found = [
        sweep
        for sweep in sweeps
        if sweep.name == shortest
        or (len(sweep.name) > len(shortest) and f"{path}/".endswith(f"/{sweep.name}/"))
    ]
    if len(found) != 1:
        names = ", ".join(sweep.name for sweep in sweeps)
        raise ValueError(
            f"{results} has results of {names}; expected those of {checkpoint}, with the name "
            f"{shortest}. {_test_it(checkpoint)}"
        )
    return found[0]


def _check_network(sweep: Sweep, model: nn.Module, given: argparse.Namespace) -> None:
    """Raise ValueError for results of another network with the name of the checkpoint."""
    from ffn.core import FrameFlexible, all_trained_frames
    from ffn.evaluation.cost import count_parameters

    values = {"parameters": (sweep.params, count_parameters(model))}
    if isinstance(model, FrameFlexible):
        values["trained counts"] = (sweep.trained_frames, all_trained_frames(model.ranges))
    for what, (tested, own) in values.items():
        if tested != own:
            raise ValueError(
                f"{given.results} has results of another network with the name {sweep.name}: its "
                f"{what} are {tested}, those of {given.checkpoint} {own}. "
                f"{_test_it(given.checkpoint)}"
            )


def _test_it(checkpoint: str) -> str:
    return f"Test it with ffn test --weights {checkpoint} --output FOLDER"


def without_places(config: dict[str, Any] | None) -> dict[str, Any] | None:
    """A training config without the folders of the machine: it says how, not where.

    ``data.root`` and ``log.output`` go; of other absolute paths and addresses, the last part stays.
    """
    if config is None:
        return None

    def shorten(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shorten(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [shorten(inner) for inner in value]
        is_place = isinstance(value, str) and (value[:1] in ("/", "~") or "://" in value)
        return PurePosixPath(value).name if is_place else value

    config = shorten(config)
    for section, option in (("data", "root"), ("log", "output")):
        config.get(section, {}).pop(option, None)
    return config
