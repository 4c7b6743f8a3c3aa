"""Interrupted downloads are resumed, and never joined from two versions of a file."""

from __future__ import annotations

import sys

import pytest
from web_server import CONTENT, NEW, SHA256

from ffn.zoo import WeightsError, download

DOWNLOAD = sys.modules["ffn.zoo.download"]
WEB = sys.modules["ffn.zoo.web"]


def test_a_broken_transfer_goes_on_where_it_stopped(server):
    server.break_after = [300_000, 200_000]
    assert download(server.url, sha256=SHA256).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-", "bytes=500000-"]


def test_a_later_call_goes_on_where_an_earlier_one_gave_up(server, monkeypatch):
    monkeypatch.setattr(DOWNLOAD, "ATTEMPTS", 1)
    server.break_after = [400_000]
    with pytest.raises(WeightsError, match="interrupted after 400,000 of 1,048,576 bytes") as error:
        download(server.url, sha256=SHA256)
    assert "400,000 bytes are kept in" in str(error.value)

    assert download(server.url, sha256=SHA256).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=400000-"]


def test_a_server_without_ranges_starts_over(server):
    server.honours_range = False
    server.break_after = [300_000]
    assert download(server.url, sha256=SHA256).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-"]


@pytest.mark.parametrize("cut", range(1, len(CONTENT), len(CONTENT) // 20))
def test_two_versions_of_a_file_are_never_joined(server, cut):
    """The file changes while the first transfer breaks off; nobody knows its hash."""
    server.tag, server.changed = '"1"', (NEW, '"2"')
    server.break_after = [cut]
    assert download(server.url, sha256=None).read_bytes() == NEW
    assert server.ranges == [None, f"bytes={cut}-"]


@pytest.mark.parametrize("tag", ['"2"', 'W/"1"', None])
def test_a_server_that_ignores_if_range(server, tag):
    server.tag, server.changed, server.ignores_if_range = '"1"', (NEW, tag), True
    server.break_after = [300_000]
    assert download(server.url, sha256=None).read_bytes() == NEW
    assert server.ranges == [None, "bytes=300000-", None]


@pytest.mark.parametrize("tag", [None, 'W/"1"'])
def test_without_a_version_and_a_hash_a_download_starts_over(server, tag):
    server.tag, server.changed = tag, (NEW, tag)
    server.break_after = [300_000]
    assert download(server.url, sha256=None).read_bytes() == NEW
    assert server.ranges == [None, None]


def test_the_same_version_goes_on_in_a_later_call(server, monkeypatch, tmp_path):
    monkeypatch.setattr(DOWNLOAD, "ATTEMPTS", 1)
    server.tag, server.break_after = '"1"', [400_000]
    with pytest.raises(WeightsError, match="interrupted"):
        download(server.url, sha256=None)
    assert download(server.url, sha256=None).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=400000-"]
    assert not list((tmp_path / "weights").glob("*.version"))


def test_bytes_from_another_place_are_refused(server):
    server.lies, server.break_after = -1, [400_000]
    assert download(server.url, sha256=SHA256).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=400000-", None]


def test_a_part_that_is_longer_than_the_file_starts_over(server, tmp_path):
    part = tmp_path / "weights" / f"{SHA256[:16]}-tiny.safetensors.part"
    part.parent.mkdir()
    part.write_bytes(CONTENT + b"more")
    with pytest.raises(WeightsError, match="has sha256"):  # the server does not tell its size
        download(server.url, sha256=SHA256)
    assert download(server.url, sha256=SHA256).read_bytes() == CONTENT


@pytest.mark.parametrize("has_length", [True, False])
def test_a_file_of_another_size_is_refused(server, tmp_path, has_length):
    server.has_length = has_length
    with pytest.raises(WeightsError, match=r"1,000 bytes as the record states"):
        download(server.url, sha256=None, size=1000)
    kept = sum(path.stat().st_size for path in (tmp_path / "weights").glob("*.part"))
    assert kept <= WEB.CHUNK


def test_a_short_answer_without_a_length_is_no_complete_file_of_known_size(server):
    """The end of a connection without Content-Length looks like the end of the file."""
    server.has_length, server.tag, server.break_after = False, '"1"', [400_000]
    path = download(server.url, sha256=None, size=len(CONTENT))
    assert path.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=400000-"]


def test_a_file_that_is_shorter_than_its_known_size_is_refused(server):
    server.has_length, server.tag = False, '"1"'
    message = r"has 1,048,576 bytes, expected 1,048,577 bytes as the record states"
    with pytest.raises(WeightsError, match=message):
        download(server.url, sha256=None, size=len(CONTENT) + 1)
    assert len(server.ranges) == 2


def test_a_file_that_is_too_long_is_refused_by_every_call(server):
    server.has_length, server.tag = False, '"1"'
    for _ in range(2):  # the first keeps a part
        with pytest.raises(WeightsError, match=r"expected 1,000 bytes as the record states"):
            download(server.url, sha256=None, size=1000)


def test_answers_that_ask_to_come_back_later(server):
    server.answers = [429, 408, 503]
    assert download(server.url, sha256=SHA256).read_bytes() == CONTENT


def test_the_number_of_requests_is_bounded(server, monkeypatch):
    monkeypatch.setattr(WEB, "REQUESTS", 4)
    server.break_after = [10_000] * 10
    with pytest.raises(WeightsError, match="40,000 bytes are kept"):
        download(server.url, sha256=SHA256)
    assert len(server.ranges) == 4


def test_a_complete_part_is_used(server, tmp_path):
    """A process was killed between the last byte and the check."""
    part = tmp_path / "weights" / f"{SHA256[:16]}-tiny.safetensors.part"
    part.parent.mkdir()
    part.write_bytes(CONTENT)
    assert download(server.url, sha256=SHA256).read_bytes() == CONTENT
    assert server.ranges == [f"bytes={len(CONTENT)}-"]


@pytest.mark.parametrize(("status", "requests"), [(404, 1), (503, 5)])
def test_only_a_servers_own_faults_are_tried_again(server, status, requests):
    server.status = status
    with pytest.raises(WeightsError, match=f"{status}"):
        download(server.url, sha256=SHA256)
    assert len(server.ranges) == requests
