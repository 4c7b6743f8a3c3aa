"""Records: what has to be known about weights before they may be used, one yaml file per weight.

Records of the zoo lie in ``model_zoo/weights/`` of a checkout and in ``ffn/model_zoo/weights/`` of
an installed package; one's own record lies beside its ``.safetensors`` file, with the same stem.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from ffn.core import check_trained_frames


class WeightsError(RuntimeError):
    """Weights that are not what they should be: damaged, foreign, of another model or hash."""


@dataclass(frozen=True, kw_only=True)
class WeightRecord:
    """One set of weights: the network they belong to, how to feed it, what it reached.

    Attributes:
        name: ``model.dataset_frames``, as "tsm_r50.sthv1_f4_8_16"; permanent.
        model: as :func:`ffn.create_model` takes it.
        model_args: further arguments of that function.
        num_classes: K.
        classes: the K class names in order, or None if nobody wrote them down.
        trained_frames: counts of a frame-flexible network, ascending; None for a plain one.
        private: what each count owns, see :func:`ffn.convert`.
        alter: where features are altered, see :func:`ffn.convert`.
        preprocessing: how frames become a clip, as ``ffn.data.Preprocessing.to_dict`` writes it.
        metrics: per number of frames the measures by name, in %.
        origin: "measured" by us or "reported" by a paper; None without metrics.
        file: name of the weights beside the record.
        url: where to get them if there is no file.
        sha256: of the weights, 64 hex digits. Without one, the hash of the first download is kept
            beside it and asked for from then on.
        page: where a person finds the weights.
        source_format: the implementation that wrote them, one of ``ffn.zoo.remap.SOURCES``; None
            if they are ours.
        protocol: how the metrics were measured, as "3 crops x 10 clips"; by default one of each.
        size: of the weights, in bytes.
        source: where the weights come from.
        licence: of the weights, as an SPDX name.
        config: the resolved configuration of the training run.
        versions: of the libraries that trained it.
        data: fingerprint of the training data.
    """

    name: str
    model: str
    num_classes: int
    preprocessing: dict[str, Any]
    classes: tuple[str, ...] | None = None
    trained_frames: tuple[int, ...] | None = None
    private: str = "norms"
    alter: str | tuple[str, ...] = "sites"
    model_args: dict[str, Any] = field(default_factory=dict)
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    origin: str | None = None
    file: str | None = None
    url: str | None = None
    sha256: str | None = None
    page: str | None = None
    source_format: str | None = None
    protocol: str | None = None
    size: int | None = None
    source: str = ""
    licence: str = ""
    config: dict[str, Any] | None = None
    versions: dict[str, str] | None = None
    data: Any = None

    def __post_init__(self) -> None:
        for name in ("classes", "trained_frames"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else tuple(value))
        if self.trained_frames is not None:
            object.__setattr__(self, "trained_frames", check_trained_frames(self.trained_frames))
        if not isinstance(self.alter, str):
            object.__setattr__(self, "alter", tuple(self.alter))
        # Keys of a YAML or JSON mapping may be text.
        object.__setattr__(self, "metrics", {int(t): dict(m) for t, m in self.metrics.items()})
        if self.classes is not None and len(self.classes) != self.num_classes:
            raise ValueError(f"{len(self.classes)} class names for num_classes {self.num_classes}")
        if self.origin not in (None, "measured", "reported"):
            raise ValueError(f'origin is {self.origin!r}; allowed: "measured", "reported", none')
        if self.sha256 is not None and not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise ValueError(f"sha256 is {self.sha256!r}; expected 64 lower-case hex digits")

    def to_dict(self) -> dict[str, Any]:
        """Plain values without those that nobody set, fit for YAML and JSON."""
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {k: v for k, v in plain.items() if v not in (None, "", {})}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> WeightRecord:
        """Build from what :meth:`to_dict` returned.

        Raises:
            ValueError: an unknown or missing key, or a value that is not allowed.
        """
        known = [f.name for f in fields(cls)]
        for key in values:
            if key not in known:
                close = difflib.get_close_matches(str(key), known, n=1)
                hint = f'did you mean "{close[0]}"?' if close else f"known: {', '.join(known)}"
                raise ValueError(f'unknown key "{key}"; {hint}')
        values = {key: value for key, value in values.items() if value is not None}
        needed = ("name", "model", "num_classes", "preprocessing")
        missing = [key for key in needed if not values.get(key)]
        if missing:
            raise ValueError(f"no {', '.join(missing)}")
        return cls(**values)


def read_record(path: Path) -> WeightRecord:
    """Read a record file.

    Raises:
        FileNotFoundError: there is none.
        WeightsError: it is no record, or one that contradicts itself.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError(f"expected keys and values, not {type(values).__name__}")
        return WeightRecord.from_dict(values)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, TypeError) as error:
        raise WeightsError(f"{path} is no record of weights: {error}") from error


def zoo_folder() -> Path:
    """The folder of the zoo's records, in an installed package or in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "model_zoo" / "weights"
    return installed if installed.is_dir() else package.parent / "model_zoo" / "weights"


def list_weights(pattern: str = "*") -> list[str]:
    """Names of the zoo's weights that match a glob pattern, sorted."""
    return sorted(fnmatch.filter((path.stem for path in zoo_folder().glob("*.yaml")), pattern))


def find_record(name: str) -> WeightRecord:
    """The zoo's record of a name.

    Raises:
        ValueError: no such weights; the message holds the closest names.
        WeightsError: the record is damaged.
    """
    names = list_weights()
    if name not in names:
        close = difflib.get_close_matches(name, names, n=3)
        hint = f"did you mean {', '.join(close)}?" if close else "ffn.list_weights() lists them."
        raise ValueError(
            f'no weights "{name}" in the zoo; {hint} A file needs its suffix, .pt or .safetensors.'
        )
    record = read_record(zoo_folder() / f"{name}.yaml")
    if record.name != name:
        raise WeightsError(f'the record {name}.yaml calls itself "{record.name}"')
    return record
