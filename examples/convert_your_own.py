"""Convert your own network, train it on generated videos, and test it at any T."""

import torch
from torch import nn

import ffn
from ffn.data import Normalize, Preprocessing, VideoDataset, make_loader, read_annotations
from ffn.datasets.synthetic import generate
from ffn.engine.tasks import FlexibleTask
from ffn.evaluation import print_table, sweep


def layer(channels: int, out: int) -> nn.Sequential:
    """A convolution that halves the feature map and keeps the number of frames."""
    return nn.Sequential(nn.Conv3d(channels, out, 3, (1, 2, 2), 1), nn.BatchNorm3d(out), nn.ReLU())


if __name__ == "__main__":
    torch.manual_seed(0)
    generate("data/example", train_per_class=20, val_per_class=10)
    records = {s: read_annotations(f"data/example/{s}.csv")[0] for s in ("train", "val")}
    crop = Preprocessing(crop=24, resize=28)
    train = VideoDataset(records["train"], views=(4, 8, 16), preprocessing=crop, train=True)
    val = VideoDataset(records["val"], views=(2, 4, 6, 8, 12, 16, 20), preprocessing=crop)
    loader = make_loader(train, batch_size=16, train=True)
    head = [nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(96, 12)]
    network = nn.Sequential(layer(3, 24), layer(24, 48), layer(48, 96), *head)
    model = ffn.convert(network, trained_frames=(4, 8, 16), alter=["1.0", "2.0"])
    print(model.report)
    task, optimizer = FlexibleTask(model, (4, 8, 16)), torch.optim.AdamW(model.parameters(), 3e-3)
    for epoch in range(12):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            batch["clips"] = {t: Normalize(crop)(clip) for t, clip in batch["clips"].items()}
            loss = task(batch)["loss"]
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.2f}")
    print_table([sweep(model, make_loader(val, batch_size=16), latency=False)])
