"""One thread and one terminal width per process, and the figures that tests measure.

Tests are small, and several threads on busy cores are slower.
"""

from __future__ import annotations

import datetime
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # inherited by a job in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests interrupt their processes
os.environ["COLUMNS"] = "200"  # help texts wrap alike in every process

FIGURES = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"
HEAD = "| test | what | figure | measured |\n| --- | --- | --- | --- |\n"

measured = pytest.StashKey[dict[tuple[str, str], str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--figures", action="store_true", help="write what the tests measured to tests/README.md"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[measured] = {}


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Iterator[Callable[[str, object], None]]:
    """Note a number that a test found: what it is, and its value; kept if the test passes."""
    found: dict[tuple[str, str], str] = {}
    name = request.node.nodeid.rpartition("/")[2]
    yield lambda what, value: found.update({(name, what): str(value)})
    if not getattr(request.node, "failed", False):
        request.config.stash[measured].update(found)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    report = yield
    if report.when == "call":
        item.failed = report.failed
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    new = session.config.stash[measured]
    if not (session.config.getoption("--figures") and new):
        return
    before, _, rest = FIGURES.read_text().partition(BEGIN)
    table, _, after = rest.partition(END)
    rows = {}
    for line in table.splitlines()[2:]:
        name, what, value, day = (cell.strip() for cell in line.strip("|").split("|"))
        rows[name.strip("`"), what] = (value, day)
    today = datetime.date.today().isoformat()
    rows |= {key: (value, today) for key, value in new.items()}
    lines = [f"| `{n}` | {w} | {v} | {day} |\n" for (n, w), (v, day) in sorted(rows.items())]
    FIGURES.write_text(f"{before}{BEGIN}{HEAD}{''.join(lines)}{END}{after}")
