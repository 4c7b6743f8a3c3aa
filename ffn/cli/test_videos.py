"""The test videos of a config, as the weights that are tested need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from ffn.data import Splits
    from ffn.engine.distributed import World
    from ffn.engine.options import Config
    from ffn.zoo import WeightRecord


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
