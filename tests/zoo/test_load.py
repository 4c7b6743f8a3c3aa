"""Weights written and read: every format, and damaged or wrong files."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import resource
import sys
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

import ffn
from ffn import backbones
from ffn.core import convert
from ffn.data import Preprocessing
from ffn.registry import import_extensions
from ffn.zoo import (
    WeightsError,
    create,
    create_model,
    load,
    load_start_weights,
    load_with_record,
    match_state,
    read_weights,
    records,
    remap,
    save_weights,
    state_sha256,
)

CLIP = torch.rand(2, 3, 3, 32, 32)


def checkpoint(path: Path, model, meta, /, **changes) -> Path:
    torch.save({"format": 2, "model": model.state_dict(), "meta": meta} | changes, path)
    return path


def equal(one, other) -> bool:
    one, other = one.state_dict(), other.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def test_a_saved_network_comes_back_bit_for_bit(tmp_path, network, meta):
    path = tmp_path / "new" / "mine.safetensors"
    meta["classes"] = ["left", "right", "cafe\u0301"]  # in another Unicode form
    saved = save_weights(network, path, meta)

    model, record = load_with_record(path)

    assert equal(model, network)
    assert torch.equal(model(CLIP), network(CLIP))
    assert not model.training
    assert model.trained_frames == (2, 4)
    assert record == saved
    assert record.name == "mine"
    assert record.classes == ("left", "right", "caf\u00e9")
    assert record.metrics == {2: {"top1": 50.0}, 4: {"top1": 60.25, "top5": 99.0}}
    assert record.size == path.stat().st_size
    assert sorted(p.name for p in path.parent.iterdir()) == ["mine.safetensors", "mine.yaml"]


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_every_kind_of_network_comes_back(tmp_path, plain, plain_meta, meta, suffix):
    flexible = {"private": "all", "alter": "none"}
    kinds = [(plain, plain_meta), (convert(plain, (2, 4), **flexible), meta | flexible)]
    for number, (model, described) in enumerate(kinds):
        path = tmp_path / f"{number}.{suffix}"
        if suffix == "pt":
            extra = {"training": {"rng": torch.get_rng_state()}}
            checkpoint(path, model, described | {"from_later": 1}, **extra)
        else:
            save_weights(model, path, described)
        found, record = load_with_record(path)
        assert type(found) is type(model)
        assert equal(found, model)
        assert record.classes == ("left", "right", "still")


def test_nothing_is_overwritten_unless_told_or_by_half(tmp_path, network, meta):
    """A full disk leaves the old files."""
    path = tmp_path / "m.safetensors"
    save_weights(network, path, meta)
    before = path.read_bytes(), path.with_suffix(".yaml").read_bytes()
    with torch.no_grad():
        network.model.net.fc.bias.add_(1)
    with pytest.raises(FileExistsError, match=r"m\.safetensors exists"):
        save_weights(network, path, meta)

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before[0]) // 2, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            save_weights(network, path, meta, overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert (path.read_bytes(), path.with_suffix(".yaml").read_bytes()) == before
    assert sorted(os.listdir(tmp_path)) == ["m.safetensors", "m.yaml"]

    path.unlink()
    with pytest.raises(FileExistsError, match=r"m\.yaml exists"):
        save_weights(network, path, meta)
    save_weights(network, path, meta, overwrite=True)
    assert equal(load(path), network)


def test_a_description_of_another_network_is_not_saved(tmp_path, network, meta):
    for change in ({"model_args": {"width": 16}}, {"num_classes": 4, "classes": None}):
        with pytest.raises(WeightsError, match="does not fit the model"):
            save_weights(network, tmp_path / "m.safetensors", meta | change)
    for change, message in (
        ({"classes": ["one"]}, "1 class names for num_classes 3"),
        ({"trainedframes": (2, 4)}, "trainedframes: Unexpected"),
        ({"num_classes": 0}, "num_classes"),
    ):
        with pytest.raises(ValueError, match=message):
            save_weights(network, tmp_path / "m.safetensors", meta | change)
    with pytest.raises(ValueError, match=r"should end in \.safetensors"):
        save_weights(network, tmp_path / "m.pt", meta)
    assert os.listdir(tmp_path) == []


# Files that load refuses.


def test_a_record_must_be_there_whole_and_with_a_hash(tmp_path, network, meta):
    path = tmp_path / "m.safetensors"
    save_weights(network, path, meta)
    beside = path.with_suffix(".yaml")
    values = yaml.safe_load(beside.read_text())
    content = path.read_bytes()
    for damaged in (content[:-100], content[:-1] + bytes([content[-1] ^ 1]), b""):
        path.write_bytes(damaged)
        with pytest.raises(WeightsError, match=values["sha256"]):
            load(path)

    beside.write_text(yaml.safe_dump({k: v for k, v in values.items() if k != "sha256"}))
    with pytest.raises(WeightsError, match="no sha256"):
        load(path)
    texts = ["- a\n- list\n", "a: [", "!!python/object/apply:os.getcwd []", "a: &x [1]\nb: *x\n"]
    texts.append(yaml.safe_dump({k: v for k, v in values.items() if k != "model"}))
    for text in texts:
        beside.write_text(text)
        with pytest.raises(WeightsError, match="is not a record of weights"):
            load(path)
    beside.unlink()
    with pytest.raises(FileNotFoundError, match=r"no record .*m\.yaml"):
        load(path)


def test_a_load_is_strict(tmp_path, network, plain, meta):
    for change, message in (
        (lambda s: s.pop("net.layer1.0.bn1.4.weight"), "bn1.4.weight is missing"),
        (lambda s: s.update(extra=torch.ones(1)), "extra is unknown to the model"),
        (lambda s: s.update({"net.conv1.0.weight": torch.ones(1)}), r"net.conv1.0.weight is \(1,"),
    ):
        state = dict(network.state_dict())
        change(state)
        path = checkpoint(tmp_path / "m.pt", network, meta, model=state)
        with pytest.raises(WeightsError, match=message):
            load(path)
    # The core would spread plain weights over all counts: a start, and no trained network.
    with pytest.raises(WeightsError, match="does not fit"):
        load(checkpoint(path, plain, meta))


def test_damaged_and_foreign_checkpoints_are_named(tmp_path, network, meta):
    path = checkpoint(tmp_path / "m.pt", network, meta)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(WeightsError, match="damaged, truncated"):
        load(path)
    for text in (b"", b"hello", b"<b>not found</b>"):
        path.write_bytes(text)
        with pytest.raises(WeightsError, match="not a torch file"):
            load(path)
    torch.save({"state_dict": {}}, path)
    with pytest.raises(WeightsError, match=r"not a checkpoint of this.*convert_checkpoint"):
        load(path)
    for changes, message in (
        ({"format": 3}, "not a checkpoint of this version"),
        ({"meta": {"model": "tsm_tiny"}}, "is not valid: num_classes"),
    ):
        checkpoint(path, network, meta, **changes)
        with pytest.raises(WeightsError, match=message):
            load(path)


def test_no_pickle_is_ever_executed(tmp_path, network, meta, payload):
    path = checkpoint(tmp_path / "m.pt", network, meta, training=payload)
    with pytest.raises(WeightsError, match=r"could execute code.*save its tensors alone"):
        load(path)
    path.write_bytes(pickle.dumps(payload, protocol=2))
    with pytest.raises(WeightsError, match="could execute code"):
        load(path)
    assert not payload.path.exists()


def test_paths_that_lead_nowhere(tmp_path, plain, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("m.pt", "m.safetensors", "sub/name", "m.pth"):
        with pytest.raises((FileNotFoundError, WeightsError), match=name):
            load(tmp_path / name)
    for name in ("tsm_tiny.motion_f4_8_16", "run", "run.pt"):
        Path(name).mkdir()
    assert read_weights("tsm_tiny.motion_f4_8_16")[0].name == "tsm_tiny.motion_f4_8_16"
    for name in ("run", "run.pt", tmp_path / "run", "./tsm_tiny.motion_f4_8_16"):
        with pytest.raises(FileNotFoundError, match="is a folder; pass a file in it"):
            read_weights(name)
    Path("m.pth").touch()
    with pytest.raises(WeightsError, match="convert_checkpoint"):
        load("m.pth")
    for read in (load, lambda given: load_start_weights(plain, given)):
        with pytest.raises(TypeError):
            read(torch.nn.Identity())


# The zoo.


def test_the_records_of_the_zoo():
    found = [records.find_record(name) for name in ffn.list_weights()]
    assert sum(not record.file for record in found) >= 14
    for record in found:
        assert record.metrics
        assert backbones.is_registered(record.model)
        Preprocessing.from_dict(record.preprocessing)
        if record.file:
            assert record.classes
            assert record.licence
            load(record.name)
        else:
            assert record.origin == "reported"
            assert record.url.startswith("https://")
            assert record.page.startswith("https://")
            assert record.source_format in remap.SOURCES
            assert set(record.trained_frames or ()) <= set(record.metrics)
    for model, weights in create.STARTS.items():
        assert model in ffn.list_models()
        assert records.find_record(weights).trained_frames is None


# Start weights.


def fresh(classes=3, width=8):
    return create_model("tsm_tiny", num_classes=classes, width=width)


def test_a_flexible_network_starts_from_a_flexible_one(tmp_path, network, meta):
    """Of other counts, from the nearest: 2 and 4 start 1, 3 and 9; of two as near, the larger."""
    path = checkpoint(tmp_path / "m.pt", network, meta)
    model = convert(fresh(), (2, 4))
    match, _ = load_start_weights(model, path)
    assert equal(model, network)
    matched = f"{len(network.state_dict())} of {match.total} entries"
    assert str(match) == f"matched: {matched}"

    model = convert(fresh(), (1, 3, 9))
    match, _ = load_start_weights(model, path)
    for count, source in {1: 2, 3: 4, 9: 4}.items():
        assert equal(ffn.extract(model, count), ffn.extract(network, source))
    assert "frame counts: 1 from 2, 3 from 4, 9 from 4 (the nearest trained)" in str(match)

    path = checkpoint(tmp_path / "m.pt", network, meta | {"ranges": [[1, 2], [4, 20]]})
    model = convert(fresh(), (16,))
    load_start_weights(model, path)
    assert equal(ffn.extract(model, 16), ffn.extract(network, 4))


@pytest.mark.parametrize("classes", [3, 5])
def test_a_flexible_network_starts_from_one_with_other_private_modules(
    tmp_path, network, meta, classes
):
    """Private in the weights and shared in the model: from the largest count; and the reverse."""
    path = checkpoint(tmp_path / "m.pt", network, meta)
    model = convert(fresh(classes), (2, 4), private="norms,net.fc")
    before = {n: ffn.extract(model, n).state_dict() for n in (2, 4)}
    load_start_weights(model, path)
    for frames in (2, 4):
        theirs = ffn.extract(network, frames).state_dict()
        for key, value in ffn.extract(model, frames).state_dict().items():
            is_new = classes != 3 and key.startswith("net.fc")
            assert torch.equal(value, before[frames][key] if is_new else theirs[key]), key

    shared = convert(fresh(classes), (2, 4), private="net.fc", alter="none")
    load_start_weights(shared, checkpoint(tmp_path / "n.pt", network, meta))
    theirs = ffn.extract(network, 4).state_dict()
    for frames in (2, 4):
        state = ffn.extract(shared, frames).state_dict()
        assert all(torch.equal(v, theirs[k]) for k, v in state.items() if "fc" not in k)


def test_alterations_that_the_model_lacks_are_named(tmp_path, network, meta):
    path = checkpoint(tmp_path / "m.pt", network, meta)
    match, _ = load_start_weights(convert(fresh(), (2, 4), alter="none"), path)
    assert "private modules of frame counts: 2 from 2, 4 from 4" in str(match)
    assert "without alterations" in str(match)
    everything = convert(fresh(), (2, 4), private="all", alter="none")
    load_start_weights(everything, path)
    for frames in (2, 4):  # their sites are in layers that are private here, with the alterations
        theirs = ffn.extract(network, frames).state_dict()
        state = ffn.extract(everything, frames).state_dict()
        assert all(torch.equal(value, theirs[key]) for key, value in state.items())


def test_plain_weights_whose_names_look_like_counts():
    """0.2.weight is no entry of the copy of 0 for 2 frames."""
    plain = nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)))
    model = convert(plain, (2, 4), private="0", alter="none", frame_dim=0)
    state = {key: torch.randn_like(value) for key, value in plain.state_dict().items()}
    model.load_state_dict(state)
    for frames in (2, 4):
        assert all(torch.equal(ffn.extract(model, frames).state_dict()[k], state[k]) for k in state)


def test_weights_of_a_network_that_computes_something_else(tmp_path, plain, plain_meta):
    """Arguments that change no shape: an error, or a line of the report."""
    match, _ = load_start_weights(
        create_model("tsm_tiny", num_classes=3, width=8, causal=True),
        checkpoint(tmp_path / "p.pt", plain, plain_meta),
    )
    assert "causal is False in the weights, True in the model" in str(match)
    vit = create_model("vit_tiny", num_classes=3, width=32)
    described = plain_meta | {"model": "vit_tiny", "model_args": {"width": 32}}
    path = checkpoint(tmp_path / "v.pt", vit, described)
    with pytest.raises(WeightsError, match="positions is sine in the weights, rotary in the model"):
        load_start_weights(create_model("vit_tiny", num_classes=3, width=32, causal=True), path)


def test_a_flexible_network_starts_from_a_plain_one(tmp_path, plain, plain_meta):
    model = convert(fresh(), (2, 4, 8))
    before = {k: v.clone() for k, v in model.state_dict().items() if ".site." in k}
    match, _ = load_start_weights(model, checkpoint(tmp_path / "m.pt", plain, plain_meta))

    assert "every frame count (2, 4, 8) starts from the plain network" in str(match)
    source, state = plain.state_dict(), model.state_dict()
    for frames in (2, 4, 8):
        copied = ffn.extract(model, frames).state_dict()
        assert all(torch.equal(copied[k], v) for k, v in source.items())
    assert before
    assert all(torch.equal(state[k], v) for k, v in before.items())


def test_a_plain_network_starts_from_the_sub_network_of_its_count(tmp_path, network, meta):
    for described, frames, count in (
        ({}, 2, 2),
        ({}, 3, 4),  # of two equally near ones, the larger
        ({}, 40, 4),
        ({}, None, 4),
        ({"ranges": [[1, 3], [4, 20]]}, 3, 2),
        ({"interpolate": True}, 3, 3),
    ):
        path = checkpoint(tmp_path / "m.pt", network, meta | described)
        model = fresh()
        match, _ = load_start_weights(model, path, frames=frames)

        theirs = ffn.extract(load(path), count).state_dict()
        assert all(torch.equal(value, theirs[key]) for key, value in model.state_dict().items())
        assert f"the sub-network of {count} frames" in str(match)


@pytest.mark.parametrize("private", ["norms", "all"])
@pytest.mark.parametrize("flexible", [False, True])
def test_a_classifier_of_other_classes_is_new(tmp_path, plain, plain_meta, meta, flexible, private):
    """private="all": each count has its own classifier, four entries of another shape."""
    kind = {"private": private, "alter": "none"}
    source = convert(plain, (2, 4), **kind) if flexible else plain
    path = checkpoint(tmp_path / "m.pt", source, meta | kind if flexible else plain_meta)
    model = convert(fresh(classes=5), (2, 4), **kind)
    before = {k: v.clone() for k, v in model.state_dict().items()}

    match, _ = load_start_weights(model, path)

    assert match.classes == (3, 5)
    assert "classifier: 3 classes in the weights, 5 in the model; newly initialized" in str(match)
    for key, value in model.state_dict().items():
        is_head = key.startswith("net.fc.")
        theirs = source.state_dict()[key if flexible else re.sub(r"\.[24]\.(\w+)$", r".\1", key)]
        assert torch.equal(value, before[key] if is_head else theirs), key


def test_a_start_from_another_network_is_refused(tmp_path, network, plain, meta, plain_meta):
    flexible = checkpoint(tmp_path / "f.pt", network, meta)
    with pytest.raises(WeightsError, match=r"\d+ of \d+ entries match"):
        load_start_weights(create_model("tea_tiny", num_classes=3, width=8), flexible)
    wide = convert(fresh(width=16), (2, 4))
    with pytest.raises(WeightsError, match="entries match"):
        load_start_weights(wide, checkpoint(tmp_path / "p.pt", plain, plain_meta))
    two = {"a.weight": torch.ones(3, 4), "b.weight": torch.ones(3, 4)}
    wider = {name: torch.ones(5, 4) for name in two}
    assert match_state(two, wider).classes is None  # no classifier: two layers differ
    assert match_state({"a.weight": torch.ones(3, 4)}, {"a.weight": torch.ones(5, 6)}).faults


# Records of models of other packages.


def test_a_file_names_a_missing_package_and_never_imports_it(
    tmp_path, plain, plain_meta, monkeypatch
):
    (tmp_path / "my_zoo_package.py").write_text(
        "from ffn.backbones import register\n"
        "from ffn.backbones.tsm import tsm_tiny\n"
        "@register\n"
        "def my_zoo_net(**kwargs):\n"
        "    return tsm_tiny(**kwargs)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import_extensions(["my_zoo_package"])
    meta = plain_meta | {"model": "my_zoo_net", "imports": ["my_zoo_package"]}
    paths = [checkpoint(tmp_path / "m.pt", plain, meta), tmp_path / "m.safetensors"]
    save_weights(plain, paths[1], meta)
    assert all(equal(load(path), plain) for path in paths)
    del sys.modules["my_zoo_package"]
    del backbones.registry._models["my_zoo_net"]

    for path in paths:
        with pytest.raises(WeightsError, match="--imports my_zoo_package"):
            load(path)
    assert "my_zoo_package" not in sys.modules


def test_a_record_names_no_weights_but_its_own(tmp_path):
    """timm would read them, from any address or file."""
    meta = {"model": "tsm.resnet10t", "num_classes": 3, "preprocessing": Preprocessing().to_dict()}
    path = tmp_path / "m.safetensors"
    save_weights(create_model("tsm.resnet10t", num_classes=3), path, meta)
    record = path.with_suffix(".yaml")
    values = yaml.safe_load(record.read_text())
    for given in (
        {"pretrained": True, "pretrained_cfg": {"url": "http://127.0.0.1:9/weights"}},
        {"pretrained_cfg_overlay": {"file": "/etc/hostname"}},
        {"checkpoint_path": "/etc/hostname"},
    ):
        record.write_text(yaml.safe_dump(values | {"model_args": given}))
        with pytest.raises(WeightsError, match=r"model_args of the record .m. has"):
            load(path)


def test_the_hash_is_that_of_names_types_shapes_and_values() -> None:
    state = {"b": torch.tensor([[1.0, 2.0]]), "a": torch.tensor(3)}
    text = b"a torch.int64 ()\n" + (3).to_bytes(8, "little")
    text += b"b torch.float32 (1, 2)\n" + bytes.fromhex("0000803f00000040")

    assert state_sha256(state) == hashlib.sha256(text).hexdigest()
    assert state_sha256(dict(reversed(state.items()))) == state_sha256(state)
    transposed = torch.arange(6.0).view(2, 3).T
    assert state_sha256({"a": transposed}) == state_sha256({"a": transposed.contiguous()})
