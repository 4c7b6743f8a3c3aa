"""Heat maps of predictors: what they show, threads, and that networks do not change."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import heat_map_quality as quality
import numpy as np
import pytest
import torch
from serve_files import CLASSES, PREPROCESSING, save_network

import ffn
from ffn.data import VideoError
from ffn.serve import Predictor
from ffn.serve.grad_cam import combine, grad_cam, last_maps
from ffn.zoo import create_model, save_weights


@pytest.fixture(scope="module")
def predictor(tmp_path_factory) -> Predictor:
    path = tmp_path_factory.mktemp("heat") / "tiny.safetensors"
    return Predictor(save_network(path, spread=0.1), precision="fp32")


def tensors(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in network.state_dict().items()}


@pytest.mark.parametrize("frames", [1, 5, 20])
def test_the_map_is_that_of_the_sub_network(predictor, pixels, frames) -> None:
    heat = predictor.heat_map(pixels, frames=frames)

    prediction = predictor(pixels, frames=frames)
    assert heat.label == prediction.top(1)[0][0]
    assert heat.probability == pytest.approx(prediction.top(1)[0][1], abs=1e-4)
    assert (heat.values.shape, heat.values.dtype) == ((frames, 32, 32), torch.float32)
    assert heat.clip.indices == prediction.indices
    model = predictor.model
    network = ffn.extract(model, model.select(frames)).requires_grad_(False)
    x = predictor._normalize(heat.clip.pixels[None])
    maps, _ = grad_cam(network, x, last_maps(network, x), CLASSES.index(heat.label))
    torch.testing.assert_close(heat.values, combine(maps, x.shape[2:]))
    assert heat.grid == tuple(maps[0].shape) == (frames, 2, 2)


def test_labels_and_layers(predictor, pixels) -> None:
    maps = {name: predictor.heat_map(pixels, frames=4, label=name).values for name in CLASSES}
    assert not torch.allclose(maps["up"], maps["down"])
    assert all(x.min() >= 0 and x.max() in (0, 1) for x in maps.values())
    fine = predictor.heat_map(pixels, frames=4, layer="net.layer2")
    assert (fine.grid, fine.layers) == ((4, 8, 8), ("net.layer2",))


def test_a_clip_that_was_read(predictor, pixels) -> None:
    clip = predictor.reader(4).read(pixels)
    heat = predictor.heat_map(clip)
    assert heat.clip is clip
    torch.testing.assert_close(heat.values, predictor.heat_map(pixels, frames=4).values)
    with pytest.raises(ValueError, match="a clip has its frames already; leave out frames"):
        predictor.heat_map(clip, frames=8)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        again = predictor.heat_map(predictor.reader(4).read(pixels))
    assert torch.equal(again.values, heat.values)


def test_errors(predictor, pixels) -> None:
    for options in ({"label": "upp"}, {"layer": "layer2"}, {"frames": 0}):
        with pytest.raises(ValueError, match=str(*options.values())):
            predictor.heat_map(pixels, **{"frames": 4} | options)
    with pytest.raises(VideoError, match=r"missing\.mp4"):
        predictor.heat_map("missing.mp4", frames=4)


def test_threads_get_the_maps_of_a_single_thread_and_nothing_changes(predictor, pixels) -> None:
    model = predictor.model
    before, modes = tensors(model), [module.training for module in model.modules()]
    wanted = [(frames, name) for frames in (2, 4, 7) for name in CLASSES]
    expected = {(n, c): predictor.heat_map(pixels, frames=n, label=c).values for n, c in wanted}
    model.activate(8)

    with ThreadPoolExecutor(4) as pool:
        found = pool.map(
            lambda job: predictor.heat_map(pixels, frames=job[0], label=job[1]), wanted
        )
        for job, heat in zip(wanted, found, strict=True):
            assert torch.equal(heat.values, expected[job])

    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert model.active == 8


def test_a_plain_network(tmp_path, pixels) -> None:
    torch.manual_seed(0)
    network = create_model("slowfast_tiny", num_classes=3)
    meta = {"model": "slowfast_tiny", "num_classes": 3, "preprocessing": PREPROCESSING.to_dict()}
    save_weights(network.eval(), tmp_path / "net.safetensors", meta)
    predictor = Predictor(tmp_path / "net.safetensors")
    for frames in (1, 5):
        heats = [predictor.heat_map(pixels, frames, label=f"class {k}") for k in range(3)]
        assert all(heat.values.shape == (frames, 32, 32) for heat in heats)
        assert any(heat.values.max() == 1 for heat in heats)


@pytest.fixture(scope="module")
def measured() -> dict[str, list[float]]:
    """Heat maps of generated videos with the weights that are in the package."""
    predictor = Predictor(quality.WEIGHTS, precision="fp32")
    random = quality.randomized(predictor)
    found: dict[str, list[float]] = {key: [] for key in ("dart", "decoy", "chance", "correlation")}
    for footage in quality.footages(12):
        clip = predictor.reader(quality.FRAMES).read(footage.frames)
        heat = predictor.heat_map(clip, label=footage.label, layer="net.layer3")
        other = random(clip, footage.label, "net.layer3")
        found["dart"].append(quality.share(heat, footage.dart))
        found["decoy"].append(quality.share(heat, footage.decoy))
        found["chance"].append(quality.chance(heat, footage.dart))
        if other.values.any():
            found["correlation"].append(quality.correlation(heat, other))
    return found


def test_maps_are_on_the_object_that_moves(measured) -> None:
    means = {key: np.mean(values) for key, values in measured.items()}
    assert means["dart"] > 1.5 * means["chance"]
    assert means["dart"] > 1.2 * means["decoy"]


def test_maps_depend_on_the_weights(measured) -> None:
    """The sanity check of Adebayo et al., 2018, with all weights random."""
    assert len(measured["correlation"]) > 6
    assert abs(np.mean(measured["correlation"])) < 0.2
