"""torch.hub finds the models and weights of a clone, also if ffn is not installed."""

from __future__ import annotations

import ast
import configparser
import json
import os
import re
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
# Modules whose package has another name.
PACKAGES = {"PIL": "pillow", "decord": "decord2", "yaml": "pyyaml"}


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
texts = {name: torch.hub.help(hub["github"], name, trust_repo=True, skip_validation=True)
         for name in names}
predictor = torch.hub.load(
    hub["github"], "predictor", sys.argv[1], runtime="unfused", precision="fp32",
    trust_repo=True, skip_validation=True)
assert not any(Path(path, "ffn").is_dir() for path in sys.path)
prediction = predictor(sys.argv[2], frames=4)
print(json.dumps({
    "names": names, "texts": texts, "top": prediction.top(2),
    "modules": sorted({name.split(".")[0] for name in sys.modules}),
}))
"""


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 40, 48, 3), dtype=np.uint8)
    return write_video(tmp_path_factory.mktemp("video") / "noise.mp4", pixels, rate=8)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, video: Path) -> dict[str, Any]:
    """What a process finds that has no ffn but the one of torch.hub."""
    folder = tmp_path_factory.mktemp("torch")
    clone = folder / "hub/me_net_main"
    clone.mkdir(parents=True)
    for name in ("hubconf.py", "ffn", "model_zoo"):
        (clone / name).symlink_to(ROOT / name)
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    env |= {"TORCH_HOME": str(folder), "FFN_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, WEIGHTS, str(video)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_without_an_installed_ffn(found: dict[str, Any], video: Path) -> None:
    assert found["names"] == sorted([*ffn.list_models(), "create_model", "predictor", "weights"])
    for name in ffn.list_models():
        summary, _, rest = found["texts"][name].partition("\n")
        assert len(summary) > 20, name
        assert "num_classes: K" in rest
    expected = ffn.Predictor(WEIGHTS, runtime="unfused", precision="fp32")(video, frames=4).top(2)
    for (label, probability), (other, near) in zip(found["top"], expected, strict=True):
        assert (label, probability) == (other, pytest.approx(near, abs=1e-5))


@pytest.mark.slow
def test_dependencies_are_what_is_imported_and_declared(found: dict[str, Any]) -> None:
    listed = configparser.ConfigParser()
    listed.read(ROOT / "setup.cfg")
    lines = listed["options"]["install_requires"].split()
    declared = {re.split("[<>=]", line)[0] for line in lines}
    code = (ROOT / "hubconf.py").read_text()
    (names,) = re.findall(r"^dependencies = (\[.*?\])", code, re.MULTILINE | re.DOTALL)
    dependencies = {*ast.literal_eval(names)}
    assert {PACKAGES.get(name, name) for name in dependencies} <= declared
    used = {name for name in found["modules"] if PACKAGES.get(name, name) in declared}
    assert used - {"wandb"} <= dependencies  # timm imports wandb where it is installed
