"""``ffn.stream``: classify a stream frame by frame with a causal network."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ffn.core import FrameFlexible, extract
from ffn.export.deployed import dtype_of
from ffn.export.fuse import fuse

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Stream:
    """A stream, or a batch of them, and the network that classifies it; see :func:`stream`.

    One thread at a time may call it. Copies share the network, and may run in other threads.

    Attributes:
        window: frames after which the average over time forgets older ones; None: never.
    """

    def __init__(
        self, model: nn.Module, stride: int, window: int | None, precision: str = "fp32"
    ) -> None:
        self._model, self._precision, self.window = model, precision, window
        self._networks: dict[int | None, tuple[nn.Module, dict[str, nn.Module]]] = {}
        self._lock = threading.Lock()
        self._state: dict[str, Tensor] = {}
        self.stride = stride

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides that have a sub-network; of a plain network, 1, which runs at any."""
        if not isinstance(self._model, FrameFlexible):
            return (1,)
        *_, largest = counts = self._model.trained_frames
        return tuple(largest // n for n in reversed(counts) if largest % n == 0)

    @property
    def stride(self) -> int:
        """Frames from one step to the next. A new one takes effect with the next step.

        The sub-network of the stride then reads what the one before has kept of earlier frames.
        """
        return self._stride

    @stride.setter
    def stride(self, value: int) -> None:
        is_flexible = isinstance(self._model, FrameFlexible)
        is_known = value in self.strides if is_flexible else value >= 1
        if not isinstance(value, int) or not is_known:
            allowed = ", ".join(map(str, self.strides)) if is_flexible else "1 or more"
            raise ValueError(f"stride is {value!r}; expected {allowed}")
        self._stride = value

    @property
    def record(self) -> Any:
        """Of the weights, of a network from :func:`ffn.load`; else None."""
        return getattr(self._model, "record", None)

    def step(self, frame: Tensor) -> Tensor:
        """Read the next frame; returns what the network says about all frames so far.

        Args:
            frame: (C, H, W) of one stream, or (B, C, H, W) of a batch, normalized.

        Returns:
            Logits (K,) or (B, K), in fp32.

        Raises:
            ValueError: a frame of another shape than the one before.
        """
        if frame.ndim not in (3, 4) or not frame.is_floating_point():
            found = f"frame is {str(frame.dtype).removeprefix('torch.')} {tuple(frame.shape)}"
            raise ValueError(f"{found}; expected normalized (C, H, W) or (B, C, H, W)")
        clip = (frame if frame.ndim == 4 else frame[None])[:, :, None]
        network, kept = self.network()
        before = {kept[name]: value for name, value in self._state.items()}
        other = f"frame is {tuple(frame.shape)}, and earlier ones were not; call reset"
        if any(len(value) != len(clip) for value in self._state.values()):
            raise ValueError(other)  # averages alone would broadcast
        streaming = network.length.streaming(self.stride, self.window, before)
        try:
            with torch.inference_mode(), streaming as state:
                logits = network(clip.to(dtype_of(network))).float()
        except RuntimeError as error:
            if "Sizes of tensors must match" not in str(error):  # of torch.cat
                raise
            raise ValueError(other) from error
        self._state = {name: state[module] for name, module in kept.items()}
        return logits if frame.ndim == 4 else logits[0]

    def reset(self, index: int | None = None) -> None:
        """Forget all frames, of one stream of the batch or of all."""
        if index is None:
            self._state = {}
            return
        self._state = {name: value.clone() for name, value in self._state.items()}
        for value in self._state.values():
            value[index] = 0

    def on_cpu(self) -> Stream:
        """A new stream on the CPU, in fp32, of a copy of the network."""
        return Stream(copy.deepcopy(self._model).cpu(), self.stride, self.window)

    def copy(self) -> Stream:
        """A stream that goes on from here, apart from this one."""
        other = Stream(self._model, self.stride, self.window, self._precision)
        other._networks, other._lock = self._networks, self._lock
        other._state = dict(self._state)
        return other

    def state_dict(self) -> dict[str, Tensor]:
        """What is kept of the frames so far, to be saved; empty before the first."""
        # Clones, since some are slices of larger tensors, which torch.save would write.
        return {name: value.clone() for name, value in self._state.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a saved state of this network.

        Raises:
            ValueError: the state is of another network.
        """
        own = self.network()[1].keys()
        if state and state.keys() != own:
            raise ValueError(
                f"the state has {len(state)} entries ({', '.join(sorted(state.keys() ^ own)[:3])}, "
                f"… differ); expected the {len(own)} of this network"
            )
        self._state = {name: value.clone() for name, value in state.items()}

    def network(self) -> tuple[nn.Module, dict[str, nn.Module]]:
        """The plain network of the stride, and its layers that keep something, by name.

        The first step at a stride builds it, from the weights at that time.
        """
        flexible = isinstance(self._model, FrameFlexible)
        count = self._model.trained_frames[-1] // self.stride if flexible else None
        with self._lock:
            if count not in self._networks:
                if dtype_of(self._model) == torch.float32:
                    network = fuse(self._model, count)
                elif flexible:
                    network = extract(self._model, count)
                else:
                    network = copy.deepcopy(self._model)
                network = network.to(PRECISIONS[self._precision])
                named = network.named_modules()
                kept = {name: m for name, m in named if getattr(m, "keeps_frames", False)}
                self._networks[count] = network, kept
            return self._networks[count]


def stream(
    model: nn.Module, *, stride: int = 1, window: int | None = None, precision: str = "fp32"
) -> Stream:
    """Classify a stream frame by frame; each frame runs through the network once.

    After n frames, the logits are those of the causal network for a clip of these n frames, with
    the sub-network of the stride. That of T frames runs every (T' / T)-th frame of a stream, if T'
    is the largest count: at training, clips of the same span have T and T' frames.

    Args:
        model: a plain or frame-flexible network that is ``causal``, in eval mode.
        stride: frames from one step to the next: the caller leaves out those between. It may
            change later.
        window: number of frames after which the average over time forgets older ones: it becomes an
            exponential one with this time constant. None: the average of all frames.
        precision: "fp32", or "bf16".

    Raises:
        ValueError: the network is not causal or in training mode, or a wrong option.
    """
    network = model.model if isinstance(model, FrameFlexible) else model
    if not isinstance(network, nn.Module):
        raise TypeError(f"model is {model!r}; expected a network, as from ffn.load")
    if not getattr(network, "causal", False):
        raise ValueError(
            f"{type(network).__name__} reads later frames; a stream needs a causal network: "
            "ffn.create_model(…, causal=True), or model.causal=true of a training with "
            "task.name=flexible or plain"
        )
    if model.training:
        raise ValueError("the network is in training mode; call model.eval()")
    if window is not None and window < 1:
        raise ValueError(f"window is {window!r}; expected frames, 1 or more, or None")
    if precision not in PRECISIONS:
        raise ValueError(f'precision is "{precision}"; expected {" or ".join(PRECISIONS)}')
    return Stream(model, stride, window, precision)
