"""Publish weights on the Hugging Face Hub, with a model card."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ffn.files import write_text
from ffn.zoo.fetch import HUB_WEIGHTS, is_repository
from ffn.zoo.load import load_with_record
from ffn.zoo.records import WeightRecord, WeightsError
from ffn.zoo.save import save_weights


def check_repository(repo: str) -> None:
    """Raise ValueError for a name that is not of the form user/name."""
    if not is_repository(f"hf://{repo}") or "@" in repo:
        raise ValueError(f"repo is {repo!r}; expected user/name without a version")


def push_to_hub(
    weights: str | os.PathLike[str],
    repo: str,
    *,
    private: bool = False,
    overwrite: bool = False,
) -> str:
    """Publish weights in a repository of the Hugging Face Hub, with a model card.

    The repository is created if it does not exist. The card is written from the record. Without
    `private`, a new repository is as visible as the settings of its owner say.

    Args:
        weights: name or path, as :func:`ffn.load` takes it.
        repo: "user/name".
        private: create a private repository; one that exists must be private.
        overwrite: replace weights that the repository already has; its history keeps them.

    Returns:
        The name by which ``ffn.load`` reads them, ``hf://user/name``.

    Raises:
        ValueError: another form of name.
        FileExistsError: the repository has weights, and ``overwrite`` is false.
        WeightsError: the weights cannot be read, the repository is public and `private` is true,
            or the Hub refuses them.
    """
    import huggingface_hub
    from huggingface_hub import errors

    check_repository(repo)
    name = f"hf://{repo}"
    model, record = load_with_record(weights)
    api = huggingface_hub.HfApi()
    try:
        api.create_repo(repo, private=private or None, exist_ok=True)
        if private and not api.repo_info(repo).private:  # it existed
            raise WeightsError(
                f"{name} is public; choose another name, make it private in its settings on the "
                "Hub, or publish without private=True, --private"
            )
        if not overwrite and api.file_exists(repo, HUB_WEIGHTS):
            raise FileExistsError(
                f"{name} has {HUB_WEIGHTS} already; choose another name, or replace it: "
                "overwrite=True in Python, --overwrite in a command"
            )
        with tempfile.TemporaryDirectory(prefix="ffn-") as folder:
            meta = {k: v for k, v in record.to_dict().items() if k not in ("sha256", "size", "url")}
            saved = save_weights(model, Path(folder, HUB_WEIGHTS), meta | {"source_format": None})
            write_text(Path(folder, "README.md"), model_card(saved, repo))
            api.upload_folder(repo_id=repo, folder_path=folder, commit_message="Weights of ffn")
    except (errors.HfHubHTTPError, errors.HFValidationError) as error:
        cause = str(error).strip().partition("\n")[0]
        raise WeightsError(
            f"cannot publish {name}: {cause}. Log in with `hf auth login`, or set HF_TOKEN to a "
            "token that may write"
        ) from error
    return name


def model_card(record: WeightRecord, repo: str) -> str:
    """The README of a repository: what the network is, its accuracy, and how to use it."""
    # A plain network has the counts of its training in its config.
    trained = record.trained_frames or record.options("task").get("frames") or (8,)
    about = f"`{record.model}`, a network for video recognition."
    if record.trained_frames is not None:
        about += " One set of weights for any number of frames, with sub-networks of "
        about += f"{', '.join(map(str, record.trained_frames))} frames."
    about += f"\n\nIt knows {record.knows}." if record.knows else ""
    about += f"\n\n{record.source}" if record.source else ""
    licence = f"license: {record.licence.lower()}\n" if record.licence else ""
    table = "\n".join(["\n## Accuracy\n", *_metrics_table(record), ""]) if record.metrics else ""
    classes = f"\n## {record.num_classes} classes\n\n" if record.classes else ""
    return f"""---
library_name: frame-flexible
pipeline_tag: video-classification
{licence}tags:
- video-classification
- frame-flexible
- {record.model}
---

# {repo.partition("/")[2]}

{about}

## Use

```bash
pip install frame-flexible
```

```python
import ffn

predictor = ffn.Predictor("hf://{repo}")
print(predictor("video.mp4", frames={max(trained)}).top(5))
```
{table}{classes}{", ".join(record.classes or ())}

SHA-256 of `{HUB_WEIGHTS}`: `{record.sha256}`
"""


def _metrics_table(record: WeightRecord) -> Iterator[str]:
    names = list(dict.fromkeys(name for row in record.metrics.values() for name in row))
    yield f"| frames | {' | '.join(names)} |"
    yield f"|{'---|' * (len(names) + 1)}"
    for frames, row in sorted(record.metrics.items()):
        cells = [f"{row[name]:.2f}" if name in row else "" for name in names]
        yield f"| {frames} | {' | '.join(cells)} |"
    origin = "reported by the authors" if record.origin == "reported" else "measured with ffn"
    yield from ("", f"In percent; {origin}, {record.protocol or 'one clip and crop'}.")
