"""Checkpoints of FFN-pytorch through the command, as a user converts them.

test_parity.py compares outputs; these tests check names, messages and files.
"""

from __future__ import annotations

import re

import parity
import pytest
import torch

from ffn import cli, extract, load
from ffn.core import convert
from ffn.zoo import WeightsError, create_model, load_with_record
from ffn.zoo.remap import ffn_pytorch, from_foreign, read_foreign


def main(arguments: list[str]) -> int:
    return cli.main(["convert_checkpoint", *arguments])


@pytest.fixture(scope="module")
def flexible():
    """A state dict of FFN-pytorch's frame-flexible TSM-R18, 5 classes, cheaply filled."""
    return cheap(convert(create_model("tsm_r18", num_classes=5), (4, 8, 16)))


@pytest.fixture(scope="module")
def plain():
    """A state dict of its plain TSM-R18."""
    return cheap(create_model("tsm_r18", num_classes=5))


def cheap(network):
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.rand(shape, generator=generator) if shape else torch.tensor(7)
        for name, shape in parity.shapes("tsm", network.state_dict()).items()
    }


def pth(path, state, **more):
    """As the reference saves: under DataParallel, among other things."""
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}, **more}, path)
    return path


ARGUMENTS = ["--from", "ffn-pytorch", "--model", "tsm_r18"]


def test_a_flexible_checkpoint_becomes_weights_that_load(flexible, tmp_path, capsys):
    source = pth(tmp_path / "ckpt.pth", flexible, epoch=49, arch="resnet18", best_prec1=50.79)
    out = tmp_path / "out.safetensors"

    status = main([str(source), str(out), *ARGUMENTS, "--trained-frames", "4", "8", "16"])

    assert status == 0
    printed = capsys.readouterr().out
    assert "matched: 346 of 346 entries" in printed
    assert "trained frames: 4 8 16" in printed
    assert "classes: 5, unnamed" in printed
    model, record = load_with_record(out)
    assert model.trained_frames == (4, 8, 16)
    assert record.num_classes == 5
    assert record.preprocessing["crop"] == 224
    assert record.source == "ffn-pytorch: ckpt.pth"
    ours = model.state_dict()
    for theirs, here in {
        "base_model.conv1.weight": "net.conv1.weight",
        "base_model.bn1_4.running_var": "net.bn1.4.running_var",
        "base_model.layer2.0.downsample_bn_8.bias": "net.layer2.0.downsample.1.8.bias",
        "base_model.layer2.0.downsample_conv.weight": "net.layer2.0.downsample.0.weight",
        "base_model.layer4.1.bn2_16.num_batches_tracked": (
            "net.layer4.1.bn2.16.num_batches_tracked"
        ),
        "new_fc.bias": "net.fc.bias",
    }.items():
        assert torch.equal(ours[here], flexible[theirs])
    alteration = ours["net.layer3.1.conv1.site.16.weight"]
    assert torch.equal(alteration, flexible["base_model.layer3.1.adaconv_16.weight"].flatten())


def test_the_branches_may_stand_for_other_counts(flexible):
    ours = ffn_pytorch(flexible, (4, 10, 16))
    assert torch.equal(ours["net.bn1.10.weight"], flexible["base_model.bn1_8.weight"])
    assert not any(".8." in key for key in ours)


def test_a_flexible_checkpoint_needs_its_three_counts(flexible, tmp_path, capsys):
    source = str(pth(tmp_path / "ckpt.pth", flexible))
    for frames in ([], ["--trained-frames", "4", "16"]):
        assert main([source, str(tmp_path / "out.safetensors"), *ARGUMENTS, *frames]) == 2
        assert "name the three counts" in capsys.readouterr().err
    assert not (tmp_path / "out.safetensors").exists()


def test_a_plain_checkpoint_stays_plain(plain, tmp_path, capsys):
    out = tmp_path / "out.safetensors"
    classes = tmp_path / "classes.txt"
    classes.write_text("a\nb\nc\nd\ne\n")
    source = pth(tmp_path / "ckpt.pth", plain)

    assert main([str(source), str(out), *ARGUMENTS, "--classes", str(classes)]) == 0

    assert "trained frames: none, a plain network" in capsys.readouterr().out
    model, record = load_with_record(out)
    assert record.trained_frames is None
    assert record.classes == tuple("abcde")
    state = model.state_dict()
    theirs = plain["base_model.layer2.0.downsample.1.running_mean"]
    assert torch.equal(state["net.layer2.0.downsample.1.running_mean"], theirs)


def test_a_plain_checkpoint_starts_every_private_copy(plain, tmp_path):
    out = tmp_path / "out.safetensors"
    source = str(pth(tmp_path / "ckpt.pth", plain))
    assert main([source, str(out), *ARGUMENTS, "--trained-frames", "8", "2"]) == 0

    model = load(out)

    assert model.trained_frames == (2, 8)
    for frames in (2, 8):
        state = extract(model, frames).state_dict()
        for theirs, value in plain.items():
            ours = theirs.replace("base_model.", "net.").replace("new_fc.", "net.fc.")
            assert torch.equal(state[ours], value)
    alterations = [v for k, v in model.state_dict().items() if ".site." in k]
    assert len(alterations) == 16
    assert all(0 < a.abs().max() < 0.01 for a in alterations)


def test_a_conversion_leaves_the_random_stream_alone_and_repeats(plain):
    state = torch.get_rng_state()
    once, twice = (
        from_foreign(plain, source="ffn-pytorch", model="tsm_r18", trained_frames=(2, 8))
        for _ in range(2)
    )
    assert torch.equal(torch.get_rng_state(), state)
    other = twice.model.state_dict()
    assert all(torch.equal(v, other[k]) for k, v in once.model.state_dict().items())


def test_missing_counters_of_batches_are_reported(plain, tmp_path, capsys):
    """torch before 0.4.1 did not save them."""
    old = {k: v for k, v in plain.items() if not k.endswith("num_batches_tracked")}
    out = tmp_path / "out.safetensors"
    assert main([str(pth(tmp_path / "ckpt.pth", old)), str(out), *ARGUMENTS]) == 0
    printed = capsys.readouterr().out
    assert "missing: net.bn1.num_batches_tracked" in printed
    assert "matched: 102 of 122 entries" in printed


def test_an_entry_without_a_partner_is_refused(plain):
    for remove, add, message in (
        ("base_model.bn1.weight", None, "net.bn1.weight is missing"),
        (None, "base_model.bn9.weight", "net.bn9.weight is unknown to the model"),
        ("new_fc.weight", None, "the checkpoint has no classifier"),
    ):
        state = {k: v for k, v in plain.items() if k != remove}
        state |= {add: torch.ones(1)} if add else {}
        with pytest.raises(WeightsError, match=message):
            from_foreign(state, source="ffn-pytorch", model="tsm_r18")


def test_another_model_is_refused_with_what_matched(plain, tmp_path, capsys):
    out = tmp_path / "out.safetensors"
    source = str(pth(tmp_path / "ckpt.pth", plain))
    assert main([source, str(out), "--from", "ffn-pytorch", "--model", "tsm_r50"]) == 2
    error = capsys.readouterr().err
    assert "entries match" in error
    assert "another model" in error
    assert not out.exists()


def test_a_file_that_is_there_is_kept_unless_told(plain, tmp_path, capsys):
    out = tmp_path / "out.safetensors"
    out.write_bytes(b"mine")
    command = [str(pth(tmp_path / "ckpt.pth", plain)), str(out), *ARGUMENTS]
    assert main(command) == 2
    assert "exists" in capsys.readouterr().err
    assert out.read_bytes() == b"mine"
    assert main([*command, "--overwrite"]) == 0


def test_what_is_no_state_dict_is_named(tmp_path):
    path = tmp_path / "x.pth"
    with pytest.raises(FileNotFoundError, match="no file"):
        read_foreign(path)
    torch.save({"weights": {"a": 1}, "epoch": 2}, path)
    with pytest.raises(WeightsError, match="keys weights, epoch"):
        read_foreign(path)
    torch.save([1, 2], path)
    with pytest.raises(WeightsError, match="list"):
        read_foreign(path)
    torch.save({1: torch.ones(1)}, path)
    with pytest.raises(WeightsError, match="no state_dict of tensors, but keys 1"):
        read_foreign(path)
    torch.save({"module.a": torch.ones(1)}, path)
    assert read_foreign(path).keys() == {"a"}


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


FAULTS = {
    "cut short": "is damaged, truncated",
    "wrong shape": r"net.conv1.weight is \(64, 3, 5, 5\), the model's \(64, 3, 7, 7\)",
    "wrong family": "another model",
    "malicious": r"requests (_?io)\.open\. .* could execute code",
    "not finite": r"hold NaN or infinity, first net.conv1",
    "web page": "is a web page",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_checkpoint_is_refused_and_nothing_written(fault, plain, tmp_path, capsys):
    state, more = dict(plain), {}
    if fault == "wrong shape":
        state["base_model.conv1.weight"] = torch.zeros(64, 3, 5, 5)
    elif fault == "wrong family":
        tea = create_model("tea_r50", num_classes=5).state_dict()
        state = {parity.tea_name(k, flexible=False): v for k, v in tea.items()}
    elif fault == "malicious":
        more = {"optimizer": Payload(tmp_path / "ran")}
    elif fault == "not finite":
        state["base_model.conv1.weight"] = torch.full((64, 3, 7, 7), float("nan"))
    source = pth(tmp_path / "ckpt.pth", state, **more)
    if fault == "cut short":
        data = source.read_bytes()
        source.write_bytes(data[: len(data) // 2])
    elif fault == "web page":
        source.write_text("<!DOCTYPE html><html><title>Quota exceeded</title></html>")
    (tmp_path / "ran").unlink(missing_ok=True)
    before = set(tmp_path.iterdir())

    status = main([str(source), str(tmp_path / "out.safetensors"), "--model", "tsm_r18"])

    assert status == 2
    assert re.search(FAULTS[fault], capsys.readouterr().err)
    assert set(tmp_path.iterdir()) == before


def test_a_wrong_preprocessing_is_refused(plain, tmp_path, capsys):
    command = [str(pth(tmp_path / "ckpt.pth", plain)), str(tmp_path / "out.safetensors")]
    for setting in ("crop=a", "size=3", "mean=1,2", "color="):
        assert main([*command, "--model", "tsm_r18", "--preprocessing", setting]) == 2
        assert re.search("is not a setting|expected 'rgb' or 'bgr'", capsys.readouterr().err)
    assert not (tmp_path / "out.safetensors").exists()


def test_a_preprocessing_travels_into_the_record(plain, tmp_path):
    source, out = str(pth(tmp_path / "ckpt.pth", plain)), tmp_path / "out.safetensors"
    settings = ["crop=112", "resize=128", "color=bgr", "std=1,2,3.5"]
    assert main([source, str(out), "--model", "tsm_r18", "--preprocessing", *settings]) == 0
    found = load_with_record(out)[1].preprocessing
    assert (found["crop"], found["color"], found["std"]) == (112, "bgr", [1, 2, 3.5])
