"""The base of tasks: a model with its loss, as a module whose forward takes a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader

from ffn.core import frame_ranges
from ffn.data import Splits
from ffn.engine.task_options import TASK_OPTIONS, ConvertedOptions, TaskOptions
from ffn.evaluation import evaluate
from ffn.labels import LabelKind, SingleLabel
from ffn.registry import Registry

TASKS: Registry[type[Task]] = Registry("task")


def register_task(name: str) -> Callable[[type[Task]], type[Task]]:
    """Decorator that registers a subclass of :class:`Task` for ``task.name`` in a config.

    Raises:
        ValueError: another class has the name.
    """

    def register(task: type[Task]) -> type[Task]:
        TASKS.register(name)(task)
        TASK_OPTIONS[name] = task.Options
        return task

    return register


class Task(nn.Module):
    """A model with its loss.

    Subclasses define ``losses``, and ``Options`` if they have options. Parameters of a task outside
    of its model are trained and resumed with it, and are not part of the saved network. Its other
    tensors must be buffers, which training does not change: they move to the device of the model.

    Args:
        model: takes a clip (B, C, T, H, W), returns logits (B, K).

    Attributes:
        Options: pydantic model of the task's options, derived from :class:`TaskOptions`.
        uses_every_parameter: each step uses the parameters that the first one uses; if not, those
            that a step does not use stay as they are, and DDP must find them.
        needs_labels: the lists have labels; if not, labels are ignored and are 0 in a batch.
        compares_views: the loss compares the views of a sample. Each view has its own random crop
            and augmentation, also in validation, and all views run in one pass.
        reads_features: the network takes features of its frozen ``backbone`` in place of clips.
        measure: name of the measure of :meth:`evaluate` that is the score; None for that of the
            labels.
        class_weights: weights of the classes (K,), or None.
        labels: one label per video, several, or another kind.
        label_kinds: names of the kinds of labels that the task learns.
    """

    Options: type[TaskOptions] = TaskOptions
    uses_every_parameter: bool = True
    needs_labels: bool = True
    compares_views: bool = False
    reads_features: bool = False
    measure: str | None = None
    class_weights: Tensor | None
    labels: LabelKind = SingleLabel
    label_kinds: tuple[str, ...] = ("single", "multi")

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("class_weights", None, persistent=False)

    @classmethod
    def from_options(cls, model: nn.Module, options: Any) -> Task:
        """Build the task from its ``Options`` and a model converted with :meth:`conversion`."""
        return cls(model)

    @classmethod
    def conversion(cls, options: Any) -> dict[str, Any] | None:
        """Arguments of :func:`ffn.convert` for the model of this task; None keeps it plain.

        Checkpoints store ``trained_frames``, ``private``, ``alter`` and ``interpolate``, from which
        :func:`ffn.load` rebuilds the network. Other arguments, and functions, are refused.
        """
        return None

    @classmethod
    def views(cls, options: Any) -> dict[int, dict[int, float]]:
        """The clips of a batch: for each view its possible numbers of frames, with probabilities.

        A view has the same number of frames in all samples of a step. By default, each of
        ``options.frames`` is a view with this number of frames, or with one from its range.
        """
        return {
            count: dict.fromkeys(range(low, high + 1), 1 / (high - low + 1))
            for count, (low, high) in frame_ranges(options.trained_frames).items()
        }

    @classmethod
    def model_args(cls, options: Any) -> dict[str, Any]:
        """Further arguments of :func:`ffn.create_model`, which checkpoints store: its ``head``."""
        return {}

    def check(self, splits: Splits, crop: int) -> None:
        """Raise ValueError for videos that cannot be learned, before training.

        Args:
            splits: the lists.
            crop: height and width of the clips.
        """

    def losses(self, batch: dict[str, Any]) -> Iterator[tuple[str, Tensor, int, Tensor]]:
        """Yield (name, weighted loss, frames, logits) for each view of a batch.

        Names and frames are the same in every step and on every process.
        """
        raise NotImplementedError

    def own_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters outside of the model, by name."""
        known = {id(parameter) for parameter in self.model.parameters()}
        return {name: p for name, p in self.named_parameters() if id(p) not in known}

    def evaluate(
        self, network: nn.Module, loader: DataLoader, *, precision: str, batch_size: int
    ) -> tuple[dict[int, dict[str, float]], tuple[str, ...]]:
        """Validate a network, by default :func:`ffn.evaluation.evaluate`; all processes call it.

        Returns:
            Measures in percent by frame count, higher is better except for those in
            :data:`ffn.evaluation.ERRORS`; the reason for each unreadable
            video.
        """
        return evaluate(network, loader, precision=precision, batch_size=batch_size)

    def logits(self, clip: Tensor) -> Tensor:
        """Logits (B, K) of the model; ValueError if it returns something else."""
        logits = self.model(clip)
        if not isinstance(logits, Tensor):
            raise ValueError(
                f"the model returns {type(logits).__name__} in training; expected logits (B, K). "
                "Switch its auxiliary classifiers off, or wrap it to return the logits alone"
            )
        return logits

    def forward(
        self, batch: dict[str, Any], backward: Callable[[Tensor], None] | None = None
    ) -> dict[str, Tensor]:
        """Run all views of a batch.

        Args:
            batch: ``{"clips": {view: (B, C, T, H, W)}, "label": (B,)}`` with the views of
                :meth:`views`; a label may also be (B, K) probabilities, as
                :class:`ffn.engine.mixup.BatchMix` returns, or several labels.
            backward: called with the loss of each view before the next view runs, so that the
                activations of one view exist at a time. Without it, the total loss has a graph.

        Returns:
            The total loss, each view's loss, and each view's logits (B, K).
        """
        outputs: dict[str, Tensor] = {}
        total: Tensor | float = 0.0
        for name, loss, frames, logits in self.losses(batch):
            outputs[f"loss/{name}"] = loss.detach()
            outputs[f"logits/{frames}"] = logits.detach()
            if backward is not None:
                backward(loss)
                loss = loss.detach()
            total = total + loss
        return {"loss": total, **outputs}


class ConvertedTask(Task):
    """A task of a frame-flexible network.

    Without ``task.draws``, each sub-network has a view. With it, there are fewer views than
    sub-networks: the count of a view is drawn anew in each step, and the owner of the count runs.
    """

    Options = ConvertedOptions

    @classmethod
    def conversion(cls, options: ConvertedOptions) -> dict[str, Any]:
        """Private modules and alterations for all counts in ``options.frames``."""
        return {
            "trained_frames": options.trained_frames,
            "private": options.private,
            "alter": "sites" if options.alteration else "none",
            "interpolate": options.interpolate,
        }

    @classmethod
    def views(cls, options: ConvertedOptions) -> dict[int, dict[int, float]]:
        """The views of ``options.draws``, each named by its last count, or one per sub-network."""
        if not options.draws:
            return super().views(options)
        views = {high: (low, high) for low, high in options.draws}
        return super().views(TaskOptions(frames=list(views), ranges=list(views.values())))
