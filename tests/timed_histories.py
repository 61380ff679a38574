"""Random runs whose times are odd in every way that the account of time has to bear.

Attempts that were never placed, never restored, hung, had no times of their ranks, or measured more
than there was; rollbacks, later readings, runs that are open; with `skewed`, clocks that disagree and
run backwards, and ranks that were seen long after their attempt's end. The same `Random` seed gives
the same run. A test that fails must say its seed.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random

from tests.bodies import BEGIN
from tests.histories import History
from tracks_dagster.track.bodies import ComputeRequest, Debit, TimeSpent
from tracks_dagster.track.reasons import TerminationReason
from tracks_dagster.track.records import format_time

REASONS = ("preempted", "gpu_oom", "hang", "data_loader_stall", "node_drained", "user_cancelled")


class TimedRun:
    """Grows one run; `history` is its track."""

    def __init__(self, rng: Random, run_id: str, *, begin: datetime, skewed: bool) -> None:
        self._rng = rng
        self._skewed = skewed
        compute = ComputeRequest(ranks=rng.choice([1, 2, 8]))
        team, family = rng.choice(["research", "applied"]), rng.choice(["gpt", "tabular"])
        self.history = History(run_id, begin=begin)
        self.history.declare(compute=compute, team=team, model_family=family)

    def grow(self, *, attempts_max: int = 6) -> History:
        """Add attempts, and perhaps a finish."""
        rng = self._rng
        for number in range(1, 1 + rng.randrange(attempts_max + 1)):
            self._pass(900)
            self._open(number)
            self._attempt()
            if self.history.state.attempts[-1].is_open:
                break
            if rng.random() < 0.2:
                self._pass(60)
                self.history.reclassify(rng.randrange(1, number + 1), rng.choice(REASONS))
        self._pass(900)
        if self.history.state.open_attempt is None and rng.random() < 0.6:
            self.history.finish()
        self.history.note()
        return self.history

    def _open(self, number: int) -> None:
        rng = self._rng
        known = self.history.state.resumable
        rolled_back = {"resume": rng.choice([None, *known])} if rng.random() < 0.3 else {}
        debit = Debit(reason="hang", amount=rng.choice([0, 1]), fingerprint=None, why="by policy")
        excluded = tuple(rng.sample(["n1", "n2", "n3"], rng.randrange(3)))
        compute = ComputeRequest(
            ranks=self.history.state.declared.compute.ranks, excluded_nodes=excluded
        )
        cause = "first" if number == 1 else rng.choice(["retry", "manual_retry"])
        self.history.open(
            cause=cause, compute=compute, **rolled_back, debit=debit if number > 1 else None
        )

    def _attempt(self) -> None:
        rng, history = self._rng, self.history
        opened_at = history.at
        self._pass(600)
        started_at = history.at
        measured = TimeSpent()
        step = 0
        stepped_at: datetime | None = None
        if rng.random() < 0.9:
            self._pass(60)
            history.place(world_size=history.state.declared.compute.ranks)
            if rng.random() < 0.9:
                self._pass(300)
                history.restore()
                step = history.state.attempts[-1].resumed_step
                for _ in range(rng.randrange(6)):
                    seconds = self._pass(400)
                    measured = self._spend(measured, seconds)
                    step, stepped_at = step + rng.randrange(1, 9), history.at
                    if rng.random() < 0.6:
                        result = measured if rng.random() < 0.8 else None
                        history.commit(step, spent=result)
        self._pass(600)
        finished_at = history.at
        self._pass(90)
        if rng.random() < 0.15:
            return  # it stays open
        seen = rng.random() < 0.8
        late = timedelta(seconds=rng.choice([0, 3000])) if self._skewed else timedelta()
        history.end(
            rng.choice(REASONS),
            last_step=step or None,
            started_at=format_time(rng.choice([started_at, opened_at])) if seen else None,
            finished_at=format_time(finished_at + late) if seen else None,
            spent=measured if rng.random() < 0.8 else None,
            last_stepped_at=format_time(stepped_at) if stepped_at and seen else None,
        )

    def _spend(self, before: TimeSpent, seconds: float) -> TimeSpent:
        """Return what was spent after as many more seconds; a clock that is fast measures more."""
        rng = self._rng
        rate = rng.choice([0.5, 0.9, 1.0, 1.5])
        shares = [rng.random() for _ in range(4)]
        steps, data, saving, evals = (seconds * rate * s / sum(shares) for s in shares)
        return TimeSpent(
            steps_s=before.steps_s + steps,
            data_s=before.data_s + data,
            saving_s=before.saving_s + saving,
            eval_s=before.eval_s + evals,
        )

    def _pass(self, seconds_max: int) -> float:
        """Let time pass, or seem to go back; return how many seconds did."""
        low = -seconds_max if self._skewed else 0
        seconds = self._rng.randrange(low * 1000, seconds_max * 1000) / 1000
        self.history.at += timedelta(seconds=seconds)
        return abs(seconds)


def timed_run(
    rng: Random, run_id: str = "r-1", *, begin: datetime = BEGIN, skewed: bool = False
) -> History:
    """Return a run of up to six attempts."""
    assert set(REASONS) <= {reason.value for reason in TerminationReason}
    return TimedRun(rng, run_id, begin=begin, skewed=skewed).grow()
