"""Annotations, decoding, frame sampling, transforms and loading of videos."""

from __future__ import annotations

from ffn.data.annotations import (
    read_annotation_rows,
    read_annotations,
    read_classes,
)
from ffn.data.clip_sampler import ClipSampler, FrameCounts
from ffn.data.dataset import VideoDataset
from ffn.data.decoding import (
    DECODERS,
    VideoError,
    VideoMetadata,
    open_video,
    probe,
)
from ffn.data.global_rng import library_draws
from ffn.data.lists import AnnotationRow
from ffn.data.loader import (
    LoaderError,
    collate_eval,
    collate_train,
    make_loader,
    watching,
)
from ffn.data.preprocessing import Normalize, Preprocessing
from ffn.data.records import Record, has_several_labels, label_text
from ffn.data.sampling import Protocol, clip_indices, sample_views, segment_center
from ffn.data.splits import (
    Splits,
    check_splits,
    describe_splits,
    read_splits,
    split_warnings,
)
from ffn.data.store import ClipStore, PackReport, StoredVideo, StoreError, pack
from ffn.data.transforms import EvalTransform, TrainTransform, swap_pairs

__all__ = [
    "DECODERS",
    "AnnotationRow",
    "ClipSampler",
    "ClipStore",
    "EvalTransform",
    "FrameCounts",
    "LoaderError",
    "Normalize",
    "PackReport",
    "Preprocessing",
    "Protocol",
    "Record",
    "Splits",
    "StoreError",
    "StoredVideo",
    "TrainTransform",
    "VideoDataset",
    "VideoError",
    "VideoMetadata",
    "check_splits",
    "clip_indices",
    "collate_eval",
    "collate_train",
    "describe_splits",
    "has_several_labels",
    "label_text",
    "library_draws",
    "make_loader",
    "open_video",
    "pack",
    "probe",
    "read_annotation_rows",
    "read_annotations",
    "read_classes",
    "read_splits",
    "sample_views",
    "segment_center",
    "split_warnings",
    "swap_pairs",
    "watching",
]
