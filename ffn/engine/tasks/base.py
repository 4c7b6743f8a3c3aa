"""The class of tasks and their registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from ffn.core import frame_ranges
from ffn.engine.task_options import TASK_OPTIONS, TaskOptions
from ffn.labels import LabelKind, SingleLabel
from ffn.registry import Registry

TASKS: Registry[type[Task]] = Registry("task")


def register_task(name: str) -> Callable[[type[Task]], type[Task]]:
    """Decorator that registers a subclass of :class:`Task` for ``task.name`` in a config.

    Raises:
        ValueError: another class has the name, or the class is no task.
    """

    def register(task: type[Task]) -> type[Task]:
        if not issubclass(task, Task):
            raise ValueError(f"task {name!r}: {task.__name__} does not derive from ffn's Task")
        TASKS.register(name)(task)
        TASK_OPTIONS[name] = task.Options
        return task

    return register


class Task(nn.Module):
    """A model with its loss.

    Subclasses define ``losses``, and ``Options`` if they have options. Only the parameters of the
    model are trained, and only its parameters and buffers are saved. Tensors of a task must be
    buffers: they move to the device of the model.

    Args:
        model: takes a clip (B, C, T, H, W), returns logits (B, K).

    Attributes:
        Options: pydantic model of the task's options, derived from :class:`TaskOptions`.
        uses_every_parameter: each step uses all parameters; if not, those that a step does not use
            stay as they are, and ``DistributedDataParallel`` must find them.
        class_weights: weights of the classes (K,), or None.
        labels: one label per video, or several.
    """

    Options: type[TaskOptions] = TaskOptions
    uses_every_parameter: bool = True
    class_weights: Tensor | None
    labels: LabelKind = SingleLabel

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("class_weights", None, persistent=False)

    @classmethod
    def from_options(cls, model: nn.Module, options: Any) -> Task:
        """Build the task from its options.

        Args:
            model: converted with :meth:`conversion`.
            options: an instance of ``Options``.
        """
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

    def clips(self, batch: dict[str, Any]) -> dict[int, Tensor]:
        """The clips of a batch that the model runs on, by view.

        By default, they are those of the batch.
        """
        return batch["clips"]

    def label_loss(self, logits: Tensor, label: Tensor) -> Tensor:
        """Cross-entropy, or binary cross-entropy for several labels, with the class weights.

        :class:`ffn.labels.SingleLabel` and :class:`ffn.labels.MultiLabel` have the formulas.

        Args:
            logits: (B, K).
            label: (B,), or (B, K) probabilities.
        """
        return self.labels.loss(logits, label, self.class_weights)

    def video_weights(self, label: Tensor) -> Tensor | None:
        """Weight of each video in losses without a label (B,); None for 1.

        It is ``sum_c w_c y_c`` with one label per video, and 1 with several.
        """
        return self.labels.video_weights(label, self.class_weights)

    def losses(self, batch: dict[str, Any]) -> Iterator[tuple[str, Tensor, int, Tensor]]:
        """Yield (name, weighted loss, frames, logits) for each view of a batch.

        Names and frames are the same in every step and on every process.
        """
        raise NotImplementedError

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
