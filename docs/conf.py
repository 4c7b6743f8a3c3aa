"""Build the documentation with Sphinx: the pages of docs/, the README, and the docstrings.

Text in code font that names a page (``docs/data.md``) or a public object (``ffn.load``) becomes a
link, in pages and docstrings alike. The directive ``command-help`` shows the help of every command.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import itertools
import os
import re
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from unittest import mock

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.domains.python import PyObject
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

import ffn
from ffn.cli import COMMANDS

project = "ffn"
version = release = ffn.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
highlight_language = "none"  # of blocks that name no language
html_theme = "furo"
smartquotes_action = "D"  # dashes; quotes stay as written, since some are code
html_title = f"ffn {version}"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_copy_source = False
html_show_copyright = False

default_role = "literal"
autodoc_default_options = {"members": True, "special-members": "__call__"}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
napoleon_use_ivar = True
napoleon_attr_annotations = False  # the signature has the types

# Files outside of docs/ that a page includes.
PAGES = {
    "README.md": "index",
    "model_zoo/README.md": "model_zoo",
    "CONTRIBUTING.md": "contributing",
    "CHANGELOG.md": "changelog",
}
# A name in code font: ffn.load, ffn.load("…"), or one of the module of the page: VideoDataset.
NAME = re.compile(r"(ffn(?:\.\w+)+|[A-Z]\w*[a-z]\w*|\w+_\w+)(\(.*\))?", flags=re.DOTALL)


def setup(app: Sphinx) -> None:
    """Add the directive, the links of texts in code font, and those of other names of objects."""
    app.add_directive("command-help", CommandHelp)
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"
    app.connect("doctree-read", link_code)
    app.connect("missing-reference", find_alias)


def link_code(app: Sphinx, doctree: nodes.document) -> None:
    """Turn texts in code font that name a page or may name an object into references."""
    page = app.env.docname
    for code in [*doctree.findall(nodes.literal)]:
        if any(isinstance(above, (nodes.reference, pending_xref)) for above in parents(code)):
            continue
        text = code.astext()
        link: dict[str, Any] = {"refdoc": page, "refexplicit": True}
        if text in PAGES or re.fullmatch(r"docs/\w+\.md", text):
            target = "/" + PAGES.get(text, Path(text).stem)
            link |= {"refdomain": "std", "reftype": "doc", "reftarget": target, "refwarn": True}
        elif found := NAME.fullmatch(text):
            link |= {"refdomain": "py", "reftype": "obj", "reftarget": found[1]}
            link["py:module"] = Path(page).name if page.startswith("reference/") else "ffn"
        else:
            continue
        code.replace_self(pending_xref("", code.deepcopy(), **link))


def parents(node: nodes.Node) -> list[nodes.Node]:
    """Nodes that contain a node, the nearest first."""
    return [] if node.parent is None else [node.parent, *parents(node.parent)]


def find_alias(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element
) -> nodes.reference | None:
    """Link a name by which an object is imported to where the object is documented."""
    if node["refdomain"] != "py":
        return None
    target, module = node["reftarget"], node.get("py:module")
    # Autodoc's "FILE:docstring of ffn.zoo.create.load": the target may be a name of ffn.zoo.create.
    source = re.search(r"docstring of (ffn[\w.]*)", node.source or "")
    outer = [*itertools.accumulate((source[1] if source else module or "ffn").split("."), joined)]
    for name in [target, f"{module}.{target}", *(f"{name}.{target}" for name in reversed(outer))]:
        place = (found := find(name)) is not None and documented(env).get(id(found))
        if place:
            docname, anchor = place
            return make_refnode(app.builder, node["refdoc"], docname, anchor, content, name)
        if f"reference/{name}" in env.all_docs:
            return make_refnode(
                app.builder, node["refdoc"], f"reference/{name}", None, content, name
            )
    return None


@functools.cache
def documented(env: BuildEnvironment) -> dict[int, tuple[str, str]]:
    """Page and anchor of each object of the reference, by its identity."""
    entries = env.domains.python_domain.objects.items()
    return {id(find(name)): (entry.docname, entry.node_id) for name, entry in entries}


def joined(package: str, name: str) -> str:
    """A dotted name."""
    return f"{package}.{name}"


def find(name: str) -> Any:
    """Import an object by its dotted name; None if it does not exist."""
    first, *rest = name.split(".")
    if first != "ffn":
        return None
    try:  # ffn.export is the function, as in `import ffn`, not the package
        return functools.reduce(getattr, rest, ffn)
    except AttributeError:
        try:
            return resolve_name(name)
        except (AttributeError, ImportError, ValueError):
            return None


class CommandHelp(SphinxDirective):
    """A section with the text of ``ffn COMMAND --help`` for each command."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        sections = []
        for command, meaning in COMMANDS.items():
            title = nodes.title("", "", nodes.literal("", f"ffn {command}"))
            section = nodes.section("", title, ids=[f"ffn-{command}"], names=[f"ffn {command}"])
            text = help_text(command)
            block = nodes.literal_block(text, text, language="none")
            section += [nodes.paragraph("", f"{meaning[0].upper()}{meaning[1:]}."), block]
            sections.append(section)
        return sections


def help_text(command: str, *subcommand: str) -> str:
    """What ``ffn COMMAND --help`` prints on a console of 88 columns, and its subcommands."""
    shown = io.StringIO()
    main = importlib.import_module(f"ffn.cli.{command}").main
    with (
        mock.patch.object(sys, "argv", ["ffn"]),
        mock.patch.dict(os.environ, {"COLUMNS": "88"}),
        contextlib.redirect_stdout(shown),
        contextlib.suppress(SystemExit),
    ):
        main([*subcommand, "--help"])
    text = shown.getvalue()
    inner = re.match(rf"usage: ffn {command} \[-h\] (\w+(?:\|\w+)+) ", text)
    names = inner[1].split("|") if inner else []
    return "\n".join([text, *(help_text(command, name) for name in names)])
