"""The reference in docs/reference/ has every public name, and its references exist."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import ffn
from ffn.datasets.synthetic import generate

ROOT = Path(__file__).parents[1]
PAGES = {path.stem: path.read_text() for path in (ROOT / "docs/reference").glob("*.md")}
MODULES = ["ffn", *(m.name for m in pkgutil.walk_packages(ffn.__path__, "ffn."))]
PUBLIC = [name for name in MODULES if hasattr(importlib.import_module(name), "__all__")]
DIRECTIVE = re.compile(r"^\.\. (currentmodule|auto\w+|py:data):: (\S+)$", flags=re.MULTILINE)


def described() -> list[str]:
    """Dotted names of the objects with an entry of their own, page by page."""
    names = []
    for text in PAGES.values():
        module = ""
        for kind, name in DIRECTIVE.findall(text):
            if kind == "currentmodule":
                module = name
            elif kind != "automodule":
                names.append(f"{module}.{name}")
    return names


def find(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def test_the_public_packages_are_found() -> None:
    assert {"ffn", "ffn.core", "ffn.data.store", "ffn.engine.tasks", "ffn.zoo.remap"} <= {*PUBLIC}
    assert len(described()) > 150


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_has_an_entry_or_points_to_one(package: str) -> None:
    """A name that several packages export has one entry; the others name it in code font."""
    objects = {id(find(name)) for name in described()}
    text = " ".join(PAGES.values())
    for name in importlib.import_module(package).__all__:
        full = f"{package}.{name}"
        if full not in described():
            assert f"`{full}`" in text, f"{full} is not in docs/reference/"
            is_package = isinstance(find(full), ModuleType)  # ffn.export, which can be called
            assert is_package or id(find(full)) in objects, (
                f"{full} has no entry in docs/reference/"
            )


def test_entries_exist_and_are_public() -> None:
    names = described()
    objects = [find(name) for name in names]
    assert len({*names}) == len(names)
    functions = [o for o in objects if inspect.isfunction(o) or isinstance(o, type)]
    assert len({*functions}) == len(functions), "described twice, under two names"
    for name in names:
        package, _, last = name.rpartition(".")
        if hasattr(importlib.import_module(package), "__all__"):
            assert last in importlib.import_module(package).__all__, name


def test_every_package_of_a_page_is_in_the_contents_and_in_the_index() -> None:
    contents = (ROOT / "docs/index.md").read_text()
    for page in PAGES:
        assert f"\nreference/{page}\n" in contents
        assert page == "index" or f"`{page}`" in PAGES["index"] or f"({page}.md)" in PAGES["index"]


def docstrings(node: ast.AST, outer: tuple[str, ...] = ()) -> Iterator[tuple[tuple, str]]:
    """Each docstring below a node, with the names of the classes and functions around it."""
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
        yield outer, ast.get_docstring(node) or ""
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, (ast.ClassDef, ast.FunctionDef))
        yield from docstrings(child, (*outer, child.name) if named else outer)


def exists(target: str, module: ModuleType, outer: tuple[str, ...]) -> bool:
    """Whether a name in a docstring is one of the module, of a class around it, or an import."""
    words = target.split(".")
    for depth in range(len(outer) + 1):
        try:
            place = functools.reduce(getattr, outer[:depth], module)
            functools.reduce(getattr, words, place)
            return True
        except AttributeError:
            continue
    try:
        pkgutil.resolve_name(target)
    except (AttributeError, ImportError):
        return False
    return True


def test_references_in_docstrings_exist() -> None:
    checked, missing = 0, []
    for name in MODULES:
        module = importlib.import_module(name)
        for outer, text in docstrings(ast.parse(Path(module.__file__).read_text())):
            for target in re.findall(r":(?:func|class|meth|mod|attr|exc|data):`~?([^`]+)`", text):
                checked += 1
                if not exists(target, module, outer):
                    missing.append(f"{name}: {target}")
    assert checked > 100
    assert missing == []


def test_a_missing_reference_is_found() -> None:
    module = importlib.import_module("ffn.core.flexible")
    assert exists("forward", module, ("FrameFlexible", "select"))
    assert exists("ffn.zoo.load", module, ())
    assert not exists("forwards", module, ("FrameFlexible",))
    assert not exists("ffn.zoo.loads", module, ())


def test_the_snippets_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    snippets = {
        name: re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
        for name, text in PAGES.items()
    }
    ((page, (code,)),) = ((name, found) for name, found in snippets.items() if found)
    generate(tmp_path / "data/motion", train_per_class=2, val_per_class=1)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)

    exec(compile(code, page, "exec"), {})

    printed = capsys.readouterr().out.splitlines()[-1]
    assert f"print(best)  # {printed}" in code
    assert ffn.load(tmp_path / printed).trained_frames == (4, 8, 16)
