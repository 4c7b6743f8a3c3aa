"""The documents: code blocks run, commands are accepted, paths exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import ffn
from ffn.datasets.synthetic import generate

ROOT = Path(__file__).parents[1]
HOW_TO = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SHIPPED = "tsm_tiny.motion_f4_8_16"


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), flags=re.DOTALL)


def commands(name: str) -> Iterator[list[str]]:
    """The arguments of each ``ffn NAME …`` and ``tools/NAME.py …`` of the documents."""
    for path in HOW_TO:
        for block in blocks(path, "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                for start, word in enumerate(words):
                    if word == f"tools/{name}.py" or words[start - 1 : start + 1] == ["ffn", name]:
                        yield words[start + 1 :]


@pytest.mark.parametrize("page", ["README", "docs/frame_counts", "docs/predict", "docs/models"])
def test_python_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for code in blocks(ROOT / f"{page}.md", "python"):
        exec(compile(code, page, "exec"), names)
    assert "ffn" in names


def test_configs_and_options_of_the_documents_are_valid() -> None:
    from ffn.engine.config import load_config

    found = [*commands("train"), *commands("test")]
    assert len(found) > 15
    for words in found:
        config, *rest = (word for word in words if word not in ("--help", "CONFIG"))
        options = [word for word in rest if re.match(r"(model|task|data|train|optim|log)\.", word)]
        path = ROOT / "configs" / f"{config.removeprefix('configs/').removesuffix('.yaml')}.yaml"
        if path.is_file() and not any("imports=" in word for word in words):
            assert load_config(path, options).model.name


def test_paths_and_links_exist() -> None:
    broken = []
    for path in [*HOW_TO, ROOT / "model_zoo/README.md", *(ROOT / "docs/reference").glob("*.md")]:
        text = path.read_text()
        plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)#\s:]+)[)#]", plain):
            if not (path.parent / link).exists():
                broken.append(f"{path.name}: {link}")
        folders = "docs|examples|tools|tests|configs|ffn|model_zoo"
        pattern = rf"(?<![\w/.])(?:{folders})/[\w./]+\.(?:md|py|js|yaml)\b"
        broken += [f"{path.name}: {name}" for name in re.findall(pattern, text)
                   if not (ROOT / name).exists()]  # fmt: skip
    assert broken == []


@pytest.mark.slow
def test_first_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder per class of own clips: prepare, train, test, publish, predict, by the commands."""
    from ffn.cli import main

    monkeypatch.chdir(tmp_path)
    made = generate(tmp_path / "made", train_per_class=4, val_per_class=2)
    root = tmp_path / "own"
    for path in (made / "videos").glob("*.mp4"):
        label = re.sub(r"^(train|val)_|_\d+$", "", path.stem)
        (root / label).mkdir(parents=True, exist_ok=True)
        path.rename(root / label / path.name)

    def run(*words: object) -> str:
        assert main([str(word) for word in words]) == 0
        return capsys.readouterr().out

    shown = run("prepare", "folder", "--root", root, "--val-fraction", 0.34)
    line = next(line for line in shown.splitlines() if "ffn train" in line)
    options = [word for word in shlex.split(line) if word.startswith("data.")]
    small = ["model.name=tsm_tiny", "model.pretrained=false", f"model.weights={SHIPPED}",
             "data.crop=24", "data.resize=28", "data.workers=0", "train.epochs=1",
             "optim.warmup_epochs=0", "log.output=runs/own"]  # fmt: skip
    config = ROOT / "configs/quickstart/own_clips.yaml"
    assert "ffn test" in run("train", config, *options, *small)
    tested = run("test", config, *options, *small[:6], "--weights", "runs/own/best.pt",
                 "--frames", 4, 8, "--output", "tested")  # fmt: skip
    assert "ffn publish" in tested
    name = "tsm_tiny.own_f4_8_16"
    run("publish", "runs/own/best.pt", name, "--results", "tested/results.json")
    file = next(tmp_path.rglob(f"{name}.safetensors"))
    clip = next(root.rglob("*.mp4"))
    assert "sub-network 4" in run("predict", clip, "--weights", file, "--frames", 4)
    assert len(ffn.Predictor(file).classes) == 12
