"""Write a trained network and its record for release."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.types import ExistingFile

from ffn.cli.arguments import Imports, Overwrite, Weights
from ffn.registry import import_extensions

if TYPE_CHECKING:
    from torch import nn

    from ffn.evaluation import Sweep


def publish(
    checkpoint: Annotated[Weights, Parameter(name="CHECKPOINT")],
    name: Annotated[str, Parameter(name="NAME")],
    /,
    *,
    output: Path = Path(),
    results: ExistingFile | None = None,
    knows: str | None = None,
    source: str | None = None,
    licence: str | None = None,
    hub: Annotated[str | None, Parameter(name="--hub")] = None,
    private: bool = False,
    overwrite: Overwrite = False,
    imports: Imports = None,
) -> None:
    """Write a trained network as one weight file, NAME.safetensors, with its record, NAME.yaml.

    The record has the model, classes, preprocessing, metrics per frame count and SHA-256, for
    `ffn.load`.

    Args:
        checkpoint: best.pt or last.pt of a run.
        name: model.dataset_frames, e.g. tsm_r50.sthv1_f4_8_16.
        output: Folder.
        results: results.json of `ffn test` for this checkpoint, alone or with others.
        knows: What the classes are, e.g. "12 exercises"; default: that of the record.
        source: Origin of the weights, in a sentence; default: that of the record.
        licence: SPDX name, e.g. Apache-2.0; default: that of the record.
        hub: USER/REPO: also publish on the Hugging Face Hub, with a model card.
        private: In a private repository.
    """
    if not re.fullmatch(r"[^./\\][^/\\]*", name):
        raise ValueError(f"NAME is {name!r}; expected a name without folders. See --output")
    if private and not hub:
        raise ValueError("--private needs --hub")
    import_extensions(imports or [])

    from ffn.zoo import load_with_record, push_to_hub, save_weights
    from ffn.zoo.repositories import check_repository

    if hub:
        check_repository(hub)
    model, record = load_with_record(checkpoint)
    path = output / f"{name}.safetensors"
    about = {"knows": knows, "source": source, "licence": licence}
    meta = record.to_dict() | {key: value for key, value in about.items() if value is not None}
    meta |= {"name": name, "config": without_places(record.config)}
    meta |= _measured(checkpoint, model, results) if results else {}
    if meta.get("metrics"):
        meta.setdefault("origin", "measured")
    written = save_weights(model, path, meta, overwrite=overwrite)
    print(f"{path}: {written.size / 1e6:.2f} MB, SHA-256 {written.sha256}")
    if hub:
        print(push_to_hub(path, hub, private=private, overwrite=overwrite))


def _measured(checkpoint: str, model: nn.Module, results: Path) -> dict[str, Any]:
    """The metrics and the protocol of a results.json."""
    sweep = _sweep_of(checkpoint, model, results)
    metrics = {
        row.frames: {name: round(value, 2) for name, value in row.metrics.items()}
        for row in sweep.rows
    }
    protocol = None if sweep.protocol == "1x1" else f"{sweep.protocol} (clips x crops)"
    return {"metrics": metrics, "protocol": protocol, "origin": "measured"}


def _sweep_of(checkpoint: str, model: nn.Module, results: Path) -> Sweep:
    """The results of a checkpoint: their name is the end of its path, see :func:`names_of`."""
    from ffn.core import FrameFlexible, all_trained_frames
    from ffn.evaluation import count_parameters, load_table

    path = Path(checkpoint).resolve().with_suffix("").as_posix()
    sweeps, params = load_table(results), count_parameters(model)
    found = [s for s in sweeps if s.name == checkpoint or path.endswith(f"/{s.name}")]
    found = [sweep for sweep in found if sweep.params == params]
    if isinstance(model, FrameFlexible):
        counts = all_trained_frames(model.ranges)
        found = [sweep for sweep in found if sweep.trained_frames == counts]
    if len(found) != 1:
        names = ", ".join(sweep.name for sweep in sweeps)
        raise ValueError(
            f"{results} has results of {names}; expected one network with the name, the number of "
            f"parameters and the trained counts of {checkpoint}. Test it with ffn test --weights "
            f"{checkpoint} --output FOLDER"
        )
    return found[0]


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
