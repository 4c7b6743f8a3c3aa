"""The frame-flexible training of a config, as a training loop of your own.

python examples/own_training_loop.py data/motion 30
"""

import math
import sys

import torch
from torch.nn.functional import cross_entropy, kl_div, log_softmax

import ffn
from ffn import data
from ffn.evaluation import evaluate

FRAMES, RATE, WARMUP = (4, 8, 16), 2e-3, 2  # counts of the views; learning rate; epochs
ROOT, EPOCHS = sys.argv[1], int(sys.argv[2])

splits = data.read_splits(ROOT, train="train.csv", val="val.csv", class_file="classes.txt")
size = data.Preprocessing(crop=24, resize=28)
crops = data.TrainTransform(size, scales=[1.0, 0.89, 0.78])
views = {"views": FRAMES, "preprocessing": size}
train = data.VideoDataset(splits.train, train=True, transform=crops, cache_bytes=2**30, **views)
loader = data.make_loader(train, batch_size=16, train=True)
tests = data.make_loader(data.VideoDataset(splits.val, **views), batch_size=16)
normalize = data.Normalize(size)

torch.manual_seed(0)
plain = ffn.create_model("tsm_tiny", num_classes=len(splits.classes), dropout=0.0)
model = ffn.convert(plain, FRAMES).train()
decay = [{"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": 1.0}]
rest = [{"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(decay + rest, RATE)


def factor(step: int) -> float:
    """Of the learning rate: linear warm-up, then half a cosine."""
    epoch = step / len(loader)
    if epoch < WARMUP:
        return 0.01 + 0.99 * epoch / WARMUP
    return (1 + math.cos(math.pi * (epoch - WARMUP) / (EPOCHS - WARMUP))) / 2


schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
for epoch in range(EPOCHS):
    loader.sampler.set_epoch(epoch)  # another order and other augmentations
    for batch in loader:
        *small, largest = FRAMES
        logits = model(normalize(batch["clips"][largest]))  # T selects the sub-network
        loss = cross_entropy(logits, batch["label"])  # the largest view learns the label,
        teacher = log_softmax(logits.detach(), -1)
        for frames in reversed(small):  # the others learn what it answers (FFN, eq. 3 to 5)
            answer = log_softmax(model(normalize(batch["clips"][frames])), -1)
            loss = loss + kl_div(answer, teacher, reduction="batchmean", log_target=True)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 20.0)
        optimizer.step()
        schedule.step()
    print(f"epoch {epoch + 1}: loss {loss.item():.4f}")

measured, _ = evaluate(model, tests)
for frames, measures in measured.items():
    print(f"{frames} frames: top-1 {measures['top1']:.2f} %")
