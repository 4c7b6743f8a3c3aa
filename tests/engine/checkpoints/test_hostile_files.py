"""Files that run code when they are unpickled: no function or command of ffn executes them.

Each file is also opened unsafely, which shows that it does run code.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ffn
from ffn.cli import convert_checkpoint, predict, publish
from ffn.cli import test as test_command
from ffn.data import Preprocessing
from ffn.engine.checkpoints.file import CheckpointError, load_checkpoint, save_checkpoint
from ffn.engine.checkpoints.folder import RunFolder
from ffn.serve import Predictor
from ffn.zoo import WeightsError, load_start_weights
from ffn.zoo.remap import read_foreign
from ffn.zoo.torch_files import append_digest


class Payload:
    """Unpickling it calls ``call``, which creates a folder."""

    def __init__(self, call: Callable, *arguments: Any) -> None:
        self.call = call, arguments

    def __reduce__(self) -> tuple:
        return self.call


def content() -> dict[str, Any]:
    """A valid checkpoint."""
    torch.manual_seed(0)
    model = ffn.convert(ffn.create_model("tsm_tiny", num_classes=3), (2, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    meta = {
        "model": "tsm_tiny",
        "num_classes": 3,
        "classes": ["a", "b", "c"],
        "trained_frames": [2, 4],
        "private": "norms",
        "alter": "sites",
        "preprocessing": Preprocessing(crop=32, resize=36).to_dict(),
    }
    training = {"optimizer": optimizer.state_dict(), "random": [torch.get_rng_state()], "step": 5}
    return {"format": 1, "model": model.state_dict(), "meta": meta, "training": training}


# --- the files; each function takes the path and the folder that its payload creates -------------


def in_meta(path: Path, mark: Path) -> None:
    whole = content()
    whole["meta"]["source"] = Payload(os.system, f"mkdir {mark}")
    torch.save(whole, path)


def in_training(path: Path, mark: Path) -> None:
    whole = content()
    whole["training"]["random"] = [Payload(os.mkdir, str(mark))]
    torch.save(whole, path)


def in_optimizer(path: Path, mark: Path) -> None:
    whole = content()
    whole["training"]["optimizer"]["state"] = {0: {"momentum_buffer": Payload(os.mkdir, str(mark))}}
    torch.save(whole, path)


def with_a_valid_digest(path: Path, mark: Path) -> None:
    whole = content()
    whole["meta"]["source"] = Payload(os.mkdir, str(mark))
    save_checkpoint(path, whole)


def in_place_of_a_storage(path: Path, mark: Path) -> None:
    whole = content()
    arguments = (Payload(os.mkdir, str(mark)), 0, (1,), (1,), False, OrderedDict())
    whole["model"]["weight"] = Payload(torch._utils._rebuild_tensor_v2, *arguments)
    torch.save(whole, path)


def rebuilt_by_a_callable(path: Path, mark: Path) -> None:
    whole = content()
    arguments = (os.mkdir, torch.Tensor, (str(mark),), {})
    whole["model"]["weight"] = Payload(torch._tensor._rebuild_from_type_v2, *arguments)
    torch.save(whole, path)


def in_an_array_of_objects(path: Path, mark: Path) -> None:
    whole = content()
    whole["meta"]["mean"] = np.array([Payload(os.mkdir, str(mark))], dtype=object)
    torch.save(whole, path)


def without_zip(path: Path, mark: Path) -> None:
    whole = content()
    whole["meta"]["source"] = Payload(os.mkdir, str(mark))
    torch.save(whole, path, _use_new_zipfile_serialization=False)


def as_old_tar(path: Path, mark: Path) -> None:
    """torch before 0.1.10 wrote such files; loading one unpickles its members."""
    data = pickle.dumps(Payload(os.mkdir, str(mark)), protocol=2)
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for name in ("sys_info", "storages", "tensors", "pickle"):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def compressed(path: Path, mark: Path) -> None:
    in_meta(path, mark)
    path.write_bytes(gzip.compress(path.read_bytes()))


def with_another_pickle(data: Callable[[str], bytes]) -> Callable[[Path, Path], None]:
    """A checkpoint with another data.pkl, and a valid digest."""

    def write(path: Path, mark: Path) -> None:
        torch.save(content(), path)
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: archive.read(info) for info in archive.infolist()}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for name, old in members.items():
                archive.writestr(name, data(str(mark)) if name.endswith("data.pkl") else old)
        with path.open("r+b") as file:
            append_digest(file)

    return write


def stack_global(mark: str) -> bytes:
    return pickle.dumps({"format": 2, "model": {}, "meta": Payload(os.mkdir, mark)}, protocol=4)


def attribute_of_torch(mark: str) -> bytes:
    """``torch.serialization.os.mkdir``: checkpoints need names with the same first part."""
    call = b"\x8c\x05torch\x8c\x16serialization.os.mkdir\x93"
    return b"\x80\x04" + call + b"X" + len(mark).to_bytes(4, "little") + mark.encode() + b"\x85R."


def global_exec(mark: str) -> bytes:
    return b"cbuiltins\nexec\n(S'import os; os.mkdir(\"" + mark.encode() + b"\")'\ntR."


def inst(mark: str) -> bytes:
    return b"(S'" + mark.encode() + b"'\nios\nmkdir\n."


def obj(mark: str) -> bytes:
    return b"(cos\nmkdir\nS'" + mark.encode() + b"'\no."


def plain_pickle(protocol: int) -> Callable[[Path, Path], None]:
    def write(path: Path, mark: Path) -> None:
        path.write_bytes(pickle.dumps(content_with(mark), protocol=protocol))

    return write


def content_with(mark: Path) -> dict[str, Any]:
    return {"format": 1, "model": {}, "meta": Payload(os.mkdir, str(mark)), "blobs": {}}


def unsafe_torch(path: Path) -> Any:
    return torch.load(path, weights_only=False)


def unsafe_pickle(path: Path) -> Any:
    return pickle.loads(path.read_bytes())


def unsafe_gzip(path: Path) -> Any:
    return torch.load(io.BytesIO(gzip.decompress(path.read_bytes())), weights_only=False)


HOSTILE = {
    "in meta": (in_meta, unsafe_torch),
    "in training": (in_training, unsafe_torch),
    "in optimizer": (in_optimizer, unsafe_torch),
    "with a valid digest": (with_a_valid_digest, unsafe_torch),
    "in place of a storage": (in_place_of_a_storage, unsafe_torch),
    "rebuilt by a callable": (rebuilt_by_a_callable, unsafe_torch),
    "in an array of objects": (in_an_array_of_objects, unsafe_torch),
    "without zip": (without_zip, unsafe_torch),
    "as old tar": (as_old_tar, unsafe_torch),
    "compressed": (compressed, unsafe_gzip),
    "STACK_GLOBAL": (with_another_pickle(stack_global), unsafe_torch),
    "attribute of torch": (with_another_pickle(attribute_of_torch), unsafe_torch),
    "GLOBAL exec": (with_another_pickle(global_exec), unsafe_torch),
    "INST": (with_another_pickle(inst), unsafe_torch),
    "OBJ": (with_another_pickle(obj), unsafe_torch),
    **{f"protocol {number}": (plain_pickle(number), unsafe_pickle) for number in range(6)},
}


# --- functions and commands that read files ------------------------------------------------------


def start_weights(path: Path) -> Any:
    model = ffn.convert(ffn.create_model("tsm_tiny", num_classes=3), (2, 4))
    return load_start_weights(model, path)


def newest(path: Path) -> Any:
    checkpoints = path.parent / "run" / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    for target in (checkpoints / "step_00000005.pt", path.parent / "run" / "last.pt"):
        target.write_bytes(path.read_bytes())
    return RunFolder(path.parent / "run", keep=3).newest()


def foreign(ending: str) -> Callable[[Path], Any]:
    def read(path: Path) -> Any:
        renamed = path.with_suffix(ending)
        renamed.write_bytes(path.read_bytes())
        return read_foreign(renamed)

    return read


READERS = {
    "load_checkpoint": load_checkpoint,
    "ffn.load": ffn.load,
    "Predictor": Predictor,
    "load_start_weights": start_weights,
    "newest": newest,
    "read_foreign": foreign(".pth"),
}


def commands(path: Path) -> dict[str, int]:
    """Exit status by command."""
    config = path.parent / "config.yaml"
    config.write_text(f"data:\n  root: {path.parent}\nlog:\n  output: {path.parent}/out\n")
    source, target = path.with_suffix(".pth"), str(path.parent / "out.safetensors")
    source.write_bytes(path.read_bytes())
    folder = ["--output", str(path.parent)]
    return {
        "test": test_command.main([str(config), "--weights", str(path)]),
        "publish": publish.main([str(path), "tsm_tiny.test_f2_4", *folder]),
        "predict": predict.main(["video.mp4", "--weights", str(path)]),
        "convert": convert_checkpoint.main([str(source), target, "--model", "tsm_tiny"]),
    }


@pytest.mark.parametrize("kind", HOSTILE)
def test_nothing_in_a_hostile_file_is_executed(
    tmp_path: Path, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    write, open_unsafely = HOSTILE[kind]
    path, mark = tmp_path / "evil.pt", tmp_path / "executed"
    write(path, mark)

    for read in [*READERS.values(), foreign(".pkl")]:
        with pytest.raises((CheckpointError, WeightsError), match=str(tmp_path)):
            read(path)
        assert not mark.exists()
    assert set(commands(path).values()) == {2}
    assert capfd.readouterr().err.count(str(tmp_path / "evil.p")) >= 4
    assert not mark.exists()

    with suppress(Exception):  # a payload does not return a tensor
        open_unsafely(path)
    assert mark.exists()


@pytest.mark.parametrize("reader", READERS)
def test_file_without_a_payload_is_read(tmp_path: Path, reader: str) -> None:
    path = tmp_path / "good.pt"
    save_checkpoint(path, content())

    assert READERS[reader](path) is not None


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_checks_the_digest(tmp_path: Path, reader: str) -> None:
    """The flipped bit is in a weight, where only the digest detects it."""
    path = tmp_path / "flipped.pt"
    save_checkpoint(path, content())
    whole = bytearray(path.read_bytes())
    weight = content()["model"]["net.conv1.0.weight"].numpy().tobytes()
    whole[whole.index(weight) + 4] ^= 1
    path.write_bytes(whole)
    assert torch.load(path, weights_only=True)

    with pytest.raises((CheckpointError, WeightsError), match="not those of the SHA-256"):
        READERS[reader](path)


def test_every_command_checks_the_digest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "flipped.pt"
    save_checkpoint(path, content())
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)

    assert set(commands(path).values()) == {2}
    assert capsys.readouterr().err.count("not those of the SHA-256") == 4
