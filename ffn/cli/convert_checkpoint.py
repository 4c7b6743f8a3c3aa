"""Convert weights of other implementations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import yaml
from cyclopts import Parameter
from cyclopts.types import ExistingFile

from ffn.cli.arguments import FrameCounts, Imports, Overwrite
from ffn.files import refuse_existing
from ffn.registry import import_extensions

Source = Literal[
    "ffn-pytorch", "tsm", "pyslowfast", "uniformer", "videomae", "huggingface", "mmaction2", "image"
]


def convert_checkpoint(
    source: Annotated[ExistingFile, Parameter(name="IN")],
    target: Annotated[Path, Parameter(name="OUT")],
    /,
    *,
    model: str,
    implementation: Annotated[Source | None, Parameter(name="--from")] = None,
    trained_frames: FrameCounts | None = None,
    num_classes: int | None = None,
    preprocessing: Annotated[list[str] | None, Parameter(name="--preprocessing")] = None,
    classes: ExistingFile | None = None,
    overwrite: Overwrite = False,
    imports: Imports = None,
) -> None:
    """Convert a checkpoint of another implementation to weights of ffn.

    No pickled code is executed. Prints what matched, and writes a safetensors file with a record.

    Args:
        source: A .pth, .pyth, .tar or .pkl file.
        target: Ends in .safetensors.
        model: Name of the model in ffn, e.g. tsm_r50.
        implementation: That wrote the file; default: detected from the names of its entries.
        trained_frames: Frame counts of a flexible checkpoint; for a plain one, those of the
            flexible network to build from it.
        num_classes: Default: that of the checkpoint. Another number gives a new classifier.
        preprocessing: KEY=VALUE where its training differs from the default of its
            implementation: crop=256 resize=256 color=bgr sampling=dense mean=[0.45,0.45,0.45].
        classes: File of class names, one per line.
    """
    refuse_existing([target], overwrite)
    import_extensions(imports or [])

    from ffn.data import Preprocessing, read_classes
    from ffn.zoo import save_weights
    from ffn.zoo.remap import from_foreign, read_foreign

    pairs = (text.partition("=") for text in preprocessing or [])
    try:
        settings = {key: yaml.safe_load(value) for key, _, value in pairs}
        Preprocessing.from_dict(Preprocessing().to_dict() | settings)  # raises before any work
    except (yaml.YAMLError, TypeError, ValueError) as error:
        example = "crop=256 color=bgr mean=[0.45,0.45,0.45]"
        raise ValueError(f"--preprocessing: {error}; expected e.g. {example}") from None
    names = read_classes(classes) if classes else None
    converted = from_foreign(
        read_foreign(source),
        model=model,
        source=implementation,
        trained_frames=tuple(trained_frames) if trained_frames else None,
        num_classes=num_classes,
    )
    known = Preprocessing().to_dict() | converted.preprocessing | settings
    meta = {
        "model": model,
        "imports": imports or [],
        "num_classes": converted.num_classes,
        "classes": names,
        "trained_frames": converted.trained_frames,
        "preprocessing": Preprocessing.from_dict(known).to_dict(),
        "source": f"{converted.source}: {source.name}",
    }
    record = save_weights(converted.model, target, meta, overwrite=overwrite)
    counts = " ".join(map(str, converted.trained_frames or ["none, a plain network"]))
    print(f"source: {converted.source}\n{converted.match}\ntrained frames: {counts}")
    print(f"classes: {converted.num_classes}" + ("" if names else ", unnamed"))
    shown = ", ".join(f"{key} {value}" for key, value in record.preprocessing.items())
    print(f"preprocessing: {shown} (change it with --preprocessing)")
    print(f"written: {target} ({record.size:,} bytes) and its record, sha256 {record.sha256}")
