"""Checkpoints of FFN-pytorch through the command, as a user converts them.

test_parity.py compares outputs; these tests check names, messages and files.
"""

from __future__ import annotations

import argparse
import itertools
import re
import zipfile

import parity
import pytest
import torch

from ffn import cli, extract
from ffn.core import convert
from ffn.zoo import WeightsError, create_model, load_with_record
from ffn.zoo.remap import from_foreign, read_foreign, rename


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
        "base_model.bn1_4.running_var": "net.bn1.4.running_var",
        "base_model.layer2.0.downsample_bn_8.bias": "net.layer2.0.downsample.1.8.bias",
        "new_fc.bias": "net.fc.bias",
    }.items():
        assert torch.equal(ours[here], flexible[theirs])
    alteration = ours["net.layer3.1.conv1.site.16.weight"]
    assert torch.equal(alteration, flexible["base_model.layer3.1.adaconv_16.weight"].flatten())
    other = rename(flexible, "ffn-pytorch", (4, 10, 16))  # the branches may stand for other counts
    assert torch.equal(other["net.bn1.10.weight"], flexible["base_model.bn1_8.weight"])
    assert not any(".8." in key for key in other)


def test_a_plain_checkpoint_stays_plain(plain, tmp_path, capsys):
    """Without counters of batches, which torch before 0.4.1 did not save."""
    old = {k: v for k, v in plain.items() if not k.endswith("num_batches_tracked")}
    source, out = str(pth(tmp_path / "ckpt.pth", old)), tmp_path / "out.safetensors"
    (tmp_path / "classes.txt").write_text("a\nb\nc\nd\ne\n")
    settings = ["crop=112", "resize=128", "color=bgr", "std=[1,2,3.5]"]
    command = [source, str(out), *ARGUMENTS, "--classes", str(tmp_path / "classes.txt")]
    out.write_bytes(b"mine")
    assert main(command) == 2
    assert out.read_bytes() == b"mine"

    assert main([*command, "--overwrite", "--preprocessing", *settings]) == 0

    printed = capsys.readouterr().out
    assert "trained frames: none, a plain network" in printed
    assert "matched: 102 of 122 entries" in printed
    model, record = load_with_record(out)
    assert record.trained_frames is None
    assert record.classes == tuple("abcde")
    found = record.preprocessing
    assert (found["crop"], found["color"], found["std"]) == (112, "bgr", [1, 2, 3.5])
    theirs = plain["base_model.layer2.0.downsample.1.running_mean"]
    assert torch.equal(model.state_dict()["net.layer2.0.downsample.1.running_mean"], theirs)


def test_a_plain_checkpoint_starts_every_private_copy(plain):
    """The same ones each time, and without a trace in the random stream."""
    stream = torch.get_rng_state()
    model, again = (
        from_foreign(plain, source="ffn-pytorch", model="tsm_r18", trained_frames=(8, 2)).model
        for _ in range(2)
    )

    assert torch.equal(torch.get_rng_state(), stream)
    other = again.state_dict()
    assert all(torch.equal(v, other[k]) for k, v in model.state_dict().items())
    assert model.trained_frames == (2, 8)
    for frames in (2, 8):
        state = extract(model, frames).state_dict()
        for theirs, value in plain.items():
            ours = theirs.replace("base_model.", "net.").replace("new_fc.", "net.fc.")
            assert torch.equal(state[ours], value)
    alterations = [v for k, v in other.items() if ".site." in k]
    assert len(alterations) == 16
    assert all(0 < a.abs().max() < 0.01 for a in alterations)


def test_what_is_no_state_dict_is_named(tmp_path):
    path = tmp_path / "x.pth"
    for content in ({"weights": {"a": 1}, "epoch": 2}, [1, 2], {1: torch.ones(1)}):
        torch.save(content, path)
        with pytest.raises(WeightsError, match="no state_dict of tensors"):
            read_foreign(path)


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module._orig_mod.", "model.", "module.module."])
def test_names_in_wrappers_are_those_of_the_network(plain, tmp_path, prefix):
    content = {"epoch": 3, "args": argparse.Namespace(lr=0.1)}
    content["model"] = {"state_dict": {prefix + key: value for key, value in plain.items()}}
    torch.save(content, tmp_path / "x.ckpt")

    found = read_foreign(tmp_path / "x.ckpt")

    assert [*found] == [*plain]
    assert all(torch.equal(found[key], value) for key, value in plain.items())


def test_averaged_copies_and_parts_that_were_compiled(tmp_path, caplog):
    path, net = tmp_path / "x.pth", torch.nn.Sequential(torch.nn.Linear(2, 3))
    raw = {key: value.clone() for key, value in net.state_dict().items()}
    average = torch.optim.swa_utils.AveragedModel(net, avg_fn=lambda mean, new, _: mean + 1)
    average.update_parameters(net)  # the first one copies
    average.update_parameters(net)
    wanted = {key: value + 1 for key, value in raw.items()}
    # torch.compile of the layer writes its names so.
    state = {k.replace("0.", "0._orig_mod."): v for k, v in average.state_dict().items()}
    torch.save({"state_dict_ema": state}, path)

    found = read_foreign(path)

    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[key], value) for key, value in wanted.items())
    torch.save({"state_dict": raw, "state_dict_ema": state}, path)
    assert all(torch.equal(read_foreign(path)[key], value) for key, value in raw.items())
    assert "for the average state_dict_ema" in caplog.text


def test_programs_and_whole_networks_are_named_with_the_remedy(tmp_path):
    path, linear = tmp_path / "x.pt", torch.nn.Linear(2, 2)
    torch.jit.save(torch.jit.script(linear), path)
    with pytest.raises(WeightsError, match=r"TorchScript.*torch\.jit\.load\(path\)\.state_dict"):
        read_foreign(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("folder/notes.txt", "x")
    with pytest.raises(WeightsError, match="or other files"):
        read_foreign(path)
    for content, zipped in itertools.product((linear, {"model": linear}), (True, False)):
        torch.save(content, path, _use_new_zipfile_serialization=zipped)
        with pytest.raises(WeightsError, match=r"a whole network.*network\.state_dict"):
            read_foreign(path)


def test_files_that_unpack_to_more_than_they_hold(tmp_path):
    path, state = tmp_path / "x.pth", {"conv1.weight": torch.zeros(2**22)}
    torch.save(state, tmp_path / "plain.pth")
    with (
        zipfile.ZipFile(tmp_path / "plain.pth") as plain_zip,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in plain_zip.namelist():
            packed.writestr(name, plain_zip.read(name))
    assert path.stat().st_size < 2**20
    (tmp_path / "x.pkl").write_bytes(
        b"\x80\x02}X\x05\0\0\0blobs}X\x01\0\0\0acnumpy\nndarray\nJ\x00\x00\x00\x40\x85\x85Rss."
    )
    for one in (path, tmp_path / "x.pkl"):
        with pytest.raises(WeightsError, match="larger than the file"):
            read_foreign(one)
    torch.save({"conv1.weight": torch.zeros(1).expand(10**10)}, path)
    with pytest.raises(WeightsError, match="40,000,000,000 bytes"):
        read_foreign(path)
    state = {"features.0.weight": torch.zeros(1), "new_fc.weight": torch.zeros(200_000, 1)}
    torch.save(state, path)
    with pytest.raises(WeightsError, match="200,000 classes"):
        from_foreign(read_foreign(path), source="ffn-pytorch", model="tsm_r18")


def test_bad_checkpoints_are_refused_and_nothing_written(flexible, plain, tmp_path, capsys):
    def changed(**entries):
        return {k: v for k, v in (plain | entries).items() if v is not None}

    tea = create_model("tea_r50", num_classes=5).state_dict()
    tea = {parity.tea_name(k, flexible=False): v for k, v in tea.items()}
    conv = "base_model.conv1.weight"
    path, out = tmp_path / "ckpt.pth", tmp_path / "out.safetensors"
    for content, message in (
        (changed(**{conv: torch.zeros(64, 3, 5, 5)}), r"conv1.weight is \(64, 3, 5, 5\), the"),
        (changed(**{conv: torch.full((64, 3, 7, 7), torch.nan)}), "hold NaN or infinity, first"),
        (changed(**{"base_model.bn1.weight": None}), r"net\.bn1\.weight is missing"),
        (changed(**{"base_model.bn9.weight": torch.ones(1)}), "is unknown to the model"),
        (changed(**{"new_fc.weight": None}), "the checkpoint has no classifier"),
        (flexible, "name the three counts"),
        (tea, "does not fit the model"),
        (b"<!DOCTYPE html><html><title>Quota exceeded</title></html>", "is a web page"),
        (None, "is damaged, truncated"),
    ):
        if isinstance(content, dict):
            pth(path, content)
        else:
            path.write_bytes(content or pth(path, plain).read_bytes()[:10_000])
        assert main([str(path), str(out), *ARGUMENTS]) == 2
        assert re.search(message, capsys.readouterr().err)

    pth(path, plain)
    assert main([str(path), str(out), *ARGUMENTS, "--preprocessing", "crop=a"]) == 2
    assert list(tmp_path.iterdir()) == [path]
