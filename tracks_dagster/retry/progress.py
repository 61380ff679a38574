"""What counts as progress of a run: what refunds a debit, and begins a row of failures anew. Pure.

A checkpoint is progress after a record when it was committed after it, is trusted, and is further than
every one that stood then. Which one is trusted is the caller's question: `is_verified`, or
`may_prove_right` to see what a read would change.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence

from tracks_dagster.track.states.run_state import CheckpointState

Trust = Callable[[CheckpointState], bool]


def is_verified(checkpoint: CheckpointState) -> bool:
    """Whether every byte of it was read and is right: what refunds a debit."""
    return checkpoint.verified_at is not None and not checkpoint.quarantined


def may_prove_right(checkpoint: CheckpointState) -> bool:
    """Whether it is verified, or a read could still show that it is."""
    return is_verified(checkpoint) or checkpoint.is_resumable


class Progress:
    """The progress of a run over its records; asked about any of them in logarithmic time."""

    def __init__(self, checkpoints: Sequence[CheckpointState], trust: Trust) -> None:
        """Prepare the answers; n log n in the number of checkpoints."""
        self._marks = list(_marks(checkpoints))
        self._trusted = [c for c in sorted(checkpoints, key=lambda c: c.seq) if trust(c)]
        self._furthest = _suffix_maxima([c.ref.step for c in self._trusted])

    def since(self, seq: int) -> bool:
        """Whether there was progress after record `seq`.

        What was quarantined before `seq` sets no mark: a run that was rolled back makes progress from
        where it went on. What was quarantined after it does: to go the same way twice is none.
        """
        at = bisect_left(self._marks, (seq, 0))
        mark = self._marks[at - 1][1] if at else 0
        return self.is_beyond(mark, seq)

    def is_beyond(self, step: int, seq: int) -> bool:
        """Whether a checkpoint beyond `step` was committed after record `seq`."""
        at = bisect_left(self._trusted, seq + 1, key=lambda c: c.seq)
        return at < len(self._furthest) and self._furthest[at] > step


def _marks(checkpoints: Sequence[CheckpointState]) -> Iterator[tuple[int, int]]:
    """Yield (seq, the greatest step that stands after that record), for each record that changes it."""
    commits = [(c.seq, c.ref.step, True) for c in checkpoints]
    ends = [(c.quarantined_seq, c.ref.step, False) for c in checkpoints if c.quarantined_seq]
    standing: list[int] = []
    for seq, step, is_commit in sorted([*commits, *ends]):
        if is_commit:
            insort(standing, step)
        else:
            standing.pop(bisect_left(standing, step))
        yield seq, standing[-1] if standing else 0


def _suffix_maxima(steps: Sequence[int]) -> list[int]:
    """Return, for each place, the greatest from there on: [3, 1, 2] → [3, 2, 2]."""
    maxima: list[int] = []
    for step in reversed(steps):
        maxima.append(max(step, maxima[-1]) if maxima else step)
    return maxima[::-1]
