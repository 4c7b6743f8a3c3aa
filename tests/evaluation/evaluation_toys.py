"""A small data set, small networks, and the function of spawned processes."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ffn.core import FrameFlexible, convert
from ffn.data import ClipSampler, Normalize, Preprocessing, Protocol, collate_eval
from ffn.engine.distributed import cleanup
from ffn.evaluation import ensemble, evaluate, sweep
from ffn.layers import AlterationSite, PerFrame

CLASSES = 7
PROTOCOL = Protocol()


def normalized(clip: torch.Tensor) -> torch.Tensor:
    """A normalized clip (C, T, H, W), by hand."""
    mean, std = torch.full((3, 1, 1, 1), 0.5), torch.tensor([0.25, 0.3, 0.4]).view(3, 1, 1, 1)
    return (clip / 255 - mean) / std


class ToyVideos(Dataset):
    """Random clips; video i has class 3 * i mod 5, so that classes 5 and 6 do not occur."""

    preprocessing = Preprocessing(crop=8, resize=8, mean=(0.5,) * 3, std=(0.25, 0.3, 0.4))
    normalize = Normalize(preprocessing)

    def __init__(
        self,
        videos: int,
        views: tuple[int, ...] = (2, 4, 6),
        failed: tuple = (),
        protocol: Protocol = PROTOCOL,
    ) -> None:
        self.views, self.failed, self.protocol = views, failed, protocol
        self.records = [
            SimpleNamespace(path=f"video_{i}.mp4", label=3 * i % 5) for i in range(videos)
        ]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: int | tuple[int, int]) -> dict:
        index = key[1] if isinstance(key, tuple) else key
        record, ok = self.records[index], index not in self.failed
        random = torch.Generator().manual_seed(index)
        several = (self.protocol.views,) if self.protocol.views > 1 else ()
        shape = (*several, 3, max(self.views), 8, 8)
        clip = torch.randint(0, 256, shape, generator=random, dtype=torch.uint8) * ok
        return {
            "clips": {view: clip[..., :view, :, :] for view in self.views},
            "label": record.label,
            "index": index,
            "ok": ok,
            "error": "" if ok else f"{record.path}: no frames",
        }


class MultiLabelVideos(ToyVideos):
    """Random clips, each with any number of random labels; the last class does not occur."""

    def __getitem__(self, key: int | tuple[int, int]) -> dict:
        sample = super().__getitem__(key)
        random = torch.Generator().manual_seed(100 + sample["index"])
        label = (torch.rand(CLASSES, generator=random) < 0.4).float()
        label[-1] = 0
        return sample | {"label": label}


def loader(dataset: Dataset, rank: int = 0, world_size: int = 1, batch_size: int = 2) -> DataLoader:
    sampler = ClipSampler(
        len(dataset), shuffle=False, rank=rank, world_size=world_size, batch_size=batch_size
    )
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler, collate_fn=collate_eval)


def plain(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    norm = nn.BatchNorm2d(6)
    norm.running_mean.normal_()
    net = nn.Sequential(
        AlterationSite(3),
        nn.Conv2d(3, 6, 3, 2),
        norm,
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(54, CLASSES),
    )
    return PerFrame(net)


def flexible() -> FrameFlexible:
    model = convert(plain(), (2, 6))
    for name, parameter in model.named_parameters():
        if ".6." in name:  # so that the two sub-networks differ
            nn.init.normal_(parameter)
    return model


def metrics_by_hand(logits: list, labels: list, failed: Collection[int]) -> dict[str, float]:
    """The metrics from sorted lists and loops."""
    first, five, classes = 0, 0, {}
    for i, (row, label) in enumerate(zip(logits, labels, strict=True)):
        order = sorted(range(len(row)), key=lambda k: (-row[k], k))
        right = i not in failed and order[0] == label
        first += right
        five += i not in failed and label in order[:5]
        classes.setdefault(int(label), []).append(right)
    recalls = [sum(rights) / len(rights) for rights in classes.values()]
    return {
        "top1": 100 * first / len(labels),
        "top5": 100 * five / len(labels),
        "mean_class": 100 * sum(recalls) / len(recalls),
    }


class NaNAtVideo(nn.Module):
    """Returns NaN for one video at 4 frames."""

    def __init__(self, clip: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("clip", normalized(clip))
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, clip: torch.Tensor) -> torch.Tensor:
        near = (clip[:, :, 0] - self.clip[:, 0]).abs() < 1e-5
        same = clip.shape[2] == 4 and near.flatten(1).all(1)
        logits = clip.mean((2, 3, 4)).repeat(1, 3)[:, :CLASSES]
        return torch.where(torch.as_tensor(same).view(-1, 1), torch.nan, logits)


def spawned(rank: int, world_size: int, folder: str) -> None:
    """Write the results of this process on several data sets, and the error of a broken model."""
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous_{world_size}"
    torch.distributed.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=world_size
    )
    results: dict = {}
    for videos in (7, 2):  # uneven; with three processes the last has none of the two
        toys = ToyVideos(videos, failed=(1,))
        options = {"latency": False, "keep_logits": True}
        result = sweep(flexible(), loader(toys, rank, world_size), **options)
        kept = result.predictions
        results[f"sweep_{videos}"] = comparable(result)
        results[f"kept_{videos}"] = kept and {t: x.tolist() for t, x in kept.logits.items()}
        both = [result, sweep(plain(), loader(toys, rank, world_size), **options)]
        results[f"ensemble_{videos}"] = kept and comparable(ensemble(both))
        results[f"evaluate_{videos}"], _ = evaluate(flexible(), loader(toys, rank, world_size))
        several = MultiLabelVideos(videos, failed=(1,))
        part = loader(several, rank, world_size)
        results[f"several_{videos}"] = comparable(sweep(flexible(), part, latency=False))
    toys = ToyVideos(7)
    try:
        evaluate(NaNAtVideo(toys[5]["clips"][4]), loader(toys, rank, world_size))
    except FloatingPointError as error:
        results["error"] = str(error)
    padded = torch.utils.data.DistributedSampler(ToyVideos(7), world_size, rank, shuffle=False)
    twice = DataLoader(ToyVideos(7), 2, sampler=padded, collate_fn=collate_eval)
    results["padded"], _ = evaluate(flexible(), twice)
    Path(folder, f"{world_size}_{rank}.json").write_text(json.dumps(results))
    cleanup()


def comparable(result: object) -> dict:
    content = asdict(replace(result, predictions=None))
    return json.loads(json.dumps(content | {"measured": result.measured["precision"]}))
