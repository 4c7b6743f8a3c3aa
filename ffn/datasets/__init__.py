"""Preparing data sets: official lists and files on disk become an index that training reads."""

from __future__ import annotations

from ffn.datasets.convert import Conversion
from ffn.datasets.folders import Division
from ffn.datasets.listing import PreparationError, Problem
from ffn.datasets.mirror import mirror_pairs, mirror_problems
from ffn.datasets.run import DATASETS, SplitSummary, Summary, prepare

__all__ = [
    "DATASETS",
    "Conversion",
    "Division",
    "PreparationError",
    "Problem",
    "SplitSummary",
    "Summary",
    "mirror_pairs",
    "mirror_problems",
    "prepare",
]
