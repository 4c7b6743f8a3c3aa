"""Load trained networks, and start networks from trained weights. Every load is strict."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from ffn import backbones
from ffn.core import (
    FrameFlexible,
    PrivateModules,
    WeightAlteration,
    convert,
    extract,
    nearest,
)
from ffn.devices import check_device
from ffn.zoo.read import read_weights
from ffn.zoo.records import WeightRecord, WeightsError
from ffn.zoo.state_match import Match, match_state, new_head

# Attributes of networks that change what they compute, but no shape.
_FORM = ("positions", "head_dim", "grid", "causal", "alpha", "spread")
_READING = ("pretrained", "checkpoint_path", "cache_dir")  # timm's arguments start so


def load(name_or_path: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> nn.Module:
    """Load a trained network, in eval mode.

    Args:
        name_or_path: a name of the zoo (see :func:`ffn.list_weights`), a training checkpoint
            ``.pt``, a ``.safetensors`` file with its record (``.yaml``, same stem), a repository
            of the Hugging Face Hub, ``hf://user/name`` or ``hf://user/name@revision``, or a folder;
            the last two may also hold a VideoMAE or a V-JEPA 2 of transformers.
        device: where to put the network.

    Returns:
        A frame-flexible network, or a plain one if the weights are of a plain one. Its attribute
        ``record`` has the classes, preprocessing and metrics.

    Raises:
        ValueError: no such name in the zoo, or no such device.
        FileNotFoundError: no such file, or no record next to it.
        WeightsError: the file is damaged, foreign, has another hash, or does not fit its network;
            or the package that registers its model is not imported.
        TypeError: `name_or_path` is neither a name nor a path.
    """
    return load_with_record(name_or_path, device=device)[0]


def load_with_record(
    name_or_path: str | os.PathLike[str], *, device: str | torch.device = "cpu"
) -> tuple[nn.Module, WeightRecord]:
    """Like :func:`load`; also returns the record: classes, preprocessing, metrics."""
    device = check_device(device)
    record, state = read_weights(name_or_path)
    if record.num_classes == 0:
        start = f"ffn.create_model(…, pretrained={str(name_or_path)!r})"
        raise WeightsError(
            f"{name_or_path} has no classifier; start a network from it: {start}, in a config "
            "model.weights"
        )
    model = _trained(record, state, str(name_or_path))
    model.record = record
    return model.to(device).eval(), record


def load_start_weights(
    model: nn.Module, name_or_path: str | os.PathLike[str], *, frames: int | None = None
) -> tuple[Match, WeightRecord]:
    """Start a network from trained weights, in place.

    A frame-flexible network starts from weights of other frame counts or private modules: its
    private ones from the sub-network of the nearest count, shared ones from that of the nearest to
    its largest; alterations that the weights lack keep their values. It also starts from weights of
    the plain network: every private copy gets the same values. A plain network also starts from
    weights of a frame-flexible one: from one of its sub-networks, without alterations.
    A classifier of other classes keeps its values, and a head over time those of its own if the
    weights are of a network without.

    Args:
        model: the network to start.
        name_or_path: of the weights, as :func:`load` takes it.
        frames: the count that a plain network will run at, at least 1: it starts from the
            sub-network that runs such clips. None: from that of the largest trained count.

    Returns:
        What matched and how frame counts were assigned, printable, and the record of the weights.

    Raises:
        WeightsError: anything but the classifier does not match.
        TypeError: `name_or_path` is neither a name nor a path.
    """
    record, state = read_weights(name_or_path)
    own, note, head = model.state_dict(), "", []
    is_flexible = isinstance(model, FrameFlexible)
    removed = getattr(model.model if is_flexible else model, "removed", None)
    adds_head = removed is not None and "head" not in record.model_args

    def renamed(entries: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if not adds_head:
            return dict(entries)
        kept = {k: v for k, v in entries.items() if not k.startswith(f"{removed}.")}
        return {f"backbone.{k}": v for k, v in kept.items()}

    given, state, source = state, renamed(state), str(name_or_path)
    if is_flexible:
        if record.trained_frames is None:
            own = _plain_state(extract(model, model.trained_frames[-1]))
            counts = ", ".join(map(str, model.trained_frames))
            note = f"every frame count ({counts}) starts from the plain network"
        elif state.keys() != own.keys():
            flexible = _trained(record, given, source)
            counts = {n: nearest(n, record.conversion_frames) for n in model.trained_frames}
            state = _of_counts(flexible, counts, model, renamed)
            if adds_head:  # without the alterations of the head
                state = {k: v for k, v in state.items() if k.startswith("backbone.")}
            shown = ", ".join(f"{n} from {k}" for n, k in counts.items())
            ours, theirs = map(_has_alterations, (model, flexible))
            what = "private modules" + " and alterations" * (ours and theirs)
            note = f"{what} of frame counts: {shown} (the nearest trained)"
            note += ", without alterations" * (theirs and not ours)
    elif record.trained_frames is not None:
        flexible = _trained(record, given, source)
        count = flexible.trained_frames[-1] if frames is None else flexible.select(frames)
        state = renamed(_plain_state(extract(flexible, count)))
        purpose = "" if frames is None else f", which runs clips of {frames} frames"
        note = f"the sub-network of {count} frames{purpose}, without alterations"
    if adds_head:
        head = sorted((key for key in own if key.startswith("head.")), reverse=True)
        if record.num_classes == 0:
            inner = [key.removeprefix("backbone.") for key in own if key.startswith("backbone.")]
            head += [f"backbone.{key}" for key in new_head(inner)]
    elif record.num_classes == 0:
        head = new_head(own)
    match = match_state(state, own, head=head).require(str(name_or_path), new_head=True)
    others = [note] if note else []
    for name, theirs, ours in _differing(model, record):
        others.append(f"{name} is {theirs} in the weights, {ours} in the model")
        if name in ("positions", "head_dim"):
            raise WeightsError(f"{source} does not fit the model: {others[-1]}")
    model.load_state_dict(match.state, strict=False)
    return replace(match, note="\n".join(others)), record


def _differing(model: nn.Module, record: WeightRecord) -> list[tuple[str, Any, Any]]:
    """Name and values of attributes that change what a network computes, but no shape."""
    plain = replace(
        record, trained_frames=None, ranges=(), classes=None, num_classes=record.num_classes or 1
    )
    theirs, size = None, len(model.state_dict())
    with suppress(Exception), torch.device("meta"), _limited(plain, size):  # as in `_trained`
        theirs = model_from_record(plain)
    ours = model.model if isinstance(model, FrameFlexible) else model
    one, two = (getattr(network, "backbone", network) for network in (ours, theirs))
    is_rotary = getattr(one, "positions", "") == "rotary"  # without a grid
    names = [name for name in _FORM if not (is_rotary and name == "grid")]
    values = [(name, getattr(two, name, None), getattr(one, name, None)) for name in names]
    return [each for each in values if None not in each and each[1] != each[2]]


@contextmanager
def _limited(record: WeightRecord, entries: int) -> Iterator[None]:
    """Limit the parameters of networks that are built inside by the entries of a state dict."""
    found, most = itertools.count(), 20 * entries + 2000  # of a network that is built twice

    def limit(*_: object) -> None:
        if next(found) > most:
            raise WeightsError(f'"{record.name}" describes a larger network than its weights')

    with register_module_parameter_registration_hook(limit):
        yield


def _trained(record: WeightRecord, state: Mapping[str, Tensor], source: str) -> nn.Module:
    """The network of a record with a state dict, compared before the network takes memory."""
    shapes: dict[str, Tensor] = {}
    with _limited(record, len(state)):
        with suppress(Exception), torch.device("meta"):  # other packages may need values
            shapes = model_from_record(record).state_dict()
        if shapes:
            match_state(state, shapes).require(source)
        model = model_from_record(record)
    match_state(state, model.state_dict()).require(source)
    model.load_state_dict(state)
    return model


def model_from_record(record: WeightRecord) -> nn.Module:
    """Build the network that a record describes, with new weights.

    Raises:
        ValueError: unknown model name.
        WeightsError: the model is of a package that is not imported, which a file never does, or an
            argument of the model names other weights.
    """
    missing = [name for name in record.imports if name not in sys.modules]
    if missing and not backbones.is_registered(record.model):
        raise WeightsError(
            f'"{record.name}" needs the model "{record.model}" of {" and ".join(missing)}, which '
            f"is not imported. If you trust it, `import {missing[0]}` before ffn.load, or pass "
            f"--imports {' '.join(missing)} to a command, or imports=[{','.join(missing)}] to one "
            "that takes a config."
        )
    reading = [k for k, v in record.model_args.items() if v and str(k).startswith(_READING)]
    if reading:
        raise WeightsError(
            f'model_args of the record "{record.name}" has {reading[0]}, by which a record could '
            "have any file or address read; allowed are arguments that only build the network. "
            "Remove it"
        )
    try:
        model = backbones.build(record.model, num_classes=record.num_classes, **record.model_args)
    except ValueError:
        raise
    except Exception as error:  # of torch and timm
        what = f'model_args of the record "{record.name}" are {record.model_args}'
        raise WeightsError(f"{what}: {error}") from error
    if record.trained_frames is None:
        return model
    return convert(
        model,
        record.conversion_frames,
        private=record.private,
        alter=record.alter,
        interpolate=record.interpolate,
    )


def _plain_state(network: nn.Module) -> dict[str, Tensor]:
    """The state dict of an extracted network without alterations."""
    sites = {n for n, m in network.named_modules() if isinstance(m, WeightAlteration)}
    entries = network.state_dict().items()
    return {key: value for key, value in entries if key.rpartition(".")[0] not in sites}


def _of_counts(
    flexible: FrameFlexible,
    counts: Mapping[int, int],
    model: FrameFlexible,
    renamed: Callable[[Mapping[str, Tensor]], dict[str, Tensor]],
) -> dict[str, Tensor]:
    """The state dict for a model with other counts or private modules from sub-networks.

    Args:
        flexible: the network of the sub-networks.
        counts: of the model -> of the sub-network.
        model: what is shared in it starts from the largest count; alterations of which there are
            none keep their values.
        renamed: gives entries the names of the model.
    """
    own, new = model.state_dict(), {}
    named = model.model.named_modules(remove_duplicate=False)
    private = {f"{name}.": module for name, module in named if isinstance(module, PrivateModules)}
    for name, module in private.items():
        if isinstance(module.active_module(), WeightAlteration):
            new |= {key: value for key, value in own.items() if key.startswith(name)}
    for count, source in counts.items():
        network = extract(flexible, source)
        plain = renamed(_plain_state(network))
        for key, value in renamed(network.state_dict()).items():
            start = next((name for name in private if key.startswith(name)), None)
            ours = key if start is None else f"{start}{count}.{key[len(start) :]}"
            if key in plain or ours in own:  # not an alteration that the model does not have
                new[ours] = value
    return new


def _has_alterations(network: nn.Module) -> bool:
    return any(isinstance(module, WeightAlteration) for module in network.modules())
