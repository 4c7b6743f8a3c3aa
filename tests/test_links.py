"""Links, anchors and paths in the Markdown files, and the check of the built site."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(
    [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        ROOT / "model_zoo/README.md",
        ROOT / "tests/README.md",
    ]
)
CHECKER = ROOT / "docs/check_links.py"


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$|`[^`]*`", "", text, flags=re.DOTALL | re.MULTILINE)


def links(text: str) -> list[str]:
    """Targets of inline links and images, link definitions, and addresses in <>."""
    text = without_code(text)
    inline = re.findall(r"\]\(\s*<?([^)\s>]*)", text)
    defined = re.findall(r"^\[[^\]]+\]:\s*(\S+)", text, flags=re.MULTILINE)
    return [*inline, *defined, *re.findall(r"<(https?:[^>]*)>", text)]


def anchors(text: str) -> set[str]:
    """Anchors of the headings: lower case, without punctuation, numbered if repeated."""
    found: set[str] = set()
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    for title in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
        copies = (f"{slug}-{n}" for n in range(1, 1000))
        found.add(slug if slug not in found else next(s for s in copies if s not in found))
    return found


def problems(path: Path) -> list[str]:
    broken = []
    for link in links(path.read_text()):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            if parts.scheme not in ("http", "https") or "." not in (parts.hostname or ""):
                broken.append(link)
            continue
        target = (path.parent / parts.path).resolve() if parts.path else path
        if not target.exists() or (
            parts.fragment and parts.fragment not in anchors(target.read_text())
        ):
            broken.append(link)
    return broken


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_anchors_exist(path: Path) -> None:
    assert problems(path) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_in_code_font_exist(path: Path) -> None:
    """`docs/data.md`, which the site turns into a link, and paths of programs and configs."""
    if path.name == "CHANGELOG.md":
        return  # which also names what was removed
    for name in re.findall(
        r"(?<![\w/.])(?:docs|examples|tools|tests|configs|ffn)/[\w./]+\.(?:md|py|js|yaml)",
        path.read_text(),
    ):
        assert (ROOT / name).is_file(), name


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# One `two`: three\n## Same\n```\n# code\n```\n## Same\n")
    assert anchors((tmp_path / "b.md").read_text()) == {"one-two-three", "same", "same-1"}
    (tmp_path / "a.md").write_text(
        "# A\n[x](b.md) [y](b.md#one-two-three) [z](#a) <https://a.org> `[q](no.md)`\n"
        "[1](c.md) ![2](b.png) [3](b.md#code) [4](#b) [5](htp://a.org) [6](https://a)\n[r]: d.md\n"
    )
    broken = ["c.md", "b.png", "b.md#code", "#b", "htp://a.org", "https://a", "d.md"]
    assert problems(tmp_path / "a.md") == broken


def test_broken_links_of_a_site_are_found(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "outside.css").touch()
    site = tmp_path / "sub"
    (site / "a b.html").write_text('<p id="x">1</p><a name="y">2</a>')
    (site / "a.png").touch()
    good = ["a%20b.html", "a%20b.html#x", "a%20b.html#y", "#", "#here", "a.png", "https://a.b/c"]
    bad = ["b.html", "a%20b.html#z", "#there", "c.png", "../outside.css"]
    (site / "index.html").write_text(
        "".join(f'<a id="here" href="{link}">.</a><img src="{link}">' for link in good + bad)
    )

    found = runpy.run_path(str(CHECKER))["broken_links"](site)

    assert found == [f"index.html: {link}" for link in bad for _ in range(2)]
    done = subprocess.run([sys.executable, CHECKER, site], capture_output=True, text=True)
    assert done.returncode == 1
    assert "2 pages, 10 broken links" in done.stdout
    for folder in (site / "none", tmp_path / "none"):
        assert subprocess.run([sys.executable, CHECKER, folder], stderr=-3).returncode == 2
