"""Tasks: a model with its loss, as a module whose forward takes a batch.

``forward(batch)`` returns ``{"loss": ..., "loss/<name>": ..., "logits/<frames>": ...}``. A task
also yields its losses one by one (``losses``), for a backward pass after each view. The train step
does not depend on the kind of task. Tasks are registered by name with :func:`register_task`, each
with its own options; your own package adds one in the same way.
"""

from ffn.engine.task_options import (
    FlexibleOptions,
    MixedSamplingOptions,
    PlainOptions,
    ProportionalSamplingOptions,
    TaskOptions,
)
from ffn.engine.tasks.base import TASKS, Task, register_task
from ffn.engine.tasks.baselines import (
    MixedSamplingTask,
    PlainTask,
    ProportionalSamplingTask,
    mix_frames,
)
from ffn.engine.tasks.flexible import FlexibleTask, distillation

__all__ = [
    "TASKS",
    "FlexibleOptions",
    "FlexibleTask",
    "MixedSamplingOptions",
    "MixedSamplingTask",
    "PlainOptions",
    "PlainTask",
    "ProportionalSamplingOptions",
    "ProportionalSamplingTask",
    "Task",
    "TaskOptions",
    "distillation",
    "mix_frames",
    "register_task",
]
