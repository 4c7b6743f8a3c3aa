"""The accuracies and times of docs/inference.md, and others like them, are those of the results."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest
import torch

from ffn.zoo import create_model

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/inference.md").read_text()
RUNS = json.loads((ROOT / "model_zoo/results/motion_precisions.json").read_text())["runs"]
PRECISIONS = ("fp32", "bf16", "int8")
FAMILIES = ("tsm_tiny", "slowfast_tiny", "tea_tiny", "uniformer_tiny")
TOP1 = {
    family: {
        precision: [row["top1_mean"] for row in RUNS[f"{precision}/{family}"]["rows"]]
        for precision in PRECISIONS
    }
    for family in FAMILIES
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_rows_of_a_network(family: str) -> None:
    lines = PAGE.splitlines()
    first = next(i for i, x in enumerate(lines) if x.startswith(f"| `{family}.motion_any_f2_20`"))
    for line, frames, *top1 in zip(lines[first:], (4, 8, 16), *TOP1[family].values(), strict=False):
        count, *shown = [cell.strip() for cell in line.strip("|").split("|")][1:]
        assert int(count) == frames
        assert shown == [f"{value:.2f}" for value in top1]


def test_the_largest_differences() -> None:
    largest = {
        precision: max(
            abs(found - exact)
            for rows in TOP1.values()
            for found, exact in zip(rows[precision], rows["fp32"], strict=True)
        )
        for precision in ("bf16", "int8")
    }
    bf16, int8 = (f"{value:.2f}" for value in largest.values())
    assert f"bf16 differs from fp32 by {bf16} points or less, int8 by {int8} or less" in PAGE
    assert f"int8 is within {int8} points of that of fp32" in (ROOT / "docs/export.md").read_text()
    assert max(largest.values()) <= 0.5


def times_on(stem: str) -> dict[str, dict[str, float]]:
    """Milliseconds of a forward pass: title of the comparison -> form -> median."""
    content = json.loads((ROOT / f"model_zoo/results/{stem}.json").read_text())
    return {
        comparison["title"]: {
            form["name"]: 1e3 * statistics.median(form["seconds"])
            for form in comparison["variants"]
        }
        for comparison in content["comparisons"]
    }


def relative(stem: str, over: str = "as trained") -> dict[str, dict[str, float]]:
    """Time relative to a form, median of the rounds: title of the comparison -> form -> ratio."""
    content = json.loads((ROOT / f"model_zoo/results/{stem}.json").read_text())
    return {
        comparison["title"]: {
            ratio["name"]: 1 / ratio["speed"]
            for ratio in comparison["ratios"]
            if ratio["over"] == over
        }
        for comparison in content["comparisons"]
    }


def thousands(number: float, zeros: int) -> str:
    """A rounded number: 23,716 with two zeros is 23,700."""
    return f"{round(number, -zeros):,.0f}"


def title(model: str, frames: int, batch: int) -> str:
    """Of a comparison at 224 px of networks that are trained at 4, 8 and 16 frames."""
    return f"{model}, {frames} frames on sub-network {frames}, batches of {batch} at 224 px"


def test_what_the_page_says_of_times_on_cuda() -> None:
    page = (ROOT / "docs/inference.md").read_text()
    text, graph = " ".join(page.split()), ", CUDA graph"
    found = times_on("inference_nvidia_h200_compiled")
    rows = [found[title("tsm_r50", 8, batch)] for batch in (1, 8, 64)]
    for name in ("as trained", "fused, bf16", "fused, bf16, compiled"):
        for form in (name, name + graph):
            if form not in rows[0]:
                continue
            digits = [2, 2, 1] if "graph" in form or "compiled" in form else [1, 1, 1]
            cells = [f"{row[form]:.{n}f}" for row, n in zip(rows, digits, strict=True)]
            shown = f"{form}, fp32" if form == "as trained" else form
            assert f"| {shown} | {' | '.join(cells)} |" in page
    rate = 64 * 8 / rows[2]["fused, bf16, compiled" + graph]  # frames in a millisecond
    assert f"The last is {thousands(1e3 * rate, 2)} frames/s" in text

    found = times_on("inference_nvidia_h200") | times_on("inference_nvidia_h200_batches_of_64")
    for batch, digits, sentence in (
        (1, 2, "take {new} in place of {old} ms (1 clip"),
        (8, 2, "{new} in place of {old} ms (8 clips)"),
        (64, 1, "and {new} in place of {old} ms (64 clips"),
    ):
        row = found[title("tsm_r50", 16, batch)]
        forms = {"new": "fused, bf16, packed" + graph, "old": "fused, bf16" + graph}
        assert sentence.format(**{k: f"{row[v]:.{digits}f}" for k, v in forms.items()}) in text
    for model, frames in (("slowfast_r50", 16), ("tea_r50", 4)):
        row = found[title(model, frames, 1)]
        assert f"{row['fused, bf16, packed' + graph]:.2f} ms with `{model}`" in text
    row = found[title("tea_r50", 4, 1)]
    assert f"takes {row['fused'] / row['as trained']:.1f} times as long in fp32" in text


def test_what_the_page_says_of_training_on_cuda() -> None:
    text = " ".join((ROOT / "docs/training_memory.md").read_text().split())
    name = "model_zoo/results/training_throughput_nvidia_h200.json"
    found = json.loads((ROOT / name).read_text())
    eager, compiled = found["steps"][0], found["steps"][2]
    kernels = found["kernels_ms"]["together, compiled"]
    for step in (eager, compiled):
        rate = 1e3 * found["frames_per_step"] / step["ms"]
        assert rate == pytest.approx(step["frames_per_s"], rel=1e-3)
    assert f"runs at {thousands(eager['frames_per_s'], 1)} frames/s" in text
    assert f"compiled at {thousands(compiled['frames_per_s'], 1)}" in text
    assert f"take {kernels['all']:.0f} of its {compiled['ms']:.0f} ms" in text
    rate = 1e3 * found["frames_per_step"] / kernels["all"]
    assert f"which is {thousands(rate, 1)} frames/s" in text
    assert f"Convolutions take {kernels['convolutions']:.0f} of these" in text
    network, outputs = create_model("tsm_r50", num_classes=174).eval(), []
    for layer in network.modules():
        if isinstance(layer, torch.nn.Conv2d):
            layer.register_forward_hook(lambda *given: outputs.append(given[2].numel()))
    with torch.inference_mode():
        network(torch.zeros(1, 3, 1, 224, 224))
    assert len(outputs) == 53
    assert f"have {sum(outputs) / 1e6:.1f} million outputs" in text
    moved = 14 * 2 * sum(outputs)
    assert f"moves {moved / 1e6:.0f} MB" in text
    limit = found["measured"]["copy_tb_per_s"] * 1e12 / moved
    assert f"would allow {thousands(limit, 2)} frames/s" in text


def test_what_the_page_says_of_int8_on_tiny_networks() -> None:
    text = " ".join((ROOT / "docs/export.md").read_text().split())
    found = times_on("inference_tiny_intel_xeon")
    sentences = []
    for model, frames, digits in (("tsm_tiny", 8, 2), ("slowfast_tiny", 16, 1)):
        row = found[title(model, frames, 1).replace("224", "24")]
        sentences.append([f"{row[f'ONNX Runtime{kind}']:.{digits}f}" for kind in (", int8", "")])
    (tsm_int8, tsm), (slowfast_int8, slowfast) = sentences
    assert f"takes {tsm_int8} ms in int8 and {tsm} ms in fp32 with `tsm_tiny` (8 frames)" in text
    assert f"but {slowfast_int8} and {slowfast} ms with `slowfast_tiny` (16 frames" in text


GOALS = (
    ("tsm_r50", "fp32, packed", 0.60),
    ("tsm_r50", "bf16, packed", 0.28),
    ("slowfast_r50", "bf16, packed", 0.26),
    ("tea_r50", "bf16, packed", 0.38),
    ("uniformer_s", "fp32, packed", 0.90),
    ("uniformer_s", "bf16, packed", 0.38),
)


@pytest.mark.parametrize(("model", "kind", "goal"), GOALS)
def test_the_goals_of_inference(model: str, kind: str, goal: float) -> None:
    """Ratios to version 0.1 on the Xeon, and to the network as trained on the others."""
    form = f"fused, {kind.removeprefix('fp32, ')}"
    versions = relative("versions_inference_intel_xeon", "before, as trained")
    counts = (4, 8, 16)
    titles = [f"{model}, forward pass, {t} frames, batches of 1 at 224 px" for t in counts]
    xeon = [versions[one][f"now, {form}"] for one in titles]
    zen_4 = [relative("inference_amd_epyc_family_25")[title(model, t, 1)][form] for t in counts]
    first = relative("inference_amd_epyc")[title(model, 8, 1)]
    text = (ROOT / "docs/inference.md").read_text()
    trained = [row["now, as trained"] for row in versions.values()]
    shown = f"takes {min(trained):.2f} to {max(trained):.2f} of the time of 0.1 on the Xeon"
    assert shown in " ".join(text.split())
    (row,) = re.findall(rf"^\| `{model}`, {re.escape(kind)} \| (.*) \|$", text, re.MULTILINE)
    shown_goal, shown_first, shown_xeon, shown_zen_4 = row.split(" | ")
    assert shown_goal == f"{goal:.2f}"
    unpacked = form.removesuffix(", packed")  # networks were not packed yet
    assert shown_first == f"{first[unpacked]:.2f}"
    for shown, found in ((shown_xeon, xeon), (shown_zen_4, zen_4)):
        numbers, _, missed = shown.partition(":")
        assert numbers == " / ".join(f"{ratio:.2f}" for ratio in found)
        late = [t for t, ratio in zip(counts, found, strict=True) if round(ratio, 2) > goal]
        words = f" missed for {' and '.join(map(str, late))} frames" if len(late) < 3 else " missed"
        assert missed == ("" if not late else words)


def test_what_the_pages_say_of_the_allocator() -> None:
    found = relative("allocator_inference_intel_xeon", "before, as trained")
    titles = [f"tsm_r50, forward pass, {t} frames, batches of 1 at 224 px" for t in (8, 16)]
    short, long = (f"{found[one]['now, as trained']:.2f}" for one in titles)
    pages = {name: " ".join((ROOT / name).read_text().split()) for name in ALLOCATOR_PAGES}
    assert f"takes {short} of the time for 8 frames and {long} for 16" in pages["docs/inference.md"]
    (step,) = relative("allocator_training_intel_xeon", "before").values()
    text = pages["docs/training_memory.md"]
    name = "model_zoo/results/allocator_training_intel_xeon.json"
    content = json.loads((ROOT / name).read_text())
    peaks = {one["name"]: one["peak_bytes"] for one in content["comparisons"][0]["variants"]}
    memory = peaks["now"] / peaks["before"]
    assert f"takes {step['now']:.2f} of the time at {memory:.2f} of the memory" in text
    assert f"a forward pass of 16 frames takes {long} of the time" in text
    last = f"takes {step['now']:.2f} of the time, and a forward pass of 16 frames {long}."
    assert last in pages["CHANGELOG.md"]


ALLOCATOR_PAGES = ("docs/inference.md", "docs/training_memory.md", "CHANGELOG.md")
FORMS = (
    "fused",
    "fused, packed",
    "fused, bf16, packed",
    "fused, bf16, compiled",
    "ONNX Runtime",
    "ONNX Runtime, int8",
)


def span(ratios: list[float]) -> str:
    """The least and the most: "0.51 to 0.54", or one number if both are shown as the same."""
    low, high = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    return low if low == high else f"{low} to {high}"


XEON = {1: "inference_intel_xeon", 8: "inference_intel_xeon_batches_of_8"}


@pytest.mark.parametrize("model", ["tsm_r50", "slowfast_r50", "tea_r50", "uniformer_s"])
@pytest.mark.parametrize("batch", XEON)
def test_the_table_of_the_xeon(model: str, batch: int) -> None:
    found = relative(XEON[batch])
    of = [found[title(model, frames, batch)] for frames in (4, 8, 16)]
    row = " | ".join(span([each[form] for each in of]) for form in FORMS)
    assert f"| `{model}`, {batch} clip{'s' * (batch > 1)} | {row} |" in PAGE


def test_what_the_page_says_of_the_xeon() -> None:
    text = " ".join(PAGE.split())
    files = [
        json.loads((ROOT / f"model_zoo/results/{name}.json").read_text()) for name in XEON.values()
    ]
    content = files[0]
    found = {one["title"]: one for file in files for one in file["comparisons"]}
    batch = found[title("tsm_r50", 16, 8)]["variants"]
    memory = {form["name"]: f"{form['peak_bytes'] / 2**20:,.0f}" for form in batch}
    assert f"is {memory['as trained']} MiB as trained, {memory['fused, bf16, packed']}" in text
    assert f"{memory['fused, bf16, compiled']} compiled in bf16" in text
    assert f"{memory['ONNX Runtime']} in fp32 and {memory['ONNX Runtime, int8']} in int8" in text
    one = found[title("tsm_r50", 8, 1)]
    speeds = {
        form["name"]: 2 * one["macs"] / statistics.median(form["seconds"]) / 1e9
        for form in one["variants"]
    }
    product = content["measured"]["product_gflops"]
    trained, packed = speeds["as trained"], speeds["fused, packed"]
    assert f"reaches {product['fp32']:.0f} GFLOP/s on one core, `tsm_r50` as trained" in text
    assert f"as trained {trained:.0f} and packed {packed:.0f} (8 frames)" in text
    assert f"0.60 of the time would be {trained / 0.6:.0f}" in text
    half = speeds["fused, bf16, packed"]
    assert f"reaches {product['bf16']:,.0f} GFLOP/s, and packed `tsm_r50` {half:.0f}" in text
    one, eight = (
        span([each["fused"] for each in relative(name, "plain, fused").values()])
        for name in XEON.values()
    )
    assert f"in the tables of the Xeon, {one} for single clips and" in text
    assert f"beside other programs, {eight} for batches" in text


LAYERS = {  # first words of the rows of the page: first words of the titles, and the other form
    "temporal shift": ("temporal shift", "writes to slices"),
    "weight alteration": ("shift, weight alteration", "of the features"),
    "temporal convolution of TEA": ("temporal convolution of TEA", "nn.Conv1d over pixels"),
    "AdamW": ("AdamW", "for loop"),
    "convolution (3, 1, 1)": ("temporal (3, 1, 1) convolution", "nn.Conv3d"),
    "pointwise": ("pointwise", "nn.Conv3d"),
    "position embedding": ("position embedding", "two operations"),
    "convolution, BatchNorm": ("1 x 1 convolution, BatchNorm", "three layers"),
    "stem of 5 x 7 x 7": ("stem of 5 x 7 x 7", "nn.Conv3d"),
    "attention of UniFormer, bf16": ("attention of UniFormer in bf16", "softmax of scores"),
    "motion excitation": ("motion excitation of TEA", "product and sum"),
    "three packed": ("three packed", "sums in new tensors"),
}


@pytest.mark.parametrize("row", LAYERS)
def test_the_table_of_layers(row: str) -> None:
    start, other = LAYERS[row]
    lines = (ROOT / "model_zoo/results/layers_intel_xeon.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    (found,) = [each for each in cells if each[0].startswith(start) and each[1] == other]
    (shown,) = [line for line in PAGE.splitlines() if line.startswith(f"| {row}")]
    ours = [cell.strip() for cell in shown.strip("|").split("|")]
    assert ours[-2:] == [found[2], found[4]]


def test_what_the_page_says_of_spatial_convolutions() -> None:
    text = " ".join(PAGE.split())
    found = {}
    for frames, stem in ((8, "layers_intel_xeon"), (4, "layers_4_frames_intel_xeon")):
        for name, ratios in relative(stem, "nn.Conv3d").items():
            if name.startswith(f"spatial (1, 3, 3) convolution of a clip, {frames} frames"):
                (found[frames],) = ratios.values()
    assert f"takes {found[8]:.2f} of the time of `nn.Conv3d` for 8 frames" in text
    assert f"because it takes {found[4]:.2f} for 4" in text
