"""The videos of a run: those that it began with, those that the lists name now, the difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ffn import data
from ffn.data import video_list
from ffn.engine.distributed import World, on_main

NAME = "videos.csv.gz"  # in the folder of the run


class RunVideos:
    """Compares the lists of a run with those that it began with, which its folder keeps.

    Args:
        folder: of the run.
        splits: the lists now.
        root: folder of the videos.
        world: the processes; all of them call it.
        contents: function that describes the content of each record; by default the sizes of files.
        allow_changes: files may have been replaced, and videos that were taken out of the lists
            count as unreadable.

    Attributes:
        splits: the lists now; removed training videos keep their places.
        removed: indices of the removed training videos.
        fingerprint: plain values, for checkpoints.

    Raises:
        ValueError: changes are allowed, and the list in the folder is damaged.
    """

    def __init__(
        self,
        folder: Path,
        splits: data.Splits,
        root: str,
        world: World,
        *,
        contents: Callable[[Sequence[data.Record]], list[str]] | None = None,
        allow_changes: bool = False,
    ) -> None:
        self.path, self._root = folder / NAME, root
        whole, before, self._taken_out = splits, [], []
        self.removed: frozenset[int] = frozenset()
        if allow_changes and self.path.is_file():
            before = video_list.read_videos(self.path)
            whole, self.removed, self._taken_out = video_list.with_removed(splits, before, root)
            before = video_list.as_now(before, root)
        self.splits = replace(splits, train=whole.train)
        self._now: list[video_list.ListedVideo] = []  # on the main process
        self._replaced: list[str] = []

        def scan() -> tuple[str, str]:
            listed = video_list.list_videos(whole, root, contents)
            self._now = video_list.with_contents_of(video_list.as_now(before, root, listed), listed)
            pairs = zip(listed, self._now, strict=True)
            gone = {*self._taken_out}
            self._replaced = [old.path for new, old in pairs if new != old and old not in gone]
            earlier = video_list.as_before(self._now, whole, root)
            return video_list.videos_sha256(self._now), video_list.videos_sha256(earlier)

        sha256, self._earlier_sha256 = on_main(scan, world)
        self.fingerprint = {**whole.fingerprint(), "videos_sha256": sha256}

    def write(self, *, replace: bool) -> None:
        """Write the list into the folder. The main process calls it.

        Args:
            replace: also if there is one; else it is that of the run, in its first order.
        """
        if replace or not self.path.exists() or self._is_outdated():
            video_list.write_videos(self.path, self._now)

    def _is_outdated(self) -> bool:
        """Whether version 0.2 wrote the list in the folder; it has the same videos."""
        try:
            before = video_list.read_videos(self.path)
        except (ValueError, OSError):
            return False
        return before != self._now == video_list.as_now(before, self._root, self._now)

    def differ_from(self, fingerprint: dict) -> bool:
        """Whether a checkpoint's fingerprint is that of other videos; it may lack newer keys."""
        changing = {"prepared"} if self._taken_out else set()  # the data set was prepared again
        if fingerprint.get("videos_sha256") == self._earlier_sha256:
            changing.add("videos_sha256")
        return any(
            self.fingerprint.get(key) != value
            for key, value in fingerprint.items()
            if key not in changing
        )

    def changes(self) -> str:
        """What changed since the run began, and what helps. The main process calls it."""
        remedy = "restore the lists and the files, or choose another log.output"
        try:
            before = video_list.read_videos(self.path)
            before = video_list.as_now(before, self._root, self._now)
            found = video_list.describe_changes(before, self._now)
        except (ValueError, OSError):  # written by version 0.1, or damaged
            found = []
        kinds = ("missing", "another file", "other frames")
        if found and all(any(kind in text for kind in kinds) for text in found):
            remedy = f"set data.allow_changes=true to go on, {remedy}"
        return f"{': ' if found else ''}{'; '.join(found)}; {remedy}"

    def notes(self) -> list[str]:
        """Console lines about removed videos and replaced files, if there are any."""
        lines = []
        if self._taken_out:
            first = self._taken_out[0]
            lines.append(
                f"{len(self._taken_out)} videos were taken out of the lists since the run began, "
                f"first {first.split} {first.path}; training skips them"
            )
        if self._replaced:
            lines.append(
                f"{len(self._replaced)} files were replaced since the run began, first "
                f"{self._replaced[0]}"
            )
        return lines
