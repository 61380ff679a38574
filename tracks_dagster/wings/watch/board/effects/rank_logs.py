"""What the ranks of an attempt printed: from this machine while it trains, else from the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tracks_dagster.attempts.effects.evidence import read_log_tails, read_logs
from tracks_dagster.processes.logs import GrowingLog, find_logs, read_tail
from tracks_dagster.reasons.evidence import LOG_TAIL_BYTES_MAX
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.states.run_state import AttemptState, RunState

CHARACTERS_MAX = 1024 * 1024  # that a page reads, of all ranks together
RANK_CHARACTERS_MIN = 4 * 1024
RANKS_MAX = 256  # the first ones


class RankLogs:
    """The logs of one attempt. work: where gangs of this machine keep their files, None in an archive;
    clean: hides passwords."""

    def __init__(
        self,
        store: ObjectStore,
        state: RunState,
        attempt: AttemptState,
        *,
        work: Path | None,
        clean: Callable[[str], str],
    ) -> None:
        self._store = store
        self._state = state
        self._attempt = attempt
        self._clean = clean
        ref = state.ref(attempt)
        self._here = {} if work is None else find_logs(work / ref.key)

    def ends(self) -> tuple[Mapping[int, str], bool]:
        """Return the end of each log, and whether one of them has more than that."""
        if self._here:
            some = dict(list(self._here.items())[:RANKS_MAX])
            texts = {rank: read_tail(path) for rank, path in some.items()}
            is_cut = any(p.stat().st_size > LOG_TAIL_BYTES_MAX for p in some.values() if p.exists())
        else:
            texts = dict(list(self._kept().items())[:RANKS_MAX])
            is_cut = False
        room = max(RANK_CHARACTERS_MIN, CHARACTERS_MAX // max(1, len(texts)))
        ends = {rank: _end(text, room) for rank, text in texts.items()}
        is_cut = is_cut or any(len(ends[rank]) < len(text) for rank, text in texts.items())
        return {rank: self._clean(text) for rank, text in ends.items()}, is_cut

    def whole(self, rank: int | None) -> Iterator[str]:
        """Yield all that is kept, one rank after the other, each line after its rank."""
        if self._here:
            for each, path in self._here.items():
                if rank in (None, each):
                    for text in GrowingLog(path).read(is_complete=True):
                        yield _named(each, self._clean(text))
            return
        for each, text in self._kept().items():
            if rank in (None, each):
                yield _named(each, self._clean(text))

    def _kept(self) -> Mapping[int, str]:
        """Return what the store has: whole logs, else the ends that evidence keeps."""
        logs = read_logs(self._store, self._state.ref(self._attempt))
        return logs or read_log_tails(self._store, self._state.run_id, self._attempt)


def _end(text: str, characters: int) -> str:
    """Return the last whole lines of a text."""
    if len(text) <= characters:
        return text
    return text[-characters:].partition("\n")[2]


def _named(rank: int, text: str) -> str:
    return "".join(f"rank {rank}: {line}\n" for line in text.splitlines())
