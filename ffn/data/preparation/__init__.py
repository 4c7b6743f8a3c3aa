"""Preparing data sets: official lists and files on disk become an index that training reads."""

from __future__ import annotations

from ffn.data.preparation.convert import Conversion
from ffn.data.preparation.folders import Division
from ffn.data.preparation.listing import PreparationError, Problem
from ffn.data.preparation.mirror import mirror_pairs, mirror_problems
from ffn.data.preparation.run import DATASETS, SplitSummary, Summary, prepare

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
