"""Publishes what a trainer that may not be touched writes by itself: the files that `watch` names.

A pattern is of paths below the trainer's folder, "ckpt_*.pt" or "run-*/step-{step}.ckpt": `{step}`,
else its only star, is the step's number. A step is published once there is something for every pattern
of it, whole: unchanged for WATCH_STILL_S and open in no process, or left by a trainer that ended well.
What a trainer was writing when it failed is not.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tracks_dagster.projects.project import STEP_MARK, step_pattern
from tracks_dagster.track.names import EXIT_DRAINED

WATCH_STILL_S = 2.0
_PROC = Path("/proc")


class Watched:
    """What lies in `folder` and matches. into: where steps are published, each as a folder."""

    def __init__(self, patterns: Sequence[str], folder: Path, into: Path) -> None:
        self._patterns = [(each.replace(STEP_MARK, "*"), step_pattern(each)) for each in patterns]
        self._folder = folder
        self._into = into
        self._known = {step for step, _ in self._found()}  # those of an earlier attempt

    def publish(self, code: int | None) -> None:
        """Publish the steps that have become whole. code: of Popen, of the trainer."""
        ended_well = code in (0, EXIT_DRAINED)
        if code is not None and not ended_well:
            return
        for step, paths in sorted(self._found()):
            if step not in self._known and (ended_well or all(map(_is_whole, paths))):
                self._publish(step, paths)
                self._known.add(step)

    def _found(self) -> Iterator[tuple[int, list[Path]]]:
        """Yield each step that has something for every pattern."""
        by_step: dict[int, list[set[Path]]] = {}
        for number, (glob, pattern) in enumerate(self._patterns):
            for path in self._folder.glob(glob):
                match = pattern.fullmatch(path.relative_to(self._folder).as_posix())
                if match is not None:
                    sets = by_step.setdefault(int(match["step"]), [set() for _ in self._patterns])
                    sets[number].add(path)
        for step, sets in by_step.items():
            if step and all(sets):
                yield step, sorted(set().union(*sets))

    def _publish(self, step: int, paths: Sequence[Path]) -> None:
        half = self._into / f".watched-{step}"
        shutil.rmtree(half, ignore_errors=True)
        for path in paths:
            for file in _files(path):
                place = half / file.relative_to(self._folder)
                place.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(file, place)  # no byte is copied: the trainer's name may go at any time
                except OSError:
                    shutil.copy2(file, place)
        half.rename(self._into / f"step-{step}")


def lay_back(resumed: Path, folder: Path) -> None:
    """Put the files of the checkpoint that is resumed from where the trainer had written them."""
    shutil.copytree(resumed, folder, dirs_exist_ok=True)


def _is_whole(path: Path) -> bool:
    since = time.time() - WATCH_STILL_S
    with suppress(FileNotFoundError):  # renamed or removed meanwhile: the next look sees it
        files = _files(path)
        return (
            bool(files) and all(each.stat().st_mtime < since for each in files) and not _open(files)
        )
    return False


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())


def _open(files: Sequence[Path]) -> bool:
    """Whether a process has one of them open, as far as this system and user can see."""
    wanted = {(status.st_dev, status.st_ino) for status in map(Path.stat, files)}
    for descriptor in _PROC.glob("[0-9]*/fd/*"):
        with suppress(OSError):
            status = descriptor.stat()
            if (status.st_dev, status.st_ino) in wanted:
                return True
    return False
