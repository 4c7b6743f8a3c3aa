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
    remap,
    save_weights,
    state_sha256,
)
from ffn.zoo import records as zoo_records

CLIP = torch.rand(2, 3, 3, 32, 32)


def checkpoint(path: Path, model, meta, /, **changes) -> Path:
    torch.save({"format": 1, "model": model.state_dict(), "meta": meta} | changes, path)
    return path


def equal(one, other) -> bool:
    one, other = one.state_dict(), other.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def test_a_saved_network_comes_back_bit_for_bit(tmp_path, network, meta):
    path = tmp_path / "new" / "mine.safetensors"
    saved = save_weights(network, path, meta)

    model, record = load_with_record(path)

    assert equal(model, network)
    assert torch.equal(model(CLIP), network(CLIP))
    assert not model.training
    assert model.trained_frames == (2, 4)
    assert record == saved
    assert record.name == "mine"
    assert record.classes == ("left", "right", "still")
    assert record.metrics == {2: {"top1": 50.0}, 4: {"top1": 60.25, "top5": 99.0}}
    assert record.size == path.stat().st_size
    assert sorted(p.name for p in path.parent.iterdir()) == ["mine.safetensors", "mine.yaml"]


def test_a_plain_network_comes_back_plain(tmp_path, plain, plain_meta):
    save_weights(plain, tmp_path / "plain.safetensors", plain_meta)
    model = load(tmp_path / "plain.safetensors")
    assert type(model) is type(plain)
    assert equal(model, plain)


@pytest.mark.parametrize(("private", "alter"), [("none", "sites"), ("all", "none")])
def test_every_kind_of_conversion_comes_back(tmp_path, plain, meta, private, alter):
    model = convert(plain, (2, 4), private=private, alter=alter)
    save_weights(model, tmp_path / "m.safetensors", meta | {"private": private, "alter": alter})
    assert equal(load(tmp_path / "m.safetensors"), model)


def test_a_training_checkpoint_is_read(tmp_path, network, meta):
    extra = {"training": {"epoch": 3, "rng": torch.get_rng_state()}}
    path = checkpoint(tmp_path / "best.pt", network, meta | {"from_later": 1}, **extra)
    model, record = load_with_record(path)
    assert equal(model, network)
    assert record.classes == ("left", "right", "still")


def test_a_plain_checkpoint_is_read_plain(tmp_path, plain, plain_meta):
    assert equal(load(checkpoint(tmp_path / "best.pt", plain, plain_meta)), plain)


def test_nothing_is_overwritten_unless_told(tmp_path, network, meta):
    path = tmp_path / "m.safetensors"
    save_weights(network, path, meta)
    before = path.read_bytes()
    with torch.no_grad():
        network.model.net.fc.bias.add_(1)
    with pytest.raises(FileExistsError, match=r"m\.safetensors exists"):
        save_weights(network, path, meta)
    assert path.read_bytes() == before
    path.unlink()
    with pytest.raises(FileExistsError, match=r"m\.yaml exists"):
        save_weights(network, path, meta)

    save_weights(network, path, meta, overwrite=True)
    assert equal(load(path), network)


def test_a_save_on_a_full_disk_leaves_the_old_files(tmp_path, network, meta):
    path = tmp_path / "m.safetensors"
    save_weights(network, path, meta)
    before = path.read_bytes(), path.with_suffix(".yaml").read_bytes()
    with torch.no_grad():
        network.model.net.fc.bias.add_(1)

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before[0]) // 2, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            save_weights(network, path, meta, overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert (path.read_bytes(), path.with_suffix(".yaml").read_bytes()) == before
    assert sorted(os.listdir(tmp_path)) == ["m.safetensors", "m.yaml"]


def test_a_description_of_another_network_is_not_saved(tmp_path, network, meta):
    for change in ({"model_args": {"width": 16}}, {"num_classes": 4, "classes": None}):
        with pytest.raises(WeightsError, match="does not fit the model"):
            save_weights(network, tmp_path / "m.safetensors", meta | change)
    for change, message in (
        ({"classes": ["one"]}, "1 class names for num_classes 3"),
        ({"trainedframes": (2, 4)}, 'did you mean "trained_frames"'),
        ({"config": {"path": Path("x")}}, "holds more than plain values"),
        ({"num_classes": 0}, "num_classes"),
    ):
        with pytest.raises(ValueError, match=message):
            save_weights(network, tmp_path / "m.safetensors", meta | change)
    with pytest.raises(ValueError, match=r"should end in \.safetensors"):
        save_weights(network, tmp_path / "m.pt", meta)
    assert os.listdir(tmp_path) == []


# Files that load refuses.


def test_a_changed_file_is_refused(tmp_path, network, meta):
    path = tmp_path / "m.safetensors"
    record = save_weights(network, path, meta)
    content = path.read_bytes()
    for damaged in (content[:-100], content[:-1] + bytes([content[-1] ^ 1]), b""):
        path.write_bytes(damaged)
        with pytest.raises(WeightsError, match=record.sha256):
            load(path)


def test_a_record_must_be_there_whole_and_with_a_hash(tmp_path, network, meta):
    path = tmp_path / "m.safetensors"
    save_weights(network, path, meta)
    beside = path.with_suffix(".yaml")
    values = yaml.safe_load(beside.read_text())

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


def test_a_load_is_strict(tmp_path, network, meta):
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


def test_plain_weights_under_a_flexible_description_are_refused(tmp_path, plain, meta):
    """The core would spread them over all counts, which is a start and not a trained network."""
    with pytest.raises(WeightsError, match="does not fit"):
        load(checkpoint(tmp_path / "m.pt", plain, meta))


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
    with pytest.raises(WeightsError, match=r"not a training checkpoint.*convert_checkpoint"):
        load(path)
    for changes, message in (
        ({"format": 3}, "format 3"),
        ({"format": 2}, "SHA-256 at its end is missing"),
        ({"meta": {"model": "tsm_tiny"}}, "is not valid: no num"),
    ):
        checkpoint(path, network, meta, **changes)
        with pytest.raises(WeightsError, match=message):
            load(path)


def test_a_folder_is_named_and_hides_no_weights_of_the_zoo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("tsm_tiny.motion_f4_8_16", "run", "run.pth"):
        Path(name).mkdir()

    assert read_weights("tsm_tiny.motion_f4_8_16")[0].name == "tsm_tiny.motion_f4_8_16"
    for name in ("run", "run.pth", "./run", tmp_path / "run", "./tsm_tiny.motion_f4_8_16"):
        with pytest.raises(FileNotFoundError, match="is a folder; pass a file in it"):
            read_weights(name)


class Trap:
    """Unpickling it creates a file."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def test_no_pickle_is_ever_executed(tmp_path, network, meta):
    trace = tmp_path / "trace"
    path = checkpoint(tmp_path / "m.pt", network, meta, training=Trap(trace))
    with pytest.raises(WeightsError, match=r"could execute code.*save its tensors alone"):
        load(path)
    path.write_bytes(pickle.dumps(Trap(trace), protocol=2))
    with pytest.raises(WeightsError, match="could execute code"):
        load(path)
    assert not trace.exists()


def test_paths_that_lead_nowhere(tmp_path):
    for name in ("m.pt", "m.safetensors", "sub/name", "m.pth"):
        with pytest.raises((FileNotFoundError, WeightsError), match=name):
            load(tmp_path / name)
    (tmp_path / "folder.pt").mkdir()
    with pytest.raises(FileNotFoundError, match="is a folder"):
        load(tmp_path / "folder.pt")
    (tmp_path / "m.pth").touch()
    with pytest.raises(WeightsError, match="convert_checkpoint"):
        load(tmp_path / "m.pth")


def test_what_is_neither_a_name_nor_a_path_is_refused(plain):
    for read in (load, lambda given: load_start_weights(plain, given)):
        with pytest.raises(TypeError, match="expected a name of the zoo"):
            read(torch.nn.Identity())


# The zoo.


@pytest.fixture
def zoo(tmp_path, network, meta, monkeypatch):
    """A zoo of one weight."""
    folder = tmp_path / "zoo"
    save_weights(network, folder / "tsm_tiny.motion_f2_4.safetensors", meta)
    monkeypatch.setattr(zoo_records, "zoo_folder", lambda: folder)
    monkeypatch.setattr("ffn.zoo.local.zoo_folder", lambda: folder)
    return folder


def test_zoo_names_are_listed_and_loaded(zoo, network):
    assert ffn.list_weights("*motion*") == ["tsm_tiny.motion_f2_4"]
    assert ffn.list_weights("*sthv1*") == []
    assert equal(ffn.load("tsm_tiny.motion_f2_4"), network)


def test_an_unknown_zoo_name_is_answered_with_close_ones(zoo):
    with pytest.raises(ValueError, match=r"no weights .*did you mean tsm_tiny\.motion_f2_4\?"):
        load("tsm_tiny.motion_f2_8")


def test_a_zoo_weight_keeps_its_name_and_hash(zoo):
    record = zoo / "tsm_tiny.motion_f2_4.yaml"
    text = record.read_text()
    record.write_text(text.replace("name: tsm_tiny.motion_f2_4", "name: other"))
    with pytest.raises(WeightsError, match='has the name "other"'):
        load("tsm_tiny.motion_f2_4")
    record.write_text(text)
    (zoo / "tsm_tiny.motion_f2_4.safetensors").write_bytes(b"")
    with pytest.raises(WeightsError, match="its record has"):
        load("tsm_tiny.motion_f2_4")


def test_the_shipped_weights_are_what_their_records_say():
    for name in ffn.list_weights():
        record = zoo_records.find_record(name)
        assert record.metrics
        assert record.origin
        if not record.file:
            continue
        assert record.classes
        assert record.licence
        assert record.sha256
        load(name)


def test_the_records_of_published_weights_describe_networks_that_exist():
    published = [zoo_records.find_record(n) for n in ffn.list_weights()]
    published = [record for record in published if not record.file]
    assert len(published) >= 14
    for record in published:
        assert record.origin == "reported"
        assert record.url.startswith("https://")
        assert record.page.startswith("https://")
        assert record.source_format in remap.SOURCES
        Preprocessing.from_dict(record.preprocessing)
        assert backbones.is_registered(record.model)
        assert set(record.trained_frames or ()) <= set(record.metrics)


def test_models_start_from_weights_that_the_zoo_knows():
    for model, weights in create.STARTS.items():
        assert model in ffn.list_models()
        assert zoo_records.find_record(weights).trained_frames is None


# Start weights.


def test_a_flexible_network_starts_from_a_flexible_one(tmp_path, network, meta):
    model = convert(create_model("tsm_tiny", num_classes=3, width=8), (2, 4))
    match, _ = load_start_weights(model, checkpoint(tmp_path / "m.pt", network, meta))
    assert equal(model, network)
    matched = f"{len(network.state_dict())} of {match.total} entries"
    assert str(match) == f"matched: {matched}, 100.0% of the parameters"


def test_a_flexible_network_starts_from_a_plain_one(tmp_path, plain, plain_meta):
    model = convert(create_model("tsm_tiny", num_classes=3, width=8), (2, 4, 8))
    before = {k: v.clone() for k, v in model.state_dict().items() if ".site." in k}
    load_start_weights(model, checkpoint(tmp_path / "m.pt", plain, plain_meta))

    source, state = plain.state_dict(), model.state_dict()
    for frames in (2, 4, 8):
        copied = ffn.extract(model, frames).state_dict()
        assert all(torch.equal(copied[k], v) for k, v in source.items())
    assert before
    assert all(torch.equal(state[k], v) for k, v in before.items())


def test_other_frame_counts_start_from_the_nearest(tmp_path, network, meta):
    """Counts 2 and 4 start 1, 3 and 9: of two equally near ones, the larger."""
    model = convert(create_model("tsm_tiny", num_classes=3, width=8), (1, 3, 9))
    match, _ = load_start_weights(model, checkpoint(tmp_path / "m.pt", network, meta))

    for count, source in {1: 2, 3: 4, 9: 4}.items():
        ours, theirs = ffn.extract(model, count), ffn.extract(network, source)
        assert equal(ours, theirs)
    assert "frame counts: 1 from 2, 3 from 4, 9 from 4 (the nearest trained)" in str(match)
    assert "100.0% of the parameters" in str(match)


def test_counts_with_ranges_are_as_near_as_their_ranges(tmp_path, network, meta):
    meta = meta | {"ranges": [[1, 2], [4, 20]]}
    model = convert(create_model("tsm_tiny", num_classes=3, width=8), (16,))
    match, _ = load_start_weights(model, checkpoint(tmp_path / "m.pt", network, meta))
    assert "16 from 4" in str(match)
    assert equal(ffn.extract(model, 16), ffn.extract(network, 4))


def test_the_match_says_where_other_kinds_of_networks_start(
    tmp_path, plain, plain_meta, network, meta
):
    one = checkpoint(tmp_path / "plain.pt", plain, plain_meta)
    flexible = convert(create_model("tsm_tiny", num_classes=3, width=8), (2, 6))
    match, _ = load_start_weights(flexible, one)
    assert "every frame count (2, 6) starts from the plain network" in str(match)
    two = checkpoint(tmp_path / "flexible.pt", network, meta)
    match, _ = load_start_weights(create_model("tsm_tiny", num_classes=3, width=8), two)
    assert "the sub-network of 4 frames, without alterations" in str(match)


@pytest.mark.parametrize(
    ("described", "frames", "count"),
    [
        ({}, 2, 2),
        ({}, 3, 4),  # of two equally near ones, the larger
        ({}, 40, 4),
        ({}, None, 4),
        ({"ranges": [[1, 3], [4, 20]]}, 3, 2),
        ({"interpolate": True}, 3, 3),
    ],
)
def test_a_plain_network_starts_from_the_sub_network_of_its_count(
    tmp_path, network, meta, described, frames, count
):
    path = checkpoint(tmp_path / "m.pt", network, meta | described)
    model = create_model("tsm_tiny", num_classes=3, width=8)
    match, _ = load_start_weights(model, path, frames=frames)

    theirs = ffn.extract(load(path), count).state_dict()
    assert all(torch.equal(value, theirs[key]) for key, value in model.state_dict().items())
    purpose = f", which runs clips of {frames} frames" if frames else ""
    assert f"the sub-network of {count} frames{purpose}, without alterations" in str(match)


@pytest.mark.parametrize("flexible", [False, True])
def test_a_classifier_of_other_classes_is_new_and_is_reported(
    tmp_path, plain, plain_meta, flexible
):
    path = checkpoint(tmp_path / "m.pt", plain, plain_meta)
    model = create_model("tsm_tiny", num_classes=5, width=8)
    model = convert(model, (2, 4)) if flexible else model
    head = model.state_dict()["net.fc.weight"].clone()

    match, _ = load_start_weights(model, path)

    state = model.state_dict()
    assert torch.equal(state["net.fc.weight"], head)
    assert torch.equal(state["net.layer1.0.conv2.weight"], plain.net.layer1[0].conv2.weight)
    assert match.classes == (3, 5)
    assert "classifier: 3 classes in the weights, 5 in the model; newly initialized" in str(match)


@pytest.mark.parametrize("flexible", [False, True])
def test_private_classifiers_of_other_classes_are_initialized(
    tmp_path, plain, plain_meta, meta, flexible
):
    """private="all": each count has its own classifier, four entries of another shape."""
    if flexible:
        source = convert(plain, (2, 4), private="all", alter="none")
        described = meta | {"private": "all", "alter": "none"}
    else:
        source, described = plain, plain_meta
    path = checkpoint(tmp_path / "m.pt", source, described)
    model = create_model("tsm_tiny", num_classes=5, width=8)
    model = convert(model, (2, 4), private="all", alter="none")
    before = {k: v.clone() for k, v in model.state_dict().items()}

    match, _ = load_start_weights(model, path)

    assert match.classes == (3, 5)
    assert match.share == 1
    for key, value in model.state_dict().items():
        is_head = key.startswith("net.fc.")
        theirs = source.state_dict()[key if flexible else re.sub(r"\.[24]\.(\w+)$", r".\1", key)]
        assert torch.equal(value, before[key] if is_head else theirs), key


def test_two_layers_of_another_size_are_no_classifier():
    def state(*sizes):
        return {f"{n}.weight": torch.ones(s, 4) for n, s in zip("ab", sizes, strict=True)}

    assert match_state(state(3, 3), state(3, 5)).classes == (3, 5)
    both = match_state(state(3, 3), state(5, 5))
    assert both.classes is None
    assert both.reshaped == (
        "a.weight is (3, 4), the model's (5, 4)",
        "b.weight is (3, 4), the model's (5, 4)",
    )
    other_inputs = match_state({"a.weight": torch.ones(3, 4)}, {"a.weight": torch.ones(5, 6)})
    assert other_inputs.classes is None


# Models of other packages.


@pytest.fixture
def my_package(tmp_path, monkeypatch):
    """A package that registers a model, and weights of this model."""
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "my_zoo_package.py").write_text(
        "from ffn.backbones import register\n"
        "from ffn.backbones.tsm import tsm_tiny\n"
        "@register\n"
        "def my_zoo_net(**kwargs):\n"
        "    return tsm_tiny(**kwargs)\n"
    )
    monkeypatch.syspath_prepend(folder)
    yield "my_zoo_package"
    sys.modules.pop("my_zoo_package", None)
    backbones.registry._models._entries.pop("my_zoo_net", None)


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_a_file_names_a_missing_package_and_never_imports_it(
    tmp_path, plain, plain_meta, my_package, suffix
):
    import_extensions([my_package])
    meta = plain_meta | {"model": "my_zoo_net", "imports": [my_package]}
    path = tmp_path / f"m.{suffix}"
    if suffix == "pt":
        checkpoint(path, plain, meta)
    else:
        assert save_weights(plain, path, meta).imports == (my_package,)
        assert f"imports:\n- {my_package}\n" in path.with_suffix(".yaml").read_text()
    assert equal(load(path), plain)
    del sys.modules[my_package]
    del backbones.registry._models._entries["my_zoo_net"]

    with pytest.raises(WeightsError) as error:
        load(path)

    assert my_package not in sys.modules
    assert f'needs the model "my_zoo_net" of {my_package}, which is not imported' in str(
        error.value
    )
    assert f"`import {my_package}` before ffn.load, or pass --imports {my_package}" in str(
        error.value
    )
    import_extensions([my_package])
    assert equal(load(path), plain)


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


def test_a_start_from_another_network_is_refused(tmp_path, network, plain, meta, plain_meta):
    flexible = checkpoint(tmp_path / "f.pt", network, meta)
    with pytest.raises(WeightsError, match=r"\d+ of \d+ entries match \(\d.*another model"):
        load_start_weights(create_model("tea_tiny", num_classes=3, width=8), flexible)
    wide = convert(create_model("tsm_tiny", num_classes=3, width=16), (2, 4))
    with pytest.raises(WeightsError, match="another model"):
        load_start_weights(wide, checkpoint(tmp_path / "p.pt", plain, plain_meta))
    with pytest.raises(WeightsError, match="does not fit"):
        load_start_weights(convert(plain, (2, 8), alter="none"), flexible)


def test_weights_are_read_without_a_network(tmp_path, network, meta):
    record, state = read_weights(checkpoint(tmp_path / "m.pt", network, meta))
    assert record.model == "tsm_tiny"
    assert state.keys() == network.state_dict().keys()


def test_the_hash_is_that_of_names_types_shapes_and_values() -> None:
    state = {"b": torch.tensor([[1.0, 2.0]]), "a": torch.tensor(3)}
    text = b"a torch.int64 ()\n" + (3).to_bytes(8, "little")
    text += b"b torch.float32 (1, 2)\n" + bytes.fromhex("0000803f00000040")

    assert state_sha256(state) == hashlib.sha256(text).hexdigest()
    assert state_sha256(dict(reversed(state.items()))) == state_sha256(state)
    transposed = torch.arange(6.0).view(2, 3).T
    assert state_sha256({"a": transposed}) == state_sha256({"a": transposed.contiguous()})
