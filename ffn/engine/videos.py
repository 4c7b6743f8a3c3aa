"""The labelled videos of a config: what is trained and validated on, and how that is told later."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ffn import data
from ffn.engine.config import ConfigError
from ffn.engine.options import DataConfig


@dataclass(frozen=True)
class Videos:
    """The labelled videos of a config.

    Attributes:
        train: training records; empty if they were not asked for.
        val: validation records.
        classes: class names in the order of their indices.
        prepared: fingerprint of the data set in the ``dataset.json`` beside the lists, which
            ``tools/prepare_data.py`` writes: counts per class, lengths, names; None without one.
    """

    train: list[data.Record]
    val: list[data.Record]
    classes: list[str]
    prepared: Any = None

    def fingerprint(self) -> dict[str, Any]:
        """Counts and a hash of names and labels, to tell later what was trained on."""
        lines = [f"{Path(r.path).name} {r.label}" for r in [*self.train, *self.val]]
        digest = hashlib.sha256("\n".join([*self.classes, *lines]).encode()).hexdigest()
        found = {
            "train_videos": len(self.train),
            "val_videos": len(self.val),
            "classes": len(self.classes),
            "sha256": digest,
        }
        return found if self.prepared is None else {**found, "prepared": self.prepared}


def read_videos(
    options: DataConfig, *, train: bool = True, classes: Sequence[str] | None = None
) -> Videos:
    """Read the annotations.

    Args:
        options: ``config.data``.
        train: also read the training list; its class names then hold for validation.
        classes: class names to use in place of the data's own, as those of a checkpoint.
    """
    root = Path(options.root)

    def read(name: str, names: Sequence[str] | None) -> tuple[list[data.Record], list[str]]:
        source = root / name
        return data.read_annotations(source, root=None if source.is_dir() else root, classes=names)

    names = list(classes) if classes is not None else None
    if names is None and options.classes is not None:
        names = data.read_classes(root / options.classes)
    records: list[data.Record] = []
    if train or names is None:
        records, names = read(options.train, names)
    val, names = read(options.val, names)
    return Videos(records if train else [], val, names, _prepared(root / options.train))


def _prepared(annotations: Path) -> Any:
    """Fingerprint of a prepared data set, by one of its lists; None if it is none."""
    for folder in annotations.parents[:2]:  # index/train.csv or index/split1/train.csv
        description = folder / "dataset.json"
        if description.is_file():
            try:
                return json.loads(description.read_text(encoding="utf-8")).get("fingerprint")
            except (ValueError, AttributeError) as error:
                raise ConfigError(
                    f"{description} is no description of a data set ({error}); prepare the data "
                    "set again, or move the file away"
                ) from error
    return None
