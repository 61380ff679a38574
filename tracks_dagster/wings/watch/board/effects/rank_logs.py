"""What the ranks of an attempt printed: from this machine while it trains, else from the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from tracks_dagster.attempts.effects.evidence import read_log, read_log_tails, stored_logs
from tracks_dagster.processes.logs import GrowingLog, find_logs, read_tail
from tracks_dagster.reasons.evidence import LOG_TAIL_BYTES_MAX
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.states.run_state import AttemptState, RunState

CHARACTERS_MAX = 1024 * 1024  # that a page reads, of all ranks together
RANK_CHARACTERS_MIN = 4 * 1024
RANKS_MAX = 256  # the first ones

Texts = Iterator[tuple[int, str, bool]]  # a rank, its text, and whether there is more


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

    def ends(self, rank: int | None) -> tuple[Mapping[int, str], bool]:
        """Return the end of each log, and whether one of them has more than that.

        rank: the one that is read, None for all; the others are there without a text.
        """
        ranks, texts = self._tails(rank) if self._here else self._kept(rank)
        count = min(RANKS_MAX, len(ranks)) if rank is None else 1
        room = max(RANK_CHARACTERS_MIN, CHARACTERS_MAX // max(1, count))
        ends, is_cut = dict.fromkeys(ranks[:RANKS_MAX], ""), False
        for each, text, has_more in islice(texts, RANKS_MAX):
            end = _end(text, room)
            is_cut = is_cut or has_more or len(end) < len(text)
            ends[each] = self._clean(end)
        return ends, is_cut

    def whole(self, rank: int | None) -> Iterator[str]:
        """Yield all that is kept, one rank after the other, each line after its rank."""
        if self._here:
            for each, path in self._here.items():
                if rank in (None, each):
                    for text in GrowingLog(path).read(is_complete=True):
                        yield _named(each, self._clean(text))
            return
        for each, text, _ in self._kept(rank)[1]:
            yield _named(each, self._clean(text))

    def _tails(self, rank: int | None) -> tuple[Sequence[int], Texts]:
        texts = (
            (each, read_tail(path), path.exists() and path.stat().st_size > LOG_TAIL_BYTES_MAX)
            for each, path in self._here.items()
            if rank in (None, each)
        )
        return list(self._here), texts

    def _kept(self, rank: int | None) -> tuple[Sequence[int], Texts]:
        """Return the ranks that the store has something of, and the text of these, or of one: whole
        logs, each read when it is its turn, else the ends that evidence keeps."""
        ref = self._state.ref(self._attempt)
        if stored := stored_logs(self._store, ref):
            texts = (
                (each, read_log(self._store, ref, each, sha256) or "", False)
                for each, sha256 in stored.items()
                if rank in (None, each)
            )
            return list(stored), texts
        tails = read_log_tails(self._store, self._state.run_id, self._attempt)
        return list(tails), ((each, tails[each], False) for each in tails if rank in (None, each))


def _end(text: str, characters: int) -> str:
    """Return the last whole lines of a text."""
    if len(text) <= characters:
        return text
    return text[-characters:].partition("\n")[2]


def _named(rank: int, text: str) -> str:
    return "".join(f"rank {rank}: {line}\n" for line in text.splitlines())
