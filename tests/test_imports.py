"""Import rules between the folders of ffn, and the cost of ``import ffn``."""

from __future__ import annotations

import ast
import configparser
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = {
    "layers": set(),
    "backbones": {"layers"},
    "core": set(),
    "data": set(),
    "datasets": {"data"},
    "evaluation": {"core", "data", "export"},
    "zoo": {"backbones", "core"},
    "export": {"core"},
    "engine": {"core", "data", "evaluation", "zoo"},
    "benchmarks": {"backbones", "core", "data", "engine", "evaluation"}
    | {"export", "layers", "serve", "zoo"},
    "serve": {"zoo", "data", "core", "evaluation", "export"},
    "cli": None,  # everything
}
# Files that every folder may import.
SHARED = {"clips", "devices", "files", "frame_counts", "interrupts", "label_kinds", "labels"}
SHARED |= {"limits", "recomputation", "registry", "texts", "version"}
# Packages that a folder may import besides the standard library; no entry: any.
LIBRARIES = {
    "layers": {"torch", "einops"},
    "core": {"torch"},
    "backbones": {"torch", "timm", "einops"},
}
FILES = sorted((ROOT / "ffn").rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Dotted names of all that a file imports, at its top or inside functions."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*start, *([node.module] if node.module else [])])
            # `from ffn import core` names a folder after `import`.
            yield from (f"{module}.{alias.name}" for alias in node.names)


def room_of(path: Path) -> str | None:
    parts = path.relative_to(ROOT / "ffn").parts
    return parts[0] if len(parts) > 1 else None


def test_rooms_import_one_way() -> None:
    assert {room_of(path) for path in FILES} == {None, *ROOMS}
    for path in FILES:
        room = room_of(path)
        if room is None:
            continue  # ffn/__init__.py imports from all folders
        for name in imports(path):
            first, *rest = name.split(".")
            if first == "ffn":
                allowed = ROOMS[room]
                known = allowed is None or rest[0] in {*allowed, *SHARED, room}
            else:
                known = room not in LIBRARIES or first in LIBRARIES[room] | sys.stdlib_module_names
            assert known, f"{path} imports {name}"
            assert first not in ("tools", "tests"), f"{path} imports {name}"


# The modules with the options, and the modules that may import them.
OPTIONS = {"ffn.engine.options", "ffn.engine.config"}
READERS_OF_OPTIONS = ("ffn.engine.build", "ffn.engine.config", "ffn.engine.options", "ffn.cli.")


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}


def imported_modules(path: Path) -> set[str]:
    """Modules of ffn that a file imports, anywhere in it; not ffn itself."""
    found = set()
    for name in imports(path):
        while name and name not in MODULES:  # a class or function: the module that has it
            name = name.rpartition(".")[0]
        found.add(name)
    return found - {"", "ffn", module_of(path)}


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = {module: imported_modules(path) for module, path in MODULES.items() if module != "ffn"}
    assert "ffn.engine.train_step" in graph["ffn.engine.checkpointer"]

    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def test_only_build_config_and_cli_import_the_options() -> None:
    importers = {module for module, path in MODULES.items() if imported_modules(path) & OPTIONS}

    assert {"ffn.engine.build", "ffn.engine.build_data", "ffn.cli.arguments"} <= importers
    assert not {m for m in importers if not f"{m}.".startswith(READERS_OF_OPTIONS)}


def test_tools_are_thin_and_nobody_imports_them() -> None:
    for path in sorted((ROOT / "tools").glob("*.py")):
        assert len(path.read_text().splitlines()) <= 15, path
        assert all(name.startswith(("ffn.__main__.", "sys")) for name in imports(path)), path
    for path in sorted((ROOT / "tests").rglob("*.py")):
        assert not any(name.split(".")[0] == "tools" for name in imports(path)), path


def test_imports_are_light() -> None:
    """ffn loads nothing heavy, and reading videos needs neither timm nor torchvision."""
    heavy = ("torch", "decord", "wandb", "av", "matplotlib", "timm", "rich")
    for module, absent in (("ffn", heavy), ("ffn.datasets", ("torchvision", "timm"))):
        code = f"import sys, {module}; print(*(name for name in {absent} if name in sys.modules))"
        process = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert process.stdout.split() == [], module


def test_every_package_is_installed() -> None:
    """setup.cfg lists packages by name; one that is missing works from a checkout alone."""
    listed = configparser.ConfigParser()
    listed.read(ROOT / "setup.cfg")
    there = {".".join(p.parent.relative_to(ROOT).parts) for p in ROOT.glob("ffn/**/__init__.py")}
    assert set(listed["options"]["packages"].split()) == there | {"ffn.configs", "ffn.model_zoo"}


# Modules whose package has another name, or which a package's extra brings.
PACKAGES = {
    "PIL": "pillow",
    "aiohttp": "fsspec[http]",
    "decord": "decord2",
    "fast_ctc_decode": "fast-ctc-decode",
    "onnx_ir": "onnxscript",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


def test_every_foreign_import_is_declared() -> None:
    """One that only another package brings breaks when that package drops it."""
    listed = configparser.ConfigParser()
    listed.read(ROOT / "setup.cfg")
    texts = [listed["options"]["install_requires"], *listed["options.extras_require"].values()]
    declared = {re.split("[<>=]", line)[0].strip() for text in texts for line in text.splitlines()}
    roots = {name.split(".")[0] for path in MODULES.values() for name in imports(path)}
    foreign = roots - {"ffn", *sys.stdlib_module_names}

    assert {PACKAGES.get(name, name) for name in foreign} <= declared
