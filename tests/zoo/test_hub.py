"""Repositories of the Hugging Face Hub, against a local server and a stand-in for its API."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import safetensors.torch
import torch
import yaml
from hub_server import COMMIT, save

import ffn
from ffn.cli.publish import main as publish
from ffn.cli.zoo import main as zoo
from ffn.zoo import (
    WeightRecord,
    WeightsError,
    cascade_beside,
    cascade_path,
    create_model,
    fetch_weights,
    load,
    load_start_weights,
    verify_weights,
)
from ffn.zoo.repositories import model_card
from ffn.zoo.state_digest import state_sha256

NAME = "hf://me/net"


@pytest.mark.parametrize("name", [NAME, f"{NAME}@v1", f"{NAME}@{COMMIT}"])
def test_a_repository_is_loaded_and_cached(hub, name) -> None:
    expected = load(hub.folder / "model.safetensors").state_dict()
    clip = torch.randn(1, 3, 4, 32, 32)

    model = load(name)

    for key, value in model.state_dict().items():
        assert torch.equal(value, expected[key])
    assert model.record.classes == ("up", "down", "still")
    assert torch.equal(ffn.from_pretrained(name.removeprefix("hf://"))(clip), model(clip))
    start = ffn.convert(create_model("tsm_tiny", num_classes=5), (2, 4))
    load_start_weights(start, name)
    assert ffn.Predictor(name).counts == [2, 4]


def test_a_copy_is_used_without_a_connection(hub, monkeypatch) -> None:
    load(NAME)
    monkeypatch.setenv("FFN_OFFLINE", "1")
    hub.paths.clear()
    load(NAME)
    assert hub.paths == []
    with pytest.raises(WeightsError, match=r"hf://me/other is not in .*, and FFN_OFFLINE is set"):
        load("hf://me/other")
    monkeypatch.setenv("FFN_OFFLINE", "yes")
    with pytest.raises(ValueError, match="FFN_OFFLINE is 'yes'; expected 1, or 0"):
        load(NAME)
    monkeypatch.setenv("FFN_OFFLINE", "0")
    hub.shutdown()
    hub.server_close()
    load(NAME)


def test_what_cannot_be_used(hub) -> None:
    with pytest.raises(WeightsError, match=r"cannot download hf://me/other: .*404"):
        load("hf://me/other")
    (hub.folder / "model.yaml").rename(hub.folder / "other.yaml")
    with pytest.raises(WeightsError, match=r"has no weights of ffn: expected .* model\.yaml"):
        load(f"{NAME}@v1")
    (hub.folder / "other.yaml").rename(hub.folder / "model.yaml")
    content = (hub.folder / "model.safetensors").read_bytes()
    (hub.folder / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(WeightsError, match="its record has"):
        load(NAME)
    for wrong in ("net", "me/net/file", "", "me/n et"):
        for read in (ffn.from_pretrained, lambda name: load(f"hf://{name}")):
            with pytest.raises(ValueError, match="expected hf://user/name or hf://user/name@"):
                read(wrong)


def weights_in(home: Path) -> list[Path]:
    """Weights in the cache, complete or damaged; not the records and what is incomplete."""
    files = [p for p in home.glob("hub/models--*/**/*") if p.is_file()]
    return [p for p in files if p.stat().st_size > 100_000 and p.suffix != ".incomplete"]


@pytest.mark.usefixtures("_at_once")
@pytest.mark.parametrize("cuts", [[None, 0], [None, 1], [None, 500_000], [None, 9, 800_000, 0]])
def test_an_interrupted_download_is_completed(hub, tmp_path, cuts) -> None:
    hub.cuts = cuts  # the first answer is the record
    content = (hub.folder / "model.safetensors").read_bytes()
    assert fetch_weights(NAME).read_bytes() == content
    assert hub.cuts == []


@pytest.mark.usefixtures("_at_once")
def test_a_download_that_is_always_interrupted(hub, tmp_path) -> None:
    hub.cuts = [None, *[0] * 20]
    with pytest.raises(WeightsError, match="cannot download hf://me/net: "):
        fetch_weights(NAME)
    assert weights_in(tmp_path / "home") == []
    hub.cuts = []
    assert fetch_weights(NAME).is_file()


@pytest.mark.parametrize("damages", [1, 2])
def test_weights_that_their_record_does_not_describe(hub, tmp_path, caplog, damages) -> None:
    """Damaged once on the way, they are downloaded again; twice, they are refused and removed."""
    hub.damages = damages
    content = (hub.folder / "model.safetensors").read_bytes()
    if damages == 1:
        assert fetch_weights(NAME).read_bytes() == content
        assert "or its files are of different versions; downloading it again" in caplog.text
    else:
        with pytest.raises(WeightsError, match=r"its record has [0-9a-f]{64}: the repository"):
            fetch_weights(NAME)
        assert weights_in(tmp_path / "home") == []
    assert fetch_weights(NAME).read_bytes() == content


def test_a_copy_that_is_damaged_later(hub, tmp_path, monkeypatch) -> None:
    path = fetch_weights(NAME)
    content = path.read_bytes()
    (verdict,) = verify_weights("hf://*")
    assert (verdict.name, verdict.status) == (f"{NAME}@{COMMIT}", "ok")
    path.write_bytes(content[:-1])

    (verdict,) = verify_weights(f"{NAME}@*")
    assert verdict.status == "differs"
    assert path.read_bytes() == content[:-1]
    monkeypatch.setenv("FFN_OFFLINE", "1")
    with pytest.raises(WeightsError, match="its record has"):
        load(NAME)
    assert path.read_bytes() == content[:-1]  # nothing to replace it with
    monkeypatch.delenv("FFN_OFFLINE")
    load(NAME)
    assert path.read_bytes() == content
    path.with_name("model.yaml").unlink()
    (verdict,) = verify_weights("hf://*")
    assert verdict.status == "no hash"


@pytest.mark.usefixtures("_at_once")
def test_the_zoo_command_fetches_repositories(hub, capsys) -> None:
    assert zoo(["fetch", NAME, "hf://me/other"]) == 1
    printed, errors = capsys.readouterr()
    found = hashlib.sha256((hub.folder / "model.safetensors").read_bytes()).hexdigest()
    assert printed.startswith(f"{NAME}: ")
    assert printed.endswith(f" bytes, sha256 {found}\n")
    assert "cannot download hf://me/other: 404" in errors
    hub.shutdown()
    hub.server_close()
    assert zoo(["fetch", NAME]) == 0
    assert zoo(["fetch", "hf://me/other"]) == 1
    assert "there is no connection" in capsys.readouterr().err


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

    def upload_folder(
        self, *, repo_id: str, folder_path: str, commit_message: str, delete_patterns: list[str]
    ) -> None:
        for name in delete_patterns:
            (self.root / repo_id / name).unlink(missing_ok=True)
        shutil.copytree(folder_path, self.root / repo_id, dirs_exist_ok=True)


@pytest.fixture
def api(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    Api.root = tmp_path / "remote"
    return Api


def test_what_is_published_can_be_loaded(hub, api, tmp_path) -> None:
    path = tmp_path / "tsm_tiny.garden_f2_4.safetensors"
    model = save(path)

    assert ffn.push_to_hub(path, "me/net") == NAME

    folder = api.root / "me/net"
    assert sorted(p.name for p in folder.iterdir()) == [
        "README.md",
        "model.safetensors",
        "model.yaml",
    ]
    hub.folder = folder
    loaded = load(NAME)
    for key, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value)
    assert loaded.record.metrics == {2: {"top1": 40.0}, 4: {"top1": 61.25, "top5": 99.0}}
    with pytest.raises(FileExistsError, match=r"hf://me/net has model\.safetensors already"):
        ffn.push_to_hub(path, "me/net")
    ffn.push_to_hub(path, "me/net", overwrite=True)
    ffn.push_to_hub(path, "me/hidden", private=True)
    assert (api.root / "me/hidden/private").exists()
    ffn.push_to_hub(path, "me/hidden", private=True, overwrite=True)
    with pytest.raises(WeightsError, match=r"hf://me/net is public; choose another name"):
        ffn.push_to_hub(path, "me/net", private=True, overwrite=True)
    for wrong in ("net", "me/net@v1", "hf://me/net"):
        with pytest.raises(ValueError, match=r"expected (hf://)?user/name"):
            ffn.push_to_hub(path, wrong)


def test_a_cascade_is_published_with_its_weights(hub, api, tmp_path) -> None:
    path = tmp_path / "net.safetensors"
    model = save(path)
    ffn.push_to_hub(path, "me/net")
    hub.folder = api.root / "me/net"
    assert cascade_beside(NAME) is None
    assert "cascade" not in (hub.folder / "README.md").read_text()

    content = json.dumps({"weights_sha256": state_sha256(model.state_dict())})
    safetensors.torch.save_file({}, cascade_path(path), {"cascade": content})
    ffn.push_to_hub(path, "me/net", overwrite=True)
    found = cascade_beside(NAME)
    assert found.name == "model.cascade.safetensors"
    assert found.read_bytes() == cascade_path(path).read_bytes()
    assert 'predictor("video.mp4", frames="cascade")' in (hub.folder / "README.md").read_text()

    cascade_path(path).unlink()
    ffn.push_to_hub(path, "me/net", overwrite=True)
    assert not (hub.folder / found.name).exists()

    for other in (
        b"no cascade",
        safetensors.torch.save({}, {"cascade": '{"weights_sha256": "1"}'}),
    ):
        cascade_path(path).write_bytes(other)
        with pytest.raises(
            ValueError, match=r"cascade\.safetensors is no cascade of .*net\.safetensors"
        ):
            ffn.push_to_hub(path, "me/net", overwrite=True)
    assert not (hub.folder / found.name).exists()


def test_the_model_card(tmp_path) -> None:
    save(tmp_path / "model.safetensors")
    record = load(tmp_path / "model.safetensors").record

    card = model_card(record, "me/net")

    _, front, text = card.split("---\n", 2)
    assert yaml.safe_load(front) == {
        "library_name": "frame-flexible",
        "pipeline_tag": "video-classification",
        "license": "apache-2.0",
        "tags": ["video-classification", "frame-flexible", "tsm_tiny"],
    }
    assert text.startswith("\n# net\n")
    assert "with sub-networks of 2, 4 frames" in text
    assert "Trained on clips of a garden." in text
    assert 'ffn.Predictor("hf://me/net")' in text
    assert (
        "| frames | top1 | top5 |\n|---|---|---|\n| 2 | 40.00 |  |\n| 4 | 61.25 | 99.00 |" in text
    )
    assert record.sha256 in text
    assert "up, down, still" in text


@pytest.mark.parametrize(
    ("trained", "config", "frames"),
    [
        (None, {"task": {"frames": [16]}}, 16),
        (None, {"task": {"frames": [4, 12]}}, 12),
        (None, {"data": {"crop": 32}}, 8),
        (None, None, 8),
        ((2, 4), {"task": {"frames": [2, 4]}}, 4),
    ],
)
def test_the_example_of_a_model_card_has_a_trained_count(trained, config, frames) -> None:
    record = WeightRecord(
        name="net",
        model="tsm_tiny",
        num_classes=3,
        preprocessing={},
        trained_frames=trained,
        config=config,
    )
    assert f'predictor("video.mp4", frames={frames})' in model_card(record, "me/net")


def test_the_hub_refuses(api, tmp_path, monkeypatch) -> None:
    save(tmp_path / "model.safetensors")

    def refuse(*_: object, **__: object) -> None:
        raise huggingface_hub.errors.HFValidationError("401 Unauthorized\nInvalid credentials")

    monkeypatch.setattr(api, "create_repo", refuse)
    with pytest.raises(WeightsError, match=r"cannot publish hf://me/net: 401 .*`hf auth login`"):
        ffn.push_to_hub(tmp_path / "model.safetensors", "me/net")


def test_the_publish_command(api, tmp_path, capsys) -> None:
    save(tmp_path / "model.safetensors")
    words = [str(tmp_path / "model.safetensors"), "garden", "--output", str(tmp_path / "out")]
    assert publish([*words, "--hub", "me/net"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == NAME
    assert publish([*words, "--hub", "me/net"]) == 2  # the local files exist
    with pytest.raises(SystemExit):
        publish([*words, "--private"])
