"""The preprocessing inside a file against that of ffn.data; the stated sampling rule."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms.v2 import functional as V

import ffn
from ffn.data import EvalTransform, Normalize, Preprocessing, sample_views
from ffn.data.sampling import RULES
from ffn.export.deployed import SAMPLING, FrameTransform

SIZES = [(28, 28), (240, 320), (320, 240), (100, 133), (17, 31), (97, 131), (360, 480), (64, 36)]


def photo(count: int, height: int, width: int) -> Tensor:
    """Smooth frames with edges, uint8 (T, H, W, 3)."""
    generator = torch.Generator().manual_seed(height * width)
    small = torch.randint(0, 256, (count, 3, 12, 16), generator=generator).float()
    large = F.interpolate(small, (height, width), mode="bicubic").clamp(0, 255)
    return large.byte().permute(0, 2, 3, 1)


@pytest.mark.parametrize("crop_resize", [(24, 28), (224, 256), (37, 50)], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_frame_transform_is_that_of_the_data(
    size: tuple[int, int], crop_resize: tuple[int, int]
) -> None:
    """At most 1 of 255 per value, in a few values; the crop is at the same place.

    Some versions of torchvision resize uint8 frames as float ones on some processors. Their values
    are rounded once, and not twice.
    """
    crop, resize = crop_resize
    preprocessing = Preprocessing(crop=crop, resize=resize, color="bgr", mean=(0.1, 0.5, 0.6))
    frames = photo(2, *size)
    expected = Normalize(preprocessing)(EvalTransform(preprocessing)(frames).transpose(0, 1)[None])
    values = {k: v for k, v in preprocessing.to_dict().items() if k not in ("sampling", "span")}

    found = FrameTransform(**values)(frames[None])

    std = torch.tensor(preprocessing.std).view(3, 1, 1, 1)
    levels = (found - expected).abs() * std * 255
    assert found.shape == expected.shape == (1, 3, 2, crop, crop)
    assert levels.max() < 1.01
    half = F.interpolate(photo(1, 64, 64).permute(0, 3, 1, 2), 32, mode="bilinear", antialias=True)
    resizes_uint8 = torch.equal(V.resize(photo(1, 64, 64).permute(0, 3, 1, 2), [32, 32]), half)
    assert (levels > 0.5).float().mean() < (0.04 if resizes_uint8 else 0.25)


@pytest.mark.parametrize("rule", RULES)
def test_the_stated_sampling_rule_is_that_of_the_data(rule: str) -> None:
    code = compile(SAMPLING[rule], rule, "eval")
    for n in (1, 2, 5, 16, 40, 63, 64, 65, 100, 301):
        for T in (1, 3, 4, 8, 16, 20):
            stated = [eval(code, {"n": n, "T": T, "i": i}) for i in range(T)]
            assert stated == sample_views(n, (T,), rule=rule)[T], (rule, n, T)


@pytest.mark.slow
@torch.no_grad()
def test_a_torch_file_takes_frames_of_any_size(tmp_path: Path) -> None:
    model = ffn.load("tsm_tiny.motion_f4_8_16")
    preprocessing = Preprocessing.from_dict(model.record.preprocessing)

    report = ffn.export(model, tmp_path / "net.pt2", frames=4, preprocess=True, probabilities=True)

    loaded = torch.export.load(report.path).module()
    for height, width in ((28, 28), (56, 70), (91, 40)):
        frames = photo(4, height, width)
        clip = EvalTransform(preprocessing)(frames).transpose(0, 1)[None]
        expected = model(Normalize(preprocessing)(clip)).softmax(1)
        torch.testing.assert_close(loaded(frames[None]), expected, rtol=0, atol=0.01)
    assert "uint8 RGB frames (B, 4, H, W, 3)" in str(report)


def test_preprocessing_without_a_record_is_refused(tmp_path: Path) -> None:
    plain = ffn.create_model("tsm_tiny", num_classes=3)
    with pytest.raises(ValueError, match=r"preprocess needs the .*ffn\.load"):
        ffn.export(plain, tmp_path / "net.pt2", frames=4, preprocess=True)
    record = {"preprocessing": Preprocessing(crop=24, resize=28).to_dict()}
    with pytest.raises(ValueError, match="size is 32; with preprocess"):
        ffn.export(plain, tmp_path / "a.pt2", frames=4, size=32, preprocess=True, record=record)
