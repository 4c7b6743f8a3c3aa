"""Some rows of the table in docs/foreign_networks.md, computed again."""

from __future__ import annotations

import re

import pytest
import torch
from foreign_networks import COLUMNS, PAGE, START, networks, row

ROWS = {
    cells[0]: cells
    for line in PAGE.read_text(encoding="utf-8").partition(START)[2].splitlines()
    if len(cells := [cell.strip() for cell in line.strip("|").split(" | ")]) == len(COLUMNS)
}
SAMPLE = ["r3d_18", "alexnet", "resnetv2_50", "nn.TransformerEncoder", "shared parameter"]


def test_the_table_has_a_row_for_each_network() -> None:
    names = [network.name for network in networks()]
    assert len(set(names)) == len(names) >= 50
    assert list(ROWS) == names


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
@torch.no_grad()
def test_rows(name: str) -> None:
    network = next(network for network in networks() if name in network.name)
    found, expected = row(network), ROWS[network.name]
    for now, then in zip(found, expected, strict=True):
        if re.fullmatch(r"\de[-+]\d\d", then):
            assert float(now) <= 1e-4
        else:
            assert now == then
