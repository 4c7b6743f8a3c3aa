"""Check the links inside a built site: every page, file and anchor that is named exists.

python docs/check_links.py build/docs
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and the anchors of an HTML page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what the start of an element links to, and its anchor."""
        values = {name: value for name, value in attrs if value is not None}
        self.links += [values[name] for name in ("href", "src") if name in values]
        self.anchors |= {values[name] for name in ("id", "name") if name in values}


def broken_links(site: Path) -> list[str]:
    """Each link to a page, file or anchor that does not exist, with the page that has it.

    Addresses with a scheme or a host (``https://…``) are not checked.
    """
    site = site.resolve()
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            # "#" is the top of a page.
            missing = target in pages and anchor and anchor not in pages[target].anchors
            if missing or not target.is_relative_to(site) or not target.is_file():
                broken.append(f"{path.relative_to(site)}: {link}")
    return broken


def main() -> int:
    """Print the broken links of a site; returns 1 if there are any, 2 if there is no site."""
    site = Path(sys.argv[1])
    pages = len([*site.rglob("*.html")])
    if not pages:
        print(f"{site} has no pages; build it with `make docs`", file=sys.stderr)
        return 2
    broken = broken_links(site)
    for link in broken:
        print(f"broken link in {link}", file=sys.stderr)
    print(f"{pages} pages, {len(broken)} broken links")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
