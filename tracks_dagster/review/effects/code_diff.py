"""What differs in the stored code of two attempts, as a unified diff."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import unified_diff

from tracks_dagster.attempts.ports import SCRIPT
from tracks_dagster.track.addressed import read_addressed
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.names import TRAINER_FAMILY, attempt_key
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.states.run_state import AttemptState, RunState, trainer_of

TEXT_BYTES_MAX = 512 * 1024  # of a file that is compared line by line
TEXT_LINES_MAX = 10_000  # likewise: more lines take minutes
LINES_MAX = 2000  # of the diff of one file
FILES_MAX = 200  # with a diff
_CHANGED, _ADDED, _REMOVED = "changed", "added", "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDiff:
    """A file that differs. what: changed, added or removed; lines: the diff, without line ends; words:
    why there are none, or not all."""

    path: str
    what: str
    lines: tuple[str, ...] = ()
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeDiff:
    """a, b: the attempts; files: by path; equal_count: files that are the same."""

    a: str
    b: str
    files: tuple[FileDiff, ...]
    equal_count: int

    @property
    def text(self) -> str:
        """The whole of it, as `diff -u` prints it."""
        lines: list[str] = []
        for file in self.files:
            lines += file.lines or [f"{file.path}: {file.what}"]
            lines += [f"({file.words})"] if file.words else []
        return "\n".join(lines)


Attempt = tuple[RunState, AttemptState]


def diff_code(store: ObjectStore, a: Attempt, b: Attempt) -> CodeDiff:
    """Compare the code that two attempts were started with.

    Raises InvalidInput where that of one is not stored, or is not an archive; ObjectLost.
    """
    before, after = _files(store, *a), _files(store, *b)
    paths = sorted(before.keys() | after.keys())
    differing = [path for path in paths if before.get(path) != after.get(path)]
    files = [
        _diff(path, before.get(path), after.get(path), is_named_only=number >= FILES_MAX)
        for number, path in enumerate(differing)
    ]
    return CodeDiff(
        a=_name(*a), b=_name(*b), files=tuple(files), equal_count=len(paths) - len(differing)
    )


def _name(state: RunState, attempt: AttemptState) -> str:
    return attempt_key(state.run_id, attempt.attempt_id)


def _diff(path: str, before: bytes | None, after: bytes | None, *, is_named_only: bool) -> FileDiff:
    what = _ADDED if before is None else _REMOVED if after is None else _CHANGED
    if is_named_only:
        return FileDiff(path=path, what=what, words=f"only the first {FILES_MAX} files are shown")
    texts = _lines(before), _lines(after)
    if texts[0] is None or texts[1] is None:
        sizes = [f"{len(each)} bytes" for each in (before, after) if each is not None]
        return FileDiff(
            path=path, what=what, words=f"not a text, or a long one: {' → '.join(sizes)}"
        )
    old = "/dev/null" if before is None else f"a/{path}"
    new = "/dev/null" if after is None else f"b/{path}"
    lines = list(unified_diff(texts[0], texts[1], old, new, lineterm=""))
    more = len(lines) - LINES_MAX
    words = f"{more} more lines of the diff are left out" if more > 0 else ""
    if not lines:
        words = "only the ends of its lines differ" if before and after else "it is empty"
    return FileDiff(path=path, what=what, lines=tuple(lines[:LINES_MAX]), words=words)


def _lines(data: bytes | None) -> list[str] | None:
    """Return the lines of a text; None of what is not one, or a long one."""
    if data is None:
        return []
    if len(data) > TEXT_BYTES_MAX or b"\0" in data:
        return None
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        return None
    return lines if len(lines) <= TEXT_LINES_MAX else None


def _files(store: ObjectStore, state: RunState, attempt: AttemptState) -> Mapping[str, bytes]:
    """Return the files that an attempt was started with, by path; of a link where it leads."""
    key = trainer_of(state, attempt)
    if key == TRAINER_FAMILY:
        raise InvalidInput(
            f"{_name(state, attempt)} is of an older version, which stored no code: its commit is all "
            "that is known."
        )
    data = read_addressed(store, key)
    if key.endswith(".py"):
        return {SCRIPT: data}
    try:
        return dict(_members(data))
    except (tarfile.TarError, ValueError) as error:
        raise InvalidInput(f"The stored code {key} cannot be read: {error}.") from error


def _members(data: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        for member in tar:
            if member.issym():
                yield member.name, f"a link to {member.linkname}\n".encode()
            elif member.isreg() and not member.issparse():
                content = tar.extractfile(member)
                yield member.name, b"" if content is None else content.read()
