from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ffn.benchmarks import inference
from ffn.benchmarks.layers import Layer, _check_equal
from ffn.cli.benchmark import main
from ffn.devices import has_bf16
from ffn.export import can_pack

RESULTS = Path(__file__).parents[2] / "model_zoo/results"
TINY = ["--model", "tsm_tiny", "--num-classes", "3", "--batch-size", "2", "--device", "cpu"]


def measure(output: Path, *arguments: str) -> dict[str, Any]:
    """The JSON file that the command writes."""
    assert main([*arguments, "--output", str(output)]) == 0
    return json.loads(output.read_text())


def names(comparison: dict[str, Any]) -> list[str]:
    return [variant["name"] for variant in comparison["variants"]]


def peaks(comparison: dict[str, Any]) -> dict[str, int]:
    return {variant["name"]: variant["peak_bytes"] for variant in comparison["variants"]}


def test_training_compares_views_together_in_sequence_and_plain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", *TINY, "--frames", "8", "4", "--size", "48", "--rounds", "3"]

    written = measure(tmp_path / "new" / "train.json", *arguments)

    (comparison,) = written["comparisons"]
    flexible = ["together", "sequential", "together, recomputed", "sequential, recomputed"]
    assert names(comparison) == [*flexible, "plain 4", "plain 8", "plain 4 + 8"]
    seconds = [variant["seconds"] for variant in comparison["variants"]]
    assert all(len(rounds) == 3 for rounds in seconds)
    assert seconds[6] == pytest.approx([a + b for a, b in zip(seconds[4], seconds[5], strict=True)])
    pairs = [(ratio["name"], ratio["over"]) for ratio in comparison["ratios"]]
    assert pairs[:3] == [(name, "together") for name in flexible[1:]]
    first = comparison["ratios"][0]
    by_hand = [b / a for a, b in zip(seconds[1], seconds[0], strict=True)]
    assert first["speed"] == pytest.approx(statistics.median(by_hand))
    assert written["options"]["frames"] == [8, 4]
    assert written["measured"]["threads"] == torch.get_num_threads()
    assert written["measured"]["torch"] == torch.__version__
    screen = capsys.readouterr().out
    assert "together : plain 4 + 8" in screen
    assert f"torch: {torch.__version__}" in screen


def test_the_default_batch_size_on_a_cpu_is_two(tmp_path: Path) -> None:
    small = ["--model", "tsm_tiny", "--device", "cpu", "--size", "32", "--frames", "2", "4"]

    written = measure(tmp_path / "train.json", "train", *small, "--rounds", "1")

    assert written["options"]["batch_size"] == 2


def test_views_in_sequence_store_the_activations_of_one_view(tmp_path: Path) -> None:
    """Activations dominate here: 7 + 8 frames together, at most 8 in sequence."""
    arguments = ["train", *TINY, "--frames", "7", "8", "--size", "64", "--rounds", "1"]

    (comparison,) = measure(tmp_path / "train.json", *arguments)["comparisons"]

    peak = peaks(comparison)
    assert peak["together"] > 1.5 * peak["sequential"]
    assert peak["sequential"] < 1.5 * peak["plain 8"]
    assert comparison["ratios"][0]["memory"] == peak["sequential"] / peak["together"]


def test_activation_checkpointing_stores_less(tmp_path: Path) -> None:
    """Only the inputs of all blocks and the activations of one block are stored."""
    arguments = ["train", *TINY, "--frames", "7", "8", "--size", "64", "--rounds", "1"]

    (comparison,) = measure(tmp_path / "train.json", *arguments)["comparisons"]

    peak = peaks(comparison)
    assert peak["together, recomputed"] < 0.7 * peak["together"]
    assert peak["sequential, recomputed"] < 0.8 * peak["sequential"]


@pytest.mark.slow
def test_compiled_training_is_compared(tmp_path: Path) -> None:
    arguments = ["train", *TINY, "--frames", "2", "4", "--size", "32", "--rounds", "1"]

    (comparison,) = measure(tmp_path / "train.json", *arguments, "--compile")["comparisons"]

    assert names(comparison)[4:6] == ["together, compiled", "sequential, compiled"]
    assert ("sequential, compiled", "together") in [
        (ratio["name"], ratio["over"]) for ratio in comparison["ratios"]
    ]


@pytest.mark.slow
def test_inference_compares_all_forms_at_each_frame_count_and_batch_size(tmp_path: Path) -> None:
    arguments = ["infer", *TINY, "--size", "32", "--rounds", "2", "--batch-size", "1", "2"]
    arguments += ["--trained-frames", "2", "8", "--frames", "6", "3", "--onnx"]

    written = measure(tmp_path / "infer.json", *arguments)

    assert [c["title"].split(", ", 1)[1] for c in written["comparisons"]] == [
        f"{frames} frames on sub-network {count}, batches of {batch} at 32 px"
        for frames, count in ((3, 2), (6, 8))
        for batch in (1, 2)
    ]
    for one, two in zip(*(written["comparisons"][i::2] for i in (0, 1)), strict=True):
        assert two["macs"] == 2 * one["macs"] > 0
    speeds = written["measured"]["product_gflops"]
    assert speeds.keys() == ({"fp32", "bf16"} if has_bf16() else {"fp32"})
    assert min(speeds.values()) > 0
    torch_forms = ["plain", "fused", "plain, fused", *["fused, bf16"] * has_bf16()]
    dtypes = {"fused, packed": torch.float32, "fused, bf16, packed": torch.bfloat16}
    torch_forms += [form for form, dtype in dtypes.items() if can_pack(dtype)]
    forms = [*torch_forms, "ONNX Runtime", "ONNX Runtime, int8"]
    for comparison in written["comparisons"]:
        assert names(comparison) == ["as trained", *forms]
        peak = peaks(comparison)
        assert peak["as trained"] > peak["fused"]  # norms, and those of other counts
        assert peak["fused"] == pytest.approx(peak["plain, fused"], rel=0.01)
        if has_bf16():
            assert peak["fused, bf16"] < 0.7 * peak["fused"]
        assert peak["ONNX Runtime"] > 0
        assert [(r["name"], r["over"]) for r in comparison["ratios"]] == [
            *((form, "as trained") for form in forms),
            ("fused", "plain, fused"),
            ("ONNX Runtime, int8", "ONNX Runtime"),
        ]
        # The memory of a process is not compared with that of torch's allocator.
        unknown = {(r["name"], r["over"]) for r in comparison["ratios"] if r["memory"] is None}
        assert unknown == {(form, "as trained") for form in forms[-2:]}


def test_memory_of_onnx_runtime_holds_what_the_file_computes(tmp_path: Path) -> None:
    """The file widens 4 bytes to 96 MiB and sums them."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    size = onnx.numpy_helper.from_array(np.array([24 * 2**20]), "size")
    nodes = [
        helper.make_node("Expand", ["clip", "size"], ["wide"]),
        helper.make_node("Exp", ["wide"], ["more"]),  # takes the place of its input
        helper.make_node("ReduceSum", ["more"], ["sum"], keepdims=1),
    ]
    ends = [helper.make_tensor_value_info(name, kind, [1]) for name in ("clip", "sum")]
    graph = helper.make_graph(nodes, "widen", ends[:1], ends[1:], [size])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "widen.onnx")

    found = inference.onnx_memory(tmp_path / "widen.onnx", torch.zeros(1))

    assert 0.95 <= found / 2**20 / 96 <= 2.3
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(RuntimeError, match=r"ONNX Runtime cannot run broken\.onnx"):
        inference.onnx_memory(tmp_path / "broken.onnx", torch.zeros(1))


@pytest.mark.slow
def test_compiled_inference_is_compared(tmp_path: Path) -> None:
    arguments = ["infer", *TINY, "--size", "32", "--rounds", "1", "--trained-frames", "2", "4"]

    (comparison,) = measure(
        tmp_path / "infer.json", *arguments, "--batch-size", "1", "--frames", "4", "--compile"
    )["comparisons"]

    name = "fused, bf16, compiled" if has_bf16() else "fused, compiled"
    assert [form for form in names(comparison) if "compiled" in form] == [name]
    assert (name, "as trained") in [(r["name"], r["over"]) for r in comparison["ratios"]]


@pytest.mark.slow
def test_layers_are_compared_with_equal_forms(tmp_path: Path) -> None:
    written = measure(tmp_path / "layers.json", "layers", "--frames", "2", "--rounds", "1")

    for comparison in written["comparisons"]:
        assert "ffn" in names(comparison)
        assert {ratio["name"] for ratio in comparison["ratios"]} == {"ffn"}
    stored = json.loads((RESULTS / "layers_intel_xeon.json").read_text())  # measured anew if one
    assert len(written["comparisons"]) == len(stored["comparisons"])  # was added
    table = (tmp_path / "layers.md").read_text()
    assert table.count("\n| ") == 1 + sum(len(c["ratios"]) for c in written["comparisons"])


def test_layers_with_other_outputs_are_refused() -> None:
    forms = {"one": lambda x: x, "two": lambda x: 1.001 * x}
    with pytest.raises(RuntimeError, match=r"two differs from one by 1\.0e-03"):
        _check_equal(Layer("a layer", forms, torch.ones(3), trains=False))
    forms = {"one": lambda x: x, "two": lambda x: x.detach() + 0 * x}
    with pytest.raises(RuntimeError, match=r"two differs from one by 1\.0e"):
        _check_equal(Layer("a layer", forms, torch.ones(3), trains=True))


VIDEOS = ["--videos", "2", "--rounds", "1", "--video-frames", "10", "--gop", "4"]


def test_data_is_measured_on_generated_videos_of_each_size(tmp_path: Path) -> None:
    arguments = ["data", "--size", "28", "56", *VIDEOS, "--workers", "1"]

    written = measure(tmp_path / "data.json", *arguments, "--frames", "2", "4")

    comparisons = written["comparisons"]
    titles = [c["title"].split(";")[0] for c in comparisons]
    for size, part in (("28", titles[:4]), ("56", titles[4:])):
        assert part == [
            f"views 2, 4 of {size} px from 2 videos, mp4, GOP 4",
            f"4 frames of 2 videos for {size} px, frames alone",
            f"4 frames of 2 videos for {size} px, whole samples",
            f"views 2, 4 of {size} px from 2 videos through 1 workers",
        ]
    forms = ["mp4, GOP 4", "JPEG files", "store, JPEG", "store, raw"]
    assert [names(comparison) for comparison in comparisons[:4]] == [
        ["one decode", "one decode, nested", "a decode per view"],
        [*forms, "memory copy"],
        [*forms, "JPEG files, PIL"],
        forms,
    ]
    assert all(ratio["memory"] is None for c in comparisons for ratio in c["ratios"])
    sizes = comparisons[1]["title"].split("MiB per video: ")[1]
    raw = float(sizes.rsplit(" ", 1)[1])
    assert raw == pytest.approx(10 * 32 * 42 * 3 / 2**20, rel=0.05)  # 10 frames of 32 x 42


def test_archives_are_measured_with_each_model(tmp_path: Path) -> None:
    arguments = ["archive", "--model", "tsm_tiny", "tea_tiny", "--device", "cpu", "--size", "28"]
    arguments += ["--frames", "2", "--videos", "2", "--video-frames", "10", "--rounds", "1"]

    written = measure(tmp_path / "archive.json", *arguments, "--workers", "0")

    titles = [c["title"].split(", fused")[0] for c in written["comparisons"]]
    rest = "2 videos, 2 frames of 28 px, batches of 16, 0 reading processes"
    assert titles == [f"{model}, {rest}" for model in ("tsm_tiny", "tea_tiny")]
    (_, _, bound) = written["comparisons"][0]["ratios"]
    assert (bound["name"], bound["over"]) == ("archive", "the slower one")
    assert written["measured"]["cores"] >= 1
    assert "memory" not in written["measured"]


@pytest.mark.slow
def test_an_interrupted_benchmark_keeps_what_it_has_measured_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compare = inference.compare_inference

    def interrupted(*given: Any, **more: Any) -> Iterator[Any]:
        yield next(iter(compare(*given, **more)))
        raise KeyboardInterrupt

    monkeypatch.setattr(inference, "compare_inference", interrupted)
    output = tmp_path / "infer.json"
    arguments = ["infer", *TINY, "--size", "32", "--rounds", "1", "--frames", "2", "4"]

    assert main([*arguments, "--output", str(output)]) == 130
    (comparison,) = json.loads(output.read_text())["comparisons"]
    assert comparison["title"].startswith("tsm_tiny, 2 frames")
    assert "2 frames" in output.with_suffix(".md").read_text()
    assert "tsm_tiny, 2 frames" in " ".join(capsys.readouterr().out.split())

    monkeypatch.undo()
    arguments += ["--output", str(output), "--resume"]
    assert main([*arguments, "--rounds", "2"]) == 2
    assert "has rounds 1, and this benchmark 2; choose another" in capsys.readouterr().err
    assert main([*arguments, "--overwrite"]) == 2
    assert main([*arguments, "--batch-size", "2", "1"]) == 0
    kept, *others = json.loads(output.read_text())["comparisons"]
    assert kept == comparison
    assert json.loads(output.read_text())["options"]["batch_size"] == [2, 1]
    titles = [other["title"].replace(" on sub-network", "").split(" at ")[0] for other in others]
    assert titles == [
        f"tsm_tiny, {t} frames 4, batches of {b}" for b, t in ((1, 2), (2, 4), (1, 4))
    ]
    output.write_text("[1]")
    assert main(arguments) == 2
    assert "is not a file of this benchmark" in capsys.readouterr().err


def test_an_existing_file_is_replaced_with_overwrite_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "infer.json"
    output.write_text("mine")
    arguments = ["infer", *TINY, "--size", "32", "--rounds", "1", "--frames", "2"]

    assert main([*arguments, "--output", str(output)]) == 2

    assert output.read_text() == "mine"
    assert (
        f"{output} exists; choose another --output, or add --overwrite" in capsys.readouterr().err
    )
    assert measure(output, *arguments, "--overwrite")["format"] == 1
    assert set(tmp_path.iterdir()) == {output, output.with_suffix(".md")}
    assert main([*arguments, "--output", str(tmp_path / "table.md")]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--model", "tsm_tinny"], 'no model "tsm_tinny"; did you mean tsm_tiny'),
        (["train", *TINY, "--frames", "8"], "--frames is 8; give two or more frame counts"),
        (["infer", *TINY, "--device", "tpu"], "--device is 'tpu'; allowed: cpu, cuda"),
        (["infer", *TINY, "--device", "cuda:99"], "--device is 'cuda:99'; torch finds"),
        (["data", "--root", "videos"], "--root videos needs --annotations"),
        (
            ["data", "--videos", "1", *VIDEOS[2:], "--size", "28"],
            "number of videos is 1; data load",
        ),
        (["infer", "--imports", "no_such_package"], "imports: cannot import 'no_such_package'"),
        (["data", "--annotations", "none.csv"], "annotations none.csv do not exist"),
    ],
)
def test_errors_take_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2

    error = capsys.readouterr().err
    assert error.startswith("benchmark.py: ")
    assert message in error


def test_zero_rounds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["infer", "--rounds", "0"])

    assert "'0' is not an integer of 1 or more" in capsys.readouterr().err
