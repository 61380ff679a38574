"""`tracks logs`: what the ranks of an attempt printed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import click

from tracks_dagster.attempts.effects.evidence import read_log_tails, read_logs, stored_logs
from tracks_dagster.cli import BAD_NEWS
from tracks_dagster.cli.common import (
    archive_option,
    as_json,
    parse_target,
    print_json,
    settings_for,
)
from tracks_dagster.cli.terminal import echo_whole
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.processes.logs import (
    GrowingLog,
    find_logs,
    read_tail,
    tail_offset,
)
from tracks_dagster.reading import open_tracks_to_read
from tracks_dagster.reasons.evidence import LOG_TAIL_BYTES_MAX
from tracks_dagster.track.errors import InvalidInput, StoreUnavailable, UnknownRun
from tracks_dagster.track.names import AttemptRef, attempt_key
from tracks_dagster.track.states.run_state import AttemptState, known_attempt
from tracks_dagster.track.text.redact import redact

POLL_S = 0.5
TAIL_LINES_MAX = 1_000_000
STORE_AWAY_S_MAX = 300.0  # so long -f waits for a store that does not answer

T = TypeVar("T")


@click.command("logs")
@click.argument("target", metavar="RUN[/aNN]")
@click.option("--rank", type=click.IntRange(0), help="Only this rank; default: all.")
@click.option(
    "--tail",
    type=click.IntRange(1, TAIL_LINES_MAX),
    metavar="N",
    help="Only the last N lines of each.",
)
@click.option("-f", "--follow", is_flag=True, help="Follow until the attempt has ended.")
@archive_option
@as_json
@click.pass_context
def logs_command(
    context: click.Context,
    target: str,
    rank: int | None,
    tail: int | None,
    follow: bool,
    archive: Path | None,
    as_json: bool,
) -> None:
    """Print what the ranks of an attempt printed; default: RUN's newest attempt.

    From the gang's work folder where that is on this machine; else from the store, which has the
    whole log (of a long one the end) once the attempt, or its pod, has ended. --json has the last 64
    KiB of each rank. Passwords are hidden.
    """
    if follow and (as_json or archive is not None):
        raise InvalidInput("-f shows lines as they come; give it without --json and --archive.")
    settings = settings_for(archive)
    tracks = open_tracks_to_read(settings)
    run_id, attempt_id = _find(tracks, target)
    logs = AttemptLogs(
        tracks=tracks,
        run_id=run_id,
        attempt_id=attempt_id,
        rank=rank,
        tail=tail,
        folder=settings.work / attempt_key(run_id, attempt_id) if archive is None else None,
        clean=partial(redact, secrets=settings.secrets),
    )
    if as_json:
        print_json({"attempt": logs.key, "ranks": {str(k): v for k, v in logs.ends().items()}})
    elif not (logs.follow() if follow else logs.show()):
        click.echo(
            f"No log of {logs.key} is kept: no rank printed a line, or the work folder of its gang is "
            "on another machine and its evidence has no log.",
            err=True,
        )
        context.exit(BAD_NEWS)


def _find(tracks: Tracks, target: str) -> tuple[str, int]:
    """Return run and attempt that `RUN[/aNN]` names; raises UnknownRun where there is none."""
    run_id, attempt_id = parse_target(target)
    state = tracks.run(run_id)
    return run_id, known_attempt(state, attempt_id or len(state.attempts) or 1).attempt_id


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptLogs:
    """The logs of one attempt. rank: the only one asked for, or None; tail: how many lines of the end,
    or None; folder: where a gang of this machine keeps its files, None in an archive; clean: hides
    passwords."""

    tracks: Tracks
    run_id: str
    attempt_id: int
    rank: int | None
    tail: int | None
    folder: Path | None
    clean: Callable[[str], str]

    @property
    def key(self) -> str:
        """The attempt as people write it."""
        return attempt_key(self.run_id, self.attempt_id)

    def ends(self) -> dict[int, str]:
        """Return the end of each log, from this machine or else from the store."""
        here = {rank: read_tail(path) for rank, path in self._here().items()}
        texts = self._chosen(here or self._kept())
        return {rank: self._end(text[-LOG_TAIL_BYTES_MAX:]) for rank, text in texts.items()}

    def show(self) -> bool:
        """Print the logs, one rank after the other; False where there are none."""
        here = self._here()
        for rank, path in self._chosen(here).items():
            self._print_new(rank, self._open(path), is_alone=len(here) == 1, is_complete=True)
        return bool(here) or self._show_kept()

    def follow(self) -> bool:
        """Print lines as they come until the attempt has ended; False where there were none.

        Raises StoreUnavailable where the store does not answer for STORE_AWAY_S_MAX.
        """
        logs: dict[int, GrowingLog] = {}
        answered_at = time.monotonic()
        while True:
            try:
                has_ended, answered_at = self._attempt().ended is not None, time.monotonic()
            except StoreUnavailable:
                if time.monotonic() - answered_at > STORE_AWAY_S_MAX:
                    raise
                has_ended = False
            for rank, path in self._here().items():  # what was printed before that end counts
                log = logs.get(rank) or logs.setdefault(rank, self._open(path))
                if self.rank in (None, rank):
                    self._print_new(rank, log, is_alone=len(logs) == 1, is_complete=has_ended)
            if has_ended:
                return bool(self._chosen(logs)) or self._show_kept()
            time.sleep(POLL_S)

    def _show_kept(self) -> bool:
        kept = self._kept()
        for rank, text in kept.items():
            _print(rank, self._end(text), is_alone=len(kept) == 1 or self.rank is not None)
        return bool(kept)

    def _print_new(self, rank: int, log: GrowingLog, *, is_alone: bool, is_complete: bool) -> None:
        for text in log.read(is_complete=is_complete):
            _print(rank, self.clean(text), is_alone=is_alone or self.rank is not None)

    def _open(self, path: Path) -> GrowingLog:
        return GrowingLog(path, begin=0 if self.tail is None else tail_offset(path, self.tail))

    def _end(self, text: str) -> str:
        """Return the end of a text that was asked for, without passwords."""
        lines = self.clean(text).splitlines(keepends=True)
        return "".join(lines if self.tail is None else lines[-self.tail :])

    def _here(self) -> dict[int, Path]:
        return {} if self.folder is None else find_logs(self.folder)

    def _kept(self) -> Mapping[int, str]:
        """Return what the store has of the chosen ranks: whole logs, else the ends in the evidence."""
        store, ref = self.tracks.store, AttemptRef(self.run_id, self.attempt_id)
        return read_logs(store, ref, self._chosen(stored_logs(store, ref))) or self._chosen(
            read_log_tails(store, self.run_id, self._attempt())
        )

    def _attempt(self) -> AttemptState:
        return self.tracks.run(self.run_id).attempts[self.attempt_id - 1]

    def _chosen(self, logs: Mapping[int, T]) -> Mapping[int, T]:
        """Return the log of the rank that was asked for, or all; raises UnknownRun."""
        if self.rank is None or not logs:
            return logs
        if self.rank not in logs:
            there = ", ".join(map(str, logs))
            raise UnknownRun(f"{self.key} has no log of rank {self.rank}; it has: {there}.")
        return {self.rank: logs[self.rank]}


def _print(rank: int, text: str, *, is_alone: bool) -> None:
    """Print lines of a rank's log, each after its rank where there are several."""
    before = "" if is_alone else f"rank {rank}: "
    echo_whole("".join(f"{before}{line}\n" for line in text.splitlines()), nl=False)
