"""Write the details of a test: results per class, confusion matrices, confident mistakes.

With several labels per video there is neither one answer nor a confusion matrix: only the results
per class are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch.utils.data import Dataset

from ffn.evaluation.class_figure import save_class_figure
from ffn.evaluation.confusion import save_classes, save_confusion
from ffn.evaluation.confusion_figure import save_confusion_figure
from ffn.evaluation.mistakes import save_mistakes
from ffn.evaluation.multi_label import save_multi_label_classes
from ffn.evaluation.results import Sweep


def save_details(
    sweep: Sweep, dataset: Dataset, classes: Sequence[str], folder: str | Path
) -> list[Path]:
    """Write the results per class and the most confident mistakes; existing files are replaced.

    Args:
        sweep: made with ``keep_logits=True``, on rank 0.
        dataset: the data set of the test.
        classes: class names.
        folder: exists.

    Returns:
        ``NAME.classes.csv``, ``NAME.confusion.csv``, ``NAME.mistakes.png``, ``NAME.classes.png``
        and ``NAME.confusion.png``; of several labels per video only the first.

    Raises:
        ImportError: matplotlib is not installed; the other files are complete.
    """
    kept, start = sweep.predictions, str(Path(folder) / sweep.name.replace("/", "_"))
    if kept.multi_label:
        return [save_multi_label_classes(kept, classes, Path(f"{start}.classes.csv"))]
    return [
        save_classes(kept, classes, Path(f"{start}.classes.csv")),
        save_confusion(kept, classes, Path(f"{start}.confusion.csv")),
        save_mistakes(sweep, dataset, classes, Path(f"{start}.mistakes.png")),
        save_class_figure(kept, classes, f"{start}.classes.png", name=sweep.name),
        save_confusion_figure(kept, classes, f"{start}.confusion.png", name=sweep.name),
    ]
