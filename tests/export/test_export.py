"""Exported files against the networks they come from; formats of other packages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from random_norms import randomize
from torch import nn

import ffn
from ffn.backbones.slowfast import SlowFast
from ffn.cli.export import main
from ffn.data import Preprocessing
from ffn.engine.checkpoints import save_checkpoint
from ffn.export import ExportError, export_all, formats, register_format
from ffn.files import part_of
from ffn.zoo import save_weights

ROOT = Path(__file__).parents[2]
SHIPPED = "tsm_tiny.motion_f4_8_16"


@pytest.fixture
def flexible() -> ffn.FrameFlexible:
    torch.manual_seed(0)
    plain = ffn.create_model("tsm_tiny", num_classes=3, width=8)
    return ffn.convert(plain, (2, 4)).train()


@pytest.fixture
def toy_format():
    """Registers a format that takes its logits from a function; forgets it afterwards."""

    def add(suffix, logits):
        @register_format(suffix)
        def toy(network, clip, file):
            file.write(b"toy")
            return lambda clip: logits(network, clip)

    before = set(formats._formats)
    yield add
    for suffix in set(formats._formats) - before:
        del formats._formats._entries[suffix]


@pytest.mark.parametrize(
    "name",
    [
        "tsm_tiny",
        pytest.param("tea_tiny", marks=pytest.mark.slow),
        pytest.param("slowfast_tiny", marks=pytest.mark.slow),
        pytest.param("uniformer_tiny", marks=pytest.mark.slow),
    ],
)
@torch.no_grad()
def test_a_file_computes_the_logits_of_the_sub_network(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = randomize(ffn.convert(ffn.create_model(name, num_classes=5), (2, 4)))

    report = ffn.export(model, tmp_path / "new" / "net.pt2", frames=3, size=(48, 32))

    loaded = torch.export.load(tmp_path / "new" / "net.pt2").module()
    for batch in (1, 2, 5):
        clip = torch.randn(batch, 3, 3, 48, 32)
        expected = ffn.extract(model, 4)(clip)  # of 2 and 4, equally near, the larger
        torch.testing.assert_close(loaded(clip), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(loaded(clip), model(clip), rtol=1e-4, atol=1e-5)
    assert (report.clip, report.active) == ((3, 3, 48, 32), 4)
    assert report.difference <= 1e-4 * report.largest
    assert "clips (B, 3, 3, 48, 32), sub-network of 4 frames; largest difference" in str(report)


def test_a_file_has_no_example_clips(flexible: ffn.FrameFlexible, tmp_path: Path) -> None:
    """Two of 8 frames of 256 px would have 12.6 MB."""
    path = tmp_path / "net.pt2"
    ffn.export(flexible, path, frames=8, size=256)
    weights = sum(p.nbytes for p in ffn.fuse(flexible, 8).parameters())
    assert path.stat().st_size < weights + 1_000_000
    loaded = torch.export.load(path).module()
    for shape in ((2, 3, 8, 255, 256), (2, 3, 7, 256, 256)):
        with pytest.raises((AssertionError, RuntimeError), match=r"Guard failed|Expected input"):
            loaded(torch.randn(shape))


@pytest.mark.slow
@pytest.mark.parametrize("frames", [1, 4, 7, 16])
@pytest.mark.parametrize("name", ["tsm_tiny", "tea_tiny", "slowfast_tiny", "uniformer_tiny"])
@torch.no_grad()
def test_files_of_many_lengths(name: str, frames: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = randomize(ffn.convert(ffn.create_model(name, num_classes=5), (4, 8, 16)))
    ffn.export(model, tmp_path / "net.pt2", frames=frames, size=(48, 32))
    clip = torch.randn(3, 3, frames, 48, 32)
    expected = model(clip)
    found = torch.export.load(tmp_path / "net.pt2").module()(clip)
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


@torch.no_grad()
def test_a_plain_network_of_any_kind(tmp_path: Path) -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, clip):
            return self.head(clip.mean((2, 3, 4)))

    network = Mean().double()
    report = ffn.export(network, tmp_path / "mean.pt2", frames=4, size=6)
    clip = torch.randn(7, 3, 4, 6, 6, dtype=torch.float64)
    assert torch.allclose(torch.export.load(report.path).module()(clip), network(clip))
    assert report.active is None


def test_the_model_does_not_change(flexible: ffn.FrameFlexible, tmp_path: Path) -> None:
    flexible.activate(2)
    before = {k: v.clone() for k, v in flexible.state_dict().items()}
    random = torch.get_rng_state()

    ffn.export(flexible, tmp_path / "a.pt2", frames=4, size=32)

    assert (flexible.active, flexible.training) == (2, True)
    assert all(torch.equal(v, before[k]) for k, v in flexible.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)


def test_an_existing_file_is_kept_unless_told(flexible: ffn.FrameFlexible, tmp_path: Path) -> None:
    path = tmp_path / "a.pt2"
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError, match=r"a\.pt2 exists"):
        ffn.export(flexible, path, frames=4, size=32)
    assert path.read_bytes() == b"mine"
    ffn.export(flexible, path, frames=4, size=32, overwrite=True)
    assert path.read_bytes() != b"mine"
    described = tmp_path / "b.pt2.json"
    described.write_text("mine")
    with pytest.raises(FileExistsError, match=r"b\.pt2\.json exists"):
        ffn.export(flexible, tmp_path / "b.pt2", frames=4, size=32)
    assert described.read_text() == "mine"


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_the_weights_are_never_overwritten(
    suffix: str, flexible: ffn.FrameFlexible, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"ex{suffix}"
    meta = {"model": "tsm_tiny", "num_classes": 3, "trained_frames": [2, 4]}
    meta |= {"model_args": {"width": 8}, "preprocessing": Preprocessing(crop=32).to_dict()}
    if suffix == ".pt":
        save_checkpoint(path, {"model": flexible.state_dict(), "meta": meta})
    else:
        save_weights(flexible, path, meta)
    before = path.read_bytes()
    command = ["--weights", str(path), "--frames", "4", "--to", "torch", "--overwrite"]

    assert main([*command, "--output", str(path)]) == 2

    assert f"{path} has the weights that are exported" in capsys.readouterr().err
    assert path.read_bytes() == before
    other = tmp_path / "other"
    other.write_bytes(b"another file")
    assert main([*command, "--output", str(other)]) == 0


@pytest.mark.parametrize(
    "logits",
    [
        lambda network, clip: network(clip) * 1.01,
        lambda network, clip: network(clip[:1]).expand(len(clip), -1),  # a fixed batch
        lambda network, clip: network(clip) / 0,
    ],
)
def test_wrong_logits_are_an_error_and_nothing_is_written(
    logits, flexible: ffn.FrameFlexible, tmp_path: Path, toy_format
) -> None:
    toy_format("wrong", logits)
    path = tmp_path / "a.wrong"
    path.write_bytes(b"mine")
    with pytest.raises(ExportError, match=r"differs from the network.*Nothing was written"):
        ffn.export(flexible, path, frames=4, size=32, overwrite=True)
    assert path.read_bytes() == b"mine"
    assert [p.name for p in tmp_path.iterdir()] == ["a.wrong"]


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("a.onx", {}, 'no export format "onx"; did you mean onnx'),
        ("a", {}, 'no export format ""'),
        ("a.pt2", {"frames": 0}, "frames is 0, size 32; expected at least 1"),
        ("a.pt2", {"size": (32, 0)}, r"size \(32, 0\)"),
        ("a.onnx", {"to": "torch"}, r"a\.onnx has the suffix \.onnx, and the format is torch, who"),
        ("a.aoti.pt2", {"to": "pt2"}, r"suffix \.aoti\.pt2, .* name the file \*\.pt2, or leave"),
        ("a.pt2", {"to": "aotinductor"}, r"name the file \*\.aoti\.pt2"),
    ],
)
def test_what_cannot_be_exported(
    name: str, given: dict, message: str, flexible: ffn.FrameFlexible, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        ffn.export(flexible, tmp_path / name, **{"frames": 4, "size": 32} | given)
    assert list(tmp_path.iterdir()) == []


def test_a_suffix_belongs_to_one_format(toy_format) -> None:
    toy_format("toy", None)
    with pytest.raises(ValueError, match="the export format name 'pt2' is taken"):
        toy_format("pt2", None)


def test_the_function_and_the_package_of_its_name() -> None:
    """`ffn.export` stays callable after an import of the package."""
    code = "import ffn.export; import ffn; assert callable(ffn.export)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.pt2"
    command = ["--weights", SHIPPED, "--frames", "8", "--output", str(path)]

    assert main(command) == 0

    printed = capsys.readouterr().out
    assert printed.startswith(f"{path}: ")
    assert "clips (B, 3, 8, 24, 24), sub-network of 8 frames; largest difference" in printed
    assert main(command) == 2
    assert "exists" in capsys.readouterr().err
    assert main([*command, "--overwrite", "--size", "32"]) == 0
    clip = torch.randn(2, 3, 8, 32, 32)
    with torch.no_grad():
        loaded = torch.export.load(path).module()(clip)
        torch.testing.assert_close(loaded, ffn.load(SHIPPED)(clip), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--frames", "4", "--seed", "3", "--to", "onnx"], "--seed: of --int8 only"),
        (
            ["--frames", "4", "--to", "onnx", "--calibration-clips", "5", "--held-out-clips", "2"],
            "--calibration-clips, --held-out-clips: of --int8 only",
        ),
        (["--all-frames", "--output", "net.pt2"], "has the suffix of a file; name the format"),
    ],
)
def test_options_without_effect_are_refused(
    more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--weights", "tsm_tiny.motion_f4_8_16", *more]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_format_of_another_package_by_the_command(tmp_path: Path) -> None:
    """A package in the current folder registers the suffix ``program``."""
    (tmp_path / "my_formats.py").write_text(
        "import torch\n"
        "from ffn.export import register_format\n"
        "@register_format('program')\n"
        "def program(network, clip, file):\n"
        "    shapes = ({0: torch.export.Dim.DYNAMIC},)\n"
        "    made = torch.export.export(network, (clip,), dynamic_shapes=shapes)\n"
        "    torch.export.save(made, file)\n"
        "    file.seek(0)\n"
        "    return torch.export.load(file).module()\n"
    )
    command = [sys.executable, str(ROOT / "tools/export.py"), "--weights", SHIPPED]
    command += ["--frames", "16", "--output", "net.program"]

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *more], cwd=tmp_path, capture_output=True, text=True)

    without = run()
    assert without.returncode == 2
    assert 'no export format "program"' in without.stderr
    missing = run("--imports", "no_such_package")
    assert missing.returncode == 2
    assert "cannot import 'no_such_package'" in missing.stderr
    done = run("--imports", "my_formats")
    assert done.returncode == 0, done.stderr
    clip = torch.randn(4, 3, 16, 24, 24)
    with torch.no_grad():
        logits = torch.export.load(tmp_path / "net.program").module()(clip)
        torch.testing.assert_close(logits, ffn.load(SHIPPED)(clip), rtol=1e-4, atol=1e-5)


def test_a_file_that_fails_on_another_batch_size_is_an_error(
    flexible: ffn.FrameFlexible, toy_format, tmp_path: Path
) -> None:
    def logits(network: nn.Module, clip: torch.Tensor) -> torch.Tensor:
        assert clip.shape[0] == 2, "only a batch of 2"
        return network(clip)

    toy_format("toy", logits)
    with pytest.raises(ExportError, match=r"fails on a clip \(1, 3, .*only a batch of 2"):
        ffn.export(flexible, tmp_path / "net.toy", frames=2, size=24)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("tsm_tiny", 1),
        pytest.param("tea_tiny", 1, marks=pytest.mark.slow),
        ("slowfast_tiny", 3),
        pytest.param("uniformer_tiny", 3, marks=pytest.mark.slow),
    ],
)
@torch.no_grad()
def test_clips_of_any_length(name: str, least: int, tmp_path: Path) -> None:
    if name == "uniformer_tiny" and not hasattr(torch.compiler, "is_exporting"):
        pytest.skip("torch 2.6 cannot trace it")
    torch.manual_seed(0)
    model = ffn.convert(ffn.create_model(name, num_classes=5), (4, 8)).eval()
    path = tmp_path / "net.pt2"
    report = ffn.export(model, path, frames=8, size=32, dynamic_frames=True)
    assert report.metadata["least_frames"] == least
    extra = {"metadata.json": ""}
    loaded = torch.export.load(path, extra_files=extra).module()
    assert json.loads(extra["metadata.json"])["least_frames"] == least
    for frames in (least, 6, 8, 19):
        clip = torch.randn(2, 3, frames, 32, 32)
        expected = model(clip, active=8)
        torch.testing.assert_close(loaded(clip), expected, rtol=1e-4, atol=1e-5)
    if least > 1:
        with pytest.raises((AssertionError, RuntimeError), match=r"Guard failed|to be >= "):
            loaded(torch.randn(2, 3, least - 1, 32, 32))


@pytest.mark.skipif(
    not hasattr(torch.compiler, "is_exporting"), reason="torch 2.6 cannot trace a uniformer_tiny"
)
@torch.no_grad()
def test_a_last_map_of_one_pixel(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = ffn.create_model("uniformer_tiny", num_classes=5, width=8).eval()
    path = tmp_path / "net.pt2"
    ffn.export(model, path, frames=8, size=24, dynamic_frames=True)
    loaded = torch.export.load(path).module()
    for frames in (3, 8, 11):
        clip = torch.randn(2, 3, frames, 24, 24)
        torch.testing.assert_close(loaded(clip), model(clip), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_fused_network_knows_its_frames(flexible: ffn.FrameFlexible, tmp_path: Path) -> None:
    report = ffn.export(ffn.fuse(flexible, 4), tmp_path / "a.onnx", size=32)
    assert report.clip == (3, 4, 32, 32)
    described = json.loads((tmp_path / "a.onnx.json").read_text())
    assert (described["frames"], described["sub_network"]) == (4, flexible.select(4))
    longer = ffn.export(ffn.fuse(flexible, 2), tmp_path / "c.pt2", frames=8, size=32).metadata
    assert (longer["frames"], longer["sub_network"]) == (8, flexible.select(2))
    with pytest.raises(ValueError, match="frames is missing"):
        ffn.export(flexible, tmp_path / "b.onnx", size=32)


def test_a_record_of_other_classes_is_refused(flexible: ffn.FrameFlexible, tmp_path: Path) -> None:
    """As after `reset_classifier` of a network from `ffn.load`."""
    model = ffn.load(SHIPPED)
    model.reset_classifier(3)
    path, options = tmp_path / "net.pt2", {"frames": 4, "size": 24}
    with pytest.raises(ValueError, match=r"has 3 outputs, and its record 12 classes.*record="):
        ffn.export(model, path, **options)
    with pytest.raises(ValueError, match=r"has 3 outputs, and its record 12 classes"):
        export_all(model, tmp_path / "all", size=24)
    assert not list(tmp_path.iterdir())
    metadata = ffn.export(model, path, **options, record={"classes": ["a", "b", "c"]}).metadata
    assert metadata["classes"] == ["a", "b", "c"]
    assert "weights" not in metadata


def test_the_name_in_a_record_is_no_path(
    flexible: ffn.FrameFlexible, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = {"model": "tsm_tiny", "num_classes": 3, "trained_frames": [2, 4]}
    meta |= {"model_args": {"width": 8}, "preprocessing": Preprocessing(crop=32).to_dict()}
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for number, name in enumerate(("../evil", "..\\evil")):
        path = tmp_path / f"{number}.safetensors"
        save_weights(flexible, path, meta | {"name": name})
        command = ["--weights", str(path), "--frames", "4", "--to", "torch", "--overwrite"]
        assert main(command) == 0
        written = sorted(path.name for path in Path().iterdir())
        assert written == ["evil.frames_4.pt2", "evil.frames_4.pt2.json"]


def test_a_folder_behind_a_link(flexible: ffn.FrameFlexible, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to("real")
    for _ in range(2):
        report = export_all(flexible, link, to="torch", size=32, overwrite=True)
        assert report.folder == link
        assert str(report).startswith(f"{link}/frames_2.pt2: ")
        names = {path.name for path in (tmp_path / "real").iterdir()}
        assert "index.json" in names
        assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_the_current_folder_is_not_replaced(
    flexible: ffn.FrameFlexible, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for name in (".", tmp_path / "empty", ".."):
        with pytest.raises(ValueError, match=r"is the current folder, or contains it; name a"):
            export_all(flexible, name, to="torch", size=32, overwrite=True)
    assert not list(Path().iterdir())


def test_files_of_a_killed_export_are_not_in_the_next(
    flexible: ffn.FrameFlexible, tmp_path: Path
) -> None:
    """A process may have the number of the killed one, as in containers."""
    part = part_of(tmp_path / "all")
    part.mkdir()
    (part / "frames_99.pt2").write_text("old")
    export_all(flexible, tmp_path / "all", to="torch", size=32)
    assert not (tmp_path / "all/frames_99.pt2").exists()
    assert not part.exists()


def test_overwrite_replaces_only_folders_of_an_export(
    flexible: ffn.FrameFlexible, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is not a folder of an export"):
        export_all(flexible, tmp_path / "mine", to="torch", size=32, overwrite=True)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "mine"

    (tmp_path / "mine" / "index.json").write_text('{"my": "site"}')
    with pytest.raises(FileExistsError, match="is not a folder of an export"):
        export_all(flexible, tmp_path / "mine", to="torch", size=32, overwrite=True)
    (tmp_path / "empty").mkdir()
    for _ in range(2):
        export_all(flexible, tmp_path / "empty", to="torch", size=32, overwrite=True)
    (tmp_path / "empty" / "notes.txt").write_text("mine")
    with pytest.raises(
        FileExistsError, match=r"not a folder of an export alone, it has notes\.txt"
    ):
        export_all(flexible, tmp_path / "empty", to="torch", size=32, overwrite=True)
    assert (tmp_path / "empty" / "notes.txt").read_text() == "mine"


@torch.no_grad()
def test_a_network_in_bf16(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = randomize(ffn.convert(ffn.create_model("tsm_tiny", num_classes=5), (2, 4)))
    half = ffn.fuse(network, 4).bfloat16()

    report = ffn.export(half, tmp_path / "net.pt2", size=24)

    assert {report.metadata[key]["dtype"] for key in ("input", "output")} == {"bfloat16"}
    clip = torch.randn(2, 3, 4, 24, 24)
    found = torch.export.load(report.path).module()(clip.bfloat16())
    assert found.dtype == torch.bfloat16
    expected = network(clip)
    assert (found.float() - expected).abs().max() < 0.05 * expected.abs().max()
    pytest.importorskip("onnxscript")
    with pytest.raises(ExportError, match=r"the network is in torch\.bfloat16; ONNX files are"):
        ffn.export(half, tmp_path / "net.onnx", size=24)


@torch.no_grad()
def test_a_network_in_bf16_whose_first_layer_is_in_fp32(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = ffn.create_model("tsm_tiny", num_classes=5).eval()
    next(m for m in network.modules() if isinstance(m, nn.BatchNorm2d)).running_mean.fill_(60.0)
    half = ffn.fuse(network, 4).bfloat16()
    assert next(half.parameters()).dtype is torch.float32
    report = ffn.export(half, tmp_path / "net.pt2", size=24)
    assert report.metadata["input"]["dtype"] == "bfloat16"
    clip = torch.randn(2, 3, 4, 24, 24).bfloat16()
    found = torch.export.load(report.path).module()(clip)
    torch.testing.assert_close(found, half(clip), rtol=0.02, atol=0.02)
    assert ffn.fuse(half)(clip).dtype is torch.bfloat16


@torch.no_grad()
def test_files_of_a_folder_are_folded(tmp_path: Path) -> None:
    """Only ONNX files share weights, which folding would make different."""
    torch.manual_seed(0)
    network = randomize(ffn.convert(ffn.create_model("tsm_tiny", num_classes=5), (2, 4)))
    export_all(network, tmp_path / "net", to="torch", size=24)
    for frames in (2, 4):
        program = torch.export.load(tmp_path / f"net/frames_{frames}.pt2")
        names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
        assert not [name for name in names if "batch_norm" in name]
        clip = torch.randn(3, 3, frames, 24, 24)
        torch.testing.assert_close(
            program.module()(clip), network(clip), rtol=1e-4, atol=1e-4 * network(clip).abs().max()
        )


@pytest.mark.slow
def test_a_folder_of_any_frames_where_few_frames_cannot_vary(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SlowFast needs more frames than alpha for a varying T; a file for fewer has one T."""
    torch.manual_seed(0)
    small = SlowFast(
        5, (1, 1, 1, 1), alpha=4, beta_inverse=4, fusion_kernel=5, width=16, pool=False
    )
    model = ffn.convert(small, (4, 8)).eval()
    export_all(model, tmp_path / "all", to="torch", size=32, dynamic_frames=True)
    index = json.loads((tmp_path / "all" / "index.json").read_text())
    assert [(one["first"], one["last"]) for one in index["files"]] == [(4, 4), (6, None)]
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("ffn.")]
    (warning,) = ours
    assert "the file for 4 frames takes no other number of frames" in warning
