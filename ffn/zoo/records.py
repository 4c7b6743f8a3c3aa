"""Records: the description of a set of weights, one YAML file each.

The zoo's records are in ``model_zoo/weights/`` of a checkout, or ``ffn/model_zoo/weights/`` of an
installed package. The record of any other ``.safetensors`` file is next to it, with the same stem.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field, fields
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from ffn.core import frame_ranges
from ffn.files import shipped
from ffn.label_kinds import find_labels
from ffn.labels import LabelKind, canonical
from ffn.limits import CLASSES, CLIP_FRAMES, RECORD_BYTES, TRAINED_COUNTS


class WeightsError(RuntimeError):
    """Weights that cannot be used: damaged, foreign, or of another model or hash."""


_Text = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid", coerce_numbers_to_str=True))
class WeightRecord:
    """One set of weights: their network, its preprocessing and its metrics.

    Attributes:
        name: ``model.dataset_frames``, e.g. "tsm_r50.sthv1_f4_8_16"; permanent.
        model: its name, see :func:`ffn.create_model`.
        model_args: further arguments of that function.
        imports: packages that register the model, if it is not part of ffn. Loading names them in
            an error if they are missing, and never imports them.
        num_classes: K; 0 without a classifier, of weights to start from.
        classes: the K class names in order; None if unknown.
        trained_frames: counts of a frame-flexible network, ascending; None for a plain one.
        ranges: the first and the last count of the range of each trained count, if the network was
            trained at ranges.
        private: modules private to each count, see :func:`ffn.convert`.
        alter: places of weight alterations, see :func:`ffn.convert`.
        interpolate: whether private modules are interpolated between trained counts.
        preprocessing: of frames, as ``ffn.data.Preprocessing.to_dict`` returns it.
        multi_label: whether a video has any number of the classes, each with the probability
            sigmoid(logit); else one class, with softmax.
        labels: kind of the labels, one of ``ffn.label_kinds.LABEL_KINDS``, if they are no classes.
        metrics: per number of frames the metrics by name, in %.
        origin: "measured" here or "reported" by a paper; None without metrics.
        file: name of the weights file next to the record.
        url: download address, if there is no file.
        sha256: of the weights, 64 hex digits. If None, the hash of the first download is stored
            next to it, and every later download must match it.
        page: web page of the weights.
        source_format: the implementation that wrote them, one of ``ffn.zoo.remap.SOURCES``; None
            for weights of ffn.
        protocol: test protocol of the metrics, e.g. "2x3 (clips x crops)"; by default one of each.
        knows: what the classes are, e.g. "12 motions of generated videos", for an answer about a
            video from elsewhere.
        size: of the weights, in bytes.
        source: origin of the weights, in a sentence.
        licence: of the weights, as an SPDX name.
        config: the resolved config of the training run, with the option names of its version.
        versions: of the libraries of the training run.
        data: fingerprint of the training data.
    """

    name: _Text
    model: _Text
    num_classes: Annotated[int, Field(strict=True, ge=0)]
    preprocessing: Annotated[dict[str, Any], Field(min_length=1)]
    classes: tuple[str, ...] | None = None
    trained_frames: tuple[int, ...] | None = None
    ranges: tuple[tuple[int, int], ...] = ()
    private: str = "norms"
    alter: str | tuple[str, ...] = "sites"
    interpolate: bool = False
    multi_label: bool = False
    labels: str = ""
    model_args: dict[str, Any] = field(default_factory=dict)
    imports: tuple[str, ...] = ()
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    origin: Literal["measured", "reported"] | None = None
    file: str | None = None
    url: str | None = None
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    page: str | None = None
    source_format: str | None = None
    protocol: str | None = None
    knows: str = ""
    size: int | None = None
    source: str = ""
    licence: str = ""
    config: dict[str, Any] | None = None
    versions: dict[str, str] | None = None
    data: Any = None

    def __post_init__(self) -> None:
        counts = len(self.trained_frames or ())
        most = max((*(self.trained_frames or ()), *chain(*self.ranges)), default=0)
        asked = ((CLASSES, self.num_classes), (TRAINED_COUNTS, counts), (CLIP_FRAMES, most))
        for refusal in filter(None, (limit.refusal(number) for limit, number in asked)):
            raise ValueError(refusal)
        if self.ranges and len(self.ranges) != counts:
            raise ValueError(f"{len(self.ranges)} ranges for trained_frames {self.trained_frames}")
        if self.trained_frames is not None:
            found = frame_ranges(self.conversion_frames)
            object.__setattr__(self, "trained_frames", tuple(found))
            object.__setattr__(self, "ranges", tuple(found.values()) if self.ranges else ())
        if self.classes is not None and len(self.classes) != self.num_classes:
            raise ValueError(f"{len(self.classes)} class names for num_classes {self.num_classes}")
        if self.classes is not None:
            object.__setattr__(self, "classes", tuple(map(canonical, self.classes)))

    def require_classes(self, purpose: str) -> None:
        """Raise ValueError if the network does not classify videos."""
        if self.labels:
            raise ValueError(f"{purpose} needs classes; {self.name} has {self.labels} as labels")

    def options(self, section: str) -> dict[str, Any]:
        """Options of the training, such as those of "data"; a record may lack any of them."""
        found = (self.config or {}).get(section)
        return found if isinstance(found, dict) else {}

    @property
    def label_kind(self) -> LabelKind:
        """The kind of labels, for these classes; ValueError if its package is not imported."""
        kind = self.labels or ("multi" if self.multi_label else "single")
        return find_labels(kind, self.classes or ())

    @property
    def conversion_frames(self) -> Iterable[int]:
        """The trained counts as :func:`ffn.convert` takes them, with their ranges if there are any.

        Only a record of a frame-flexible network has them.
        """
        counts = self.trained_frames
        return dict(zip(counts, self.ranges, strict=True)) if self.ranges else counts

    def to_dict(self) -> dict[str, Any]:
        """The fields that are set, as plain values for YAML and JSON."""
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        plain["ranges"] = [list(pair) for pair in self.ranges]
        return {k: v for k, v in plain.items() if v is not False and v not in (None, "", {}, [])}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> WeightRecord:
        """Build a record from the result of :meth:`to_dict`.

        Raises:
            ValueError: an unknown or missing key, or an invalid value.
        """
        try:
            return cls(**{key: value for key, value in values.items() if value is not None})
        except ValidationError as error:
            faults = (
                (*one["loc"], one["msg"].removeprefix("Value error, ")) for one in error.errors()
            )
            raise ValueError("; ".join(": ".join(map(str, parts)) for parts in faults)) from None

    @classmethod
    def from_checkpoint(cls, meta: Mapping[str, Any], name: str) -> WeightRecord:
        """Build a record from the meta data of a checkpoint; its other keys are left out."""
        known = {f.name for f in fields(cls)}
        return cls.from_dict({"name": name, **{k: v for k, v in meta.items() if k in known}})


def read_record(path: Path) -> WeightRecord:
    """Read a record file.

    Raises:
        FileNotFoundError: no such file.
        WeightsError: it is not a valid record.
    """
    refusal = RECORD_BYTES.refusal(path.stat().st_size)
    if refusal:
        raise WeightsError(f"{path} is not a record of weights: it has {refusal}")
    try:
        text = path.read_text(encoding="utf-8")
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
            raise ValueError("it has an alias (*name), by which a short file may have no end")
        values = yaml.safe_load(text)
        if not isinstance(values, dict):
            raise ValueError(f"expected keys and values, not {type(values).__name__}")
        return WeightRecord.from_dict(values)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, TypeError, RecursionError) as error:
        raise WeightsError(f"{path} is not a record of weights: {error}") from error


def zoo_folder() -> Path:
    """The folder of the zoo's records."""
    return shipped("model_zoo/weights")


def list_weights(pattern: str = "*") -> list[str]:
    """Names of the zoo's weights that match a glob pattern, sorted."""
    return sorted(fnmatch.filter((path.stem for path in zoo_folder().glob("*.yaml")), pattern))


def find_record(name: str) -> WeightRecord:
    """Read the zoo's record of a name.

    Raises:
        ValueError: no such weights; the message lists the closest names.
        WeightsError: the record is damaged.
    """
    names = list_weights()
    if name not in names:
        close = difflib.get_close_matches(name, names, n=3)
        hint = f"did you mean {', '.join(close)}?" if close else "ffn.list_weights() lists all."
        raise ValueError(
            f'no weights "{name}" in the zoo; {hint} A file needs its suffix, .pt or .safetensors.'
        )
    record = read_record(zoo_folder() / f"{name}.yaml")
    if record.name != name:
        raise WeightsError(f'the record {name}.yaml has the name "{record.name}"')
    return record
