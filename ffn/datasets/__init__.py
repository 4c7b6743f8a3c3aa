"""Prepare data sets: official lists and files on disk become an index that training reads."""

from __future__ import annotations

from ffn.datasets import actions, folders, grid, kinetics, something  # noqa: F401  (they register)
from ffn.datasets.copies import CopySettings
from ffn.datasets.disk import Inventory
from ffn.datasets.listing import (
    DATASETS,
    Entry,
    Listing,
    PreparationError,
    Problem,
    register_dataset,
)
from ffn.datasets.lists import find_lists, read_lines, read_rows
from ffn.datasets.mirror import mirror_pairs, mirror_problems
from ffn.datasets.preparation import Summary, prepare
from ffn.datasets.splits import SplitSettings

__all__ = [
    "DATASETS",
    "CopySettings",
    "Entry",
    "Inventory",
    "Listing",
    "PreparationError",
    "Problem",
    "SplitSettings",
    "Summary",
    "find_lists",
    "mirror_pairs",
    "mirror_problems",
    "prepare",
    "read_lines",
    "read_rows",
    "register_dataset",
]
