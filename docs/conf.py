"""Build the documentation with Sphinx: the pages of docs/, the README, and the docstrings.

The directive ``command-help`` shows the help of every command.
"""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from unittest import mock

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import ffn
from ffn.cli import COMMANDS, main

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
autodoc_default_options = {"special-members": "__call__"}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
napoleon_use_ivar = True
napoleon_attr_annotations = False  # the signature has the types


ROOT = Path(__file__).parents[1]
# Where the links of the README lead on the site.
LINKS = {
    "](docs/": "](",
    "](model_zoo/README.md)": "](model_zoo.md)",
    "](model_zoo/": "](../model_zoo/",
    "](CONTRIBUTING.md)": "](contributing.md)",
}


def setup(app: Sphinx) -> None:
    """Add the directive, and the README as the first page."""
    app.add_directive("command-help", CommandHelp)
    app.connect("source-read", insert_readme)


def insert_readme(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the README before the contents of the site."""
    if page == "index":
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        for link, target in LINKS.items():
            text = text.replace(link, target)
        source[0] = f"{text}\n{source[0]}"


class CommandHelp(SphinxDirective):
    """A section with the text of ``ffn COMMAND --help`` for each command."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        sections = []
        for command in COMMANDS:
            title = nodes.title("", "", nodes.literal("", f"ffn {command}"))
            section = nodes.section("", title, ids=[f"ffn-{command}"], names=[f"ffn {command}"])
            text = help_text(command)
            section += nodes.literal_block(text, text, language="none")
            sections.append(section)
        return sections


def help_text(command: str) -> str:
    """What ``ffn COMMAND --help`` prints on a console of 88 columns."""
    shown = io.StringIO()
    environment = {"COLUMNS": "88", "NO_COLOR": "1", "TERM": "dumb"}
    with (
        mock.patch.dict(os.environ, environment),
        contextlib.redirect_stdout(shown),
        contextlib.suppress(SystemExit),
    ):
        main([command, "--help"])
    return shown.getvalue()
