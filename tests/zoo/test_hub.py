"""Repositories of the Hugging Face Hub, against a local server and a stand-in for its API."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import yaml
from servers import COMMIT

import ffn
from ffn.zoo import WeightsError, load, save_weights, state_sha256
from ffn.zoo.repositories import model_card

NAME = "hf://me/net"


def test_a_repository_is_loaded_and_cached(hub, network) -> None:
    expected = state_sha256(network.state_dict())
    for name in (NAME, f"{NAME}@v1", f"{NAME}@refs/pr/1", f"{NAME}@{COMMIT}"):
        model = load(name)
        assert state_sha256(model.state_dict()) == expected
        assert model.record.classes == ("left", "right", "still")


def test_a_copy_is_used_without_a_connection(hub, monkeypatch) -> None:
    load(NAME)
    monkeypatch.setenv("FFN_OFFLINE", "1")
    hub.paths.clear()
    load(NAME)
    assert hub.paths == []
    with pytest.raises(WeightsError, match=r"cannot download hf://me/other: .*FFN_OFFLINE"):
        load("hf://me/other")
    monkeypatch.setenv("FFN_OFFLINE", "0")
    hub.stop()
    load(NAME)
    with pytest.raises(WeightsError, match="cannot download hf://me/other"):
        load("hf://me/other")


def test_what_cannot_be_used(hub) -> None:
    with pytest.raises(WeightsError, match=r"cannot download hf://me/other: .*404"):
        load("hf://me/other")
    (hub.folder / "model.yaml").rename(hub.folder / "other.yaml")
    with pytest.raises(WeightsError, match=r"has no weights of ffn: expected .* model\.yaml"):
        load(f"{NAME}@v1")
    (hub.folder / "other.yaml").rename(hub.folder / "model.yaml")
    hub.commit = COMMIT[::-1]
    hub.answers = [500] * 99
    with pytest.raises(WeightsError, match=r"cannot download hf://me/net: .*500"):
        load(NAME)
    hub.answers = []
    content = (hub.folder / "model.safetensors").read_bytes()
    (hub.folder / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(WeightsError, match="its record has"):
        load(NAME)
    for wrong in ("net", "me/net/file", "", "me/n et"):
        with pytest.raises(ValueError, match="expected hf://user/name or hf://user/name@"):
            load(f"hf://{wrong}")


class Api:
    """Stands for `HfApi`: repositories are folders."""

    root: Path

    def create_repo(self, repo_id: str, *, private: bool | None, exist_ok: bool) -> None:
        folder = self.root / repo_id
        exists = folder.exists()
        folder.mkdir(parents=True, exist_ok=exist_ok)
        if private and not exists:  # the Hub ignores it for one that exists
            (folder / "private").touch()

    def repo_info(self, repo_id: str) -> SimpleNamespace:
        return SimpleNamespace(private=(self.root / repo_id / "private").exists())

    def file_exists(self, repo_id: str, filename: str) -> bool:
        return (self.root / repo_id / filename).exists()

    def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str) -> None:
        shutil.copytree(folder_path, self.root / repo_id, dirs_exist_ok=True)


@pytest.fixture
def api(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    Api.root = tmp_path / "remote"
    return Api


@pytest.fixture
def saved(network, meta, tmp_path) -> Path:
    save_weights(network, tmp_path / "tsm_tiny.garden_f2_4.safetensors", meta)
    return tmp_path / "tsm_tiny.garden_f2_4.safetensors"


def test_what_is_published_can_be_loaded(hub, api, saved, network, monkeypatch) -> None:
    assert ffn.push_to_hub(saved, "me/net") == NAME

    hub.folder = api.root / "me/net"
    names = ["README.md", "model.safetensors", "model.yaml"]
    assert sorted(path.name for path in hub.folder.iterdir()) == names
    loaded = load(NAME)
    assert state_sha256(loaded.state_dict()) == state_sha256(network.state_dict())
    assert loaded.record.metrics == {2: {"top1": 50.0}, 4: {"top1": 60.25, "top5": 99.0}}
    with pytest.raises(FileExistsError, match=r"hf://me/net has model\.safetensors already"):
        ffn.push_to_hub(saved, "me/net")
    ffn.push_to_hub(saved, "me/net", overwrite=True)
    ffn.push_to_hub(saved, "me/hidden", private=True)
    assert (api.root / "me/hidden/private").exists()
    with pytest.raises(WeightsError, match=r"hf://me/net is public; choose another name"):
        ffn.push_to_hub(saved, "me/net", private=True, overwrite=True)
    with pytest.raises(ValueError, match=r"expected user/name"):
        ffn.push_to_hub(saved, "me/net@v1")

    def refuse(*_: object, **__: object) -> None:
        raise huggingface_hub.errors.HFValidationError("401 Unauthorized\nInvalid credentials")

    monkeypatch.setattr(api, "create_repo", refuse)
    with pytest.raises(WeightsError, match=r"cannot publish hf://me/net: 401 .*`hf auth login`"):
        ffn.push_to_hub(saved, "me/net")


def test_the_model_card(saved) -> None:
    record = load(saved).record

    _, front, text = model_card(record, "me/net").split("---\n", 2)

    assert yaml.safe_load(front) == {
        "library_name": "frame-flexible",
        "pipeline_tag": "video-classification",
        "license": "apache-2.0",
        "tags": ["video-classification", "frame-flexible", "tsm_tiny"],
    }
    table = "| frames | top1 | top5 |\n|---|---|---|\n| 2 | 50.00 |  |\n| 4 | 60.25 | 99.00 |"
    for part in ("# net\n", 'Predictor("hf://me/net")', table, record.sha256, "left, right, still"):
        assert part in text
