"""torch.hub finds the models and weights of a clone, also if ffn is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from serve_files import write_video

import ffn

ROOT = Path(__file__).parents[1]
WEIGHTS = "tsm_tiny.motion_f4_8_16"


def load(name: str, *arguments: Any, **options: Any) -> Any:
    return torch.hub.load(str(ROOT), name, *arguments, source="local", **options)


def test_models_and_weights_are_those_of_ffn() -> None:
    clip = torch.randn(1, 3, 5, 32, 32)
    for entry, arguments, name in (
        ("tsm_tiny", (), "tsm_tiny"),
        ("create_model", ("tsm.resnet10t",), "tsm.resnet10t"),
    ):
        torch.manual_seed(0)
        model = load(entry, *arguments, num_classes=3).eval()
        torch.manual_seed(0)
        assert torch.equal(model(clip), ffn.create_model(name, num_classes=3).eval()(clip))
    assert torch.equal(load("weights", WEIGHTS)(clip), ffn.load(WEIGHTS)(clip))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(RuntimeError, match="Missing dependencies: timm"):
        load("tsm_tiny")


# torch.hub takes the folder OWNER_NAME_BRANCH of its cache for the download of OWNER/NAME:BRANCH.
SCRIPT = """
import importlib.util, json, sys
from pathlib import Path

sys.path = [path for path in sys.path if not Path(path, "ffn").is_dir()]
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
assert importlib.util.find_spec("ffn") is None

import torch

hub = {"github": "me/net:main", "trust_repo": True, "skip_validation": True}
names = torch.hub.list(**hub)
predictor = torch.hub.load(
    hub["github"], "predictor", sys.argv[1], runtime="unfused", precision="fp32",
    trust_repo=True, skip_validation=True)
assert not any(Path(path, "ffn").is_dir() for path in sys.path)
prediction = predictor(sys.argv[2], frames=4)
print(json.dumps({"names": names, "top": prediction.top(2)}))
"""


@pytest.mark.slow
def test_without_an_installed_ffn(tmp_path: Path) -> None:
    """A process that has no ffn but the one of torch.hub."""
    pixels = np.random.default_rng(0).integers(0, 256, (8, 40, 48, 3), dtype=np.uint8)
    video = write_video(tmp_path / "noise.mp4", pixels, rate=8)
    clone = tmp_path / "hub/me_net_main"
    clone.mkdir(parents=True)
    for name in ("hubconf.py", "ffn", "model_zoo"):
        (clone / name).symlink_to(ROOT / name)
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    env |= {"TORCH_HOME": str(tmp_path), "FFN_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, WEIGHTS, str(video)],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["names"] == sorted([*ffn.list_models(), "create_model", "predictor", "weights"])
    expected = ffn.Predictor(WEIGHTS, runtime="unfused", precision="fp32")(video, frames=4).top(2)
    for (label, probability), (other, near) in zip(found["top"], expected, strict=True):
        assert (label, probability) == (other, pytest.approx(near, abs=1e-5))
