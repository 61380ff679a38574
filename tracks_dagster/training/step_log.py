"""One rank's log of its steps: how long each took, what its loss was, how training has gone so far.

Every rank keeps the time and judges the loss. Rank 0 alone keeps the script's metrics, and with them
what a checkpoint says of the training so far. docs/signals.md has every field that is written here.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from tracks_dagster.reasons.divergence import Diverged, LossWatch, Spike, limits_of
from tracks_dagster.reasons.hangs import Phase
from tracks_dagster.track.bodies import Alert, TimeSpent
from tracks_dagster.track.errors import LossDiverged, NonFinite, TracksError
from tracks_dagster.track.names import ALERT_LOSS_SPIKE
from tracks_dagster.track.records import Json, Kind
from tracks_dagster.training.feeding import Feed
from tracks_dagster.training.launch import Launch
from tracks_dagster.training.pulse import Pulse
from tracks_dagster.training.signals.optimizer_watch import OptimizerWatch
from tracks_dagster.training.signals.own_time import OwnTime
from tracks_dagster.training.signals.rank_figures import OVER_STEPS, RankFigures

NAMES_MAX = 1000  # metrics of a line; so many are remembered as cleaned: no step pays for it again
RANKS_NAMED_MAX = 8  # in a message
ALERTS_MAX = 20  # of one launch; the journal has every spike
RECENT_MAX = 64  # losses that a checkpoint holds
ALERT_S_MAX = 5.0  # how long an ending rank waits for the newest to be appended


class StepLog:
    """Takes in every step of one rank. metrics: of the newest, with its loss, and non_finite: names of
    those that are not finite; both empty but on rank 0.

    time: where its seconds went; own, optimizer: what hooks on the models and on the first optimizer
    see. The journal's line of a step has `step_s`, from its data to its report, `data_s`, the wait
    before, and `spent`, what the launch spent so far on all of its steps; in a gang also `exchange_s`,
    until all ranks had agreed at the report.
    """

    def __init__(self, launch: Launch, pulse: Pulse, own: OwnTime) -> None:
        self._launch = launch
        self._pulse = pulse
        self.own = own
        self._guard = LossGuard(launch)
        self._clean_name = lru_cache(NAMES_MAX)(launch.clean)
        retention = launch.declared.retention
        self._progress = TrainingProgress(retention.metric, retention.direction)
        self.metrics: dict[str, float] = {}
        self.non_finite: Set[str] = frozenset()
        self._evaluated: dict[str, float] = {}
        self._evaluated_odd: Set[str] = frozenset()
        self._evaluated_step = 0
        self.time = TimeBook()
        self.optimizer = OptimizerWatch(measures=launch.ranks.is_first)
        self._figures = RankFigures(rank=launch.ranks.rank, world_size=launch.ranks.world_size)
        self._newest_step = 0
        self._ended: dict[str, Json] = {}  # the time of the newest step, where its loss comes later
        self._measured: dict[str, float] = {}  # what its optimizer showed
        self._steps_timed = 0  # the first may compile: it is unlike the others
        self._data_s = 0.0  # of the running step

    @property
    def best(self) -> Best | None:
        """The best value so far of the metric that the run's retention names; rank 0's counts."""
        return self._progress.best

    def progress(self, step: int) -> dict[str, Json]:
        """Return how training has gone so far, for the checkpoint of that step."""
        return self._progress.to_json(step)

    def restore(self, progress: Mapping[str, Json]) -> None:
        """Take up where `progress` was asked."""
        self._progress.restore(progress)
        self._guard.restore(self._progress.recent)

    @property
    def computed(self) -> bool:
        """Whether the running step has run a model, or stepped the optimizer, as far as it shows."""
        return self.own.has_run or self.optimizer.has_stepped

    def data_asked(self, step: int) -> None:
        """Say that `step` waits for its data."""
        self.time.data_asked()
        self._pulse.beat(Phase.WAITING_FOR_DATA, step)

    def data_came(self, step: int) -> None:
        """Say that `step` computes from now on."""
        self._data_s = self.time.data_came()
        self.own.begin()
        self._pulse.beat(Phase.COMPUTING, step)

    def take(
        self,
        step: int,
        loss: float,
        own_loss: float,
        metrics: Mapping[str, Any],
        feed: Feed,
    ) -> None:
        """Judge the step and write it down. loss: the mean over all ranks; own_loss: this rank's.

        sampler: None where the order of samples is the script's own.

        Raises NonFinite or LossDiverged, on every rank alike.
        """
        fields = self._times_of(step)
        if (exchange_s := self._launch.ranks.exchange_s) is not None:
            fields["exchange_s"] = exchange_s
        self._guard.check(step, loss, own_loss, fields)
        if self._steps_timed:
            self._pulse.finished(fields["step_s"] + self._data_s)
        self._steps_timed += 1
        if self._launch.ranks.rank == 0:
            finite, others = self._numbers(metrics)
            fields |= others
            is_evaluated = self._evaluated_step == step
            evaluated = self._evaluated if is_evaluated else {}
            self.metrics = {**evaluated, **finite, "loss": loss}
            odd = self._evaluated_odd if is_evaluated else frozenset()
            self.non_finite = (odd | others.get("non_finite", {}).keys()) - self.metrics.keys()
            fields["loss"] = loss
            fields["metrics"] = finite
            fields["cursor_to"] = feed.cursor(step)
            fields["indices_sha256"] = feed.indices_sha256(step)
            if (samples := feed.samples) is not None:
                fields["samples"] = samples
            fields["spent"] = self.time.seconds
            self._add_measured(fields, metrics)
            self._progress.take(step, self.metrics)
        self._launch.journal.write_step(step, fields)

    def ended(self, step: int) -> None:
        """End the time of a step whose loss comes after the next one has begun, or never."""
        self._ended = self._timed(step)

    def passed(self, step: int) -> None:
        """Write down a step that ended without a loss."""
        fields = self._times_of(step)
        self._pulse.finished(fields["step_s"])
        if self._launch.ranks.rank == 0:
            fields["spent"] = self.time.seconds
            self._add_measured(fields, {})
        self._launch.journal.write_step(step, fields)

    def figures(self) -> list[float]:
        """Return what this rank adds to the next sum of all ranks, for `write_ranks`."""
        watch = self._launch.journal.watch
        return self._figures.due({} if watch is None else watch.newest)

    def write_ranks(self, sums: Sequence[float]) -> None:
        """Write down what all ranks added, on rank 0; nothing where it was nothing."""
        if sums and self._launch.ranks.is_first:
            fields = self._figures.fields(sums)
            self._launch.journal.write("ranks", step=self._newest_step, over=OVER_STEPS, **fields)

    def evaluated(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Take in what an evaluation of `step` found; rank 0's counts."""
        if self._launch.ranks.rank != 0:
            return
        finite, others = self._numbers(metrics)
        odd = others.get("non_finite", {}).keys()
        is_more = self._evaluated_step == step
        earlier = self._evaluated if is_more else {}
        self._evaluated, self._evaluated_step = _newest(earlier, finite, odd), step
        self._evaluated_odd = (
            self._evaluated_odd if is_more else frozenset()
        ) - finite.keys() | odd
        self.metrics = _newest(self.metrics, finite, odd)
        self.non_finite = self.non_finite - finite.keys() | odd
        self._progress.judge(step, finite)
        self._launch.journal.write("evaluated", step=step, metrics=finite, **others)

    def judge(self, step: int, found: Mapping[str, float]) -> None:
        """Take in what an earlier attempt's evaluation of `step` found, for `best`."""
        if self._launch.ranks.rank == 0:
            self._progress.judge(step, dict(found))

    def warn(self, text: str) -> None:
        """Say what a checkpoint lacks on stderr, and in the journal, as `not_saved`; on rank 0."""
        if self._launch.ranks.rank == 0:
            print(text, file=sys.stderr, flush=True)
            self._launch.journal.write("not_saved", text=self._launch.clean(text))

    def write_spent(self) -> None:
        """Write down what was spent after the line of the last step: its save, an evaluation."""
        if self._launch.ranks.rank == 0:
            self._launch.journal.write("spent", spent=self.time.seconds)

    def settle(self) -> None:
        """Wait for the newest alert of a loss to land, for a few seconds at most."""
        self._guard.settle()

    def close(self) -> None:
        """Leave the script's models and optimizer as they were."""
        self.own.disarm()
        self.optimizer.leave()

    def _times_of(self, step: int) -> dict[str, Json]:
        """Return the time of `step` for its line; it ends now where it has not yet."""
        fields, self._ended = self._ended, {}
        return fields if fields and self._newest_step == step else self._timed(step)

    def _timed(self, step: int) -> dict[str, Json]:
        """End the time of `step`; return it, for its line and for the other ranks."""
        fields: dict[str, Json] = {"step_s": self.time.stepped(), "data_s": self._data_s}
        if (own_s := self.own.end()) is not None:
            fields["own_s"] = own_s
        self._figures.take(step_s=fields["step_s"], own_s=own_s, data_s=self._data_s)
        self._newest_step = step
        if self._launch.ranks.rank == 0:
            self._measured = self.optimizer.take()
        return fields

    def _numbers(self, metrics: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, Json]]:
        """Return the metrics that a line can hold, and what it says of the others."""
        if not metrics:
            return {}, {}
        first = islice(metrics.items(), NAMES_MAX)
        numbers = {self._clean_name(name): float(each) for name, each in first}
        finite = {name: number for name, number in numbers.items() if math.isfinite(number)}
        others: dict[str, Json] = {}
        if len(finite) < len(numbers):
            others["non_finite"] = {
                name: str(number) for name, number in numbers.items() if name not in finite
            }
        if len(metrics) > NAMES_MAX:
            others["metrics_left_out"] = len(metrics) - NAMES_MAX
        return finite, others

    def _add_measured(self, fields: dict[str, Json], metrics: Mapping[str, Any]) -> None:
        """Add what the optimizer showed; what the script reports by the same name counts instead."""
        if "grad_norm" in metrics:
            self.optimizer.script_measures()
        for name, number in self._measured.items():
            if name in metrics:
                continue
            if math.isfinite(number):
                fields[name] = number
            else:
                fields["non_finite"] = {**fields.get("non_finite", {}), name: str(number)}


def _newest(
    before: Mapping[str, float], finite: Mapping[str, float], odd: Set[str]
) -> dict[str, float]:
    return {name: number for name, number in {**before, **finite}.items() if name not in odd}


class TimeBook:
    """Where one rank's seconds went since its first step; `spent` is the sum so far.

    Every second counts once: a step's last from its data to its report, less the pauses for a save or
    an evaluation meanwhile. What the script does between a report and the next step's data is
    nobody's. Counted in whole nanoseconds, which add up without a drift, and given in seconds to the
    microsecond. clock: monotonic nanoseconds.
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._spent_ns = dict.fromkeys(asdict(TimeSpent()), 0)
        self._asked_ns = 0  # when the running step's data was asked for
        self._began_ns = 0  # when the running step began: its data had come
        self._away_ns = 0  # of the running step, that went to a save or an evaluation
        self._is_away = False

    @property
    def spent(self) -> TimeSpent:
        """What the steps that are done took, and what stood between them."""
        return TimeSpent(**self.seconds)

    @property
    def seconds(self) -> dict[str, float]:
        """The same by its names, for a line of the journal."""
        return {name: spent_ns // 1000 / 1e6 for name, spent_ns in self._spent_ns.items()}

    def data_asked(self) -> None:
        """Begin to wait for a step's data."""
        self._asked_ns = self._clock()

    def data_came(self) -> float:
        """Begin the step; return how long its data took."""
        self._began_ns = self._clock()
        self._away_ns = 0
        data_ns = self._began_ns - self._asked_ns
        self._spent_ns["data_s"] += data_ns
        return _seconds(data_ns)

    def stepped(self) -> float:
        """End the step; return how long it took, without its data."""
        step_ns = self._clock() - self._began_ns - self._away_ns
        self._spent_ns["steps_s"] += step_ns
        return _seconds(step_ns)

    def saving(self) -> AbstractContextManager[None]:
        """Training stands still for a save. One inside another counts once."""
        return self._away("saving_s")

    def evaluating(self) -> AbstractContextManager[None]:
        """Training stands still for an evaluation."""
        return self._away("eval_s")

    @contextmanager
    def _away(self, name: str) -> Iterator[None]:
        is_inner, began_ns = self._is_away, self._clock()
        self._is_away = True
        try:
            yield
        finally:  # a script may go on after an evaluation that failed
            self._is_away = is_inner
            if not is_inner:
                away_ns = self._clock() - began_ns
                self._spent_ns[name] += away_ns
                self._away_ns += away_ns


def _seconds(ns: int) -> float:
    return ns // 1000 / 1e6


class LossGuard:
    """One rank's guard: NaN and divergence end the attempt, a spike is an alert.

    Every rank sees the mean over all ranks, so all come to the same answer in the same step. Alerts are
    appended by a thread of rank 0: training does not wait for them.
    """

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._watch = LossWatch(limits_of(launch.opened.config))
        self._alerts: list[threading.Thread] = []

    def restore(self, recent: Iterable[tuple[int, float]]) -> None:
        """Take in the losses that the checkpoint has of the steps before."""
        self._watch.restore((step, loss) for step, loss in recent if math.isfinite(loss))

    def check(self, step: int, loss: float, own_loss: float, fields: Mapping[str, Json]) -> None:
        """Take in the loss of `step`: the mean over all ranks, and this rank's own.

        fields: for the journal's line. Collective where the mean is not finite: the ranks then say
        whose it is. Raises NonFinite and LossDiverged, both with their onset.
        """
        if not math.isfinite(loss):
            facts = {"loss": str(loss), "own_loss": str(own_loss), **fields}
            self._launch.journal.write("non_finite_loss", step=step, **facts)
            losses = [float(each) for each in self._launch.ranks.gather(str(own_loss))]
            raise NonFinite(
                f"The loss of step {step} is {loss}{_whose(losses)}; nothing of this step is saved.",
                onset_step=step if self._watch.onset_step is None else self._watch.onset_step,
            )
        found = self._watch.take(step, loss)
        if found is None:
            return
        if isinstance(found, Spike):
            self._alert_of(found)
        elif isinstance(found, Diverged):
            steps = found.step - found.onset_step + 1
            self._launch.journal.write(
                "loss_diverged", step=step, onset_step=found.onset_step, loss=loss, z=found.z
            )
            raise LossDiverged(
                f"The loss has been far above its recent range for {steps} steps, since step "
                f"{found.onset_step}: {loss:.6g} in step {step}, the median before is "
                f"{found.median:.6g} (modified z-score {found.z:.1f}); nothing of this step is saved.",
                onset_step=found.onset_step,
            )

    def settle(self) -> None:
        """Wait for the newest alert to land, for a few seconds at most."""
        if self._alerts:
            self._alerts[-1].join(ALERT_S_MAX)

    def _alert_of(self, spike: Spike) -> None:
        facts = {
            "step": spike.step,
            "loss": spike.loss,
            "z": round(spike.z, 2),
            "median": spike.median,
        }
        self._launch.journal.write("loss_spike", **facts)
        if not self._launch.ranks.is_first or len(self._alerts) >= ALERTS_MAX:
            return
        text = (
            f"The loss spiked in step {spike.step}: {spike.loss:.6g}, the median of the steps before "
            f"is {spike.median:.6g} (modified z-score {spike.z:.1f}). Training continues."
        )
        alert = Alert(rule=ALERT_LOSS_SPIKE, text=text, data=facts)
        thread = threading.Thread(target=self._append, args=(alert,), name="alert", daemon=True)
        self._alerts.append(thread)
        thread.start()

    def _append(self, alert: Alert) -> None:
        try:
            self._launch.whole_track().note(self._launch.draft(Kind.ALERT, alert))
        except TracksError as error:  # a thread's edge; the journal has the spike
            print(f"cannot append an alert: {error}", file=sys.stderr, flush=True)


def _whose(losses: Sequence[float]) -> str:
    """Return which ranks' losses are not finite, in words; nothing for a rank alone."""
    if len(losses) == 1:
        return ""
    bad = [f"{loss} on rank {rank}" for rank, loss in enumerate(losses) if not math.isfinite(loss)]
    if not bad:
        return f" as the mean over {len(losses)} ranks, and finite on each: their sum is too large"
    more = f" and {len(bad) - RANKS_NAMED_MAX} more" if len(bad) > RANKS_NAMED_MAX else ""
    return f" ({', '.join(bad[:RANKS_NAMED_MAX])}{more}, of {len(losses)} ranks)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best value so far and the first step that had it."""

    value: float
    step: int


class TrainingProgress:
    """How training has gone so far. metric, direction ("min" or "max"): of what is best."""

    def __init__(self, metric: str, direction: str) -> None:
        self.metric = metric
        self.direction = direction
        self.best: Best | None = None
        self._recent: deque[tuple[int, float]] = deque(maxlen=RECENT_MAX)

    @property
    def recent(self) -> tuple[tuple[int, float], ...]:
        """The newest (step, loss), oldest first."""
        return tuple(self._recent)

    def take(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take in the metrics of a finished step; an equal value is not a better one."""
        self._recent.append((step, metrics["loss"]))
        self.judge(step, metrics)

    def judge(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take in metrics that may hold the best value."""
        value = metrics.get(self.metric, math.nan)
        if math.isfinite(value) and (self.best is None or self._is_better(value, self.best.value)):
            self.best = Best(value=value, step=step)

    def to_json(self, step: int) -> dict[str, Json]:
        """Return all of it, for the checkpoint of that step: without losses of later ones."""
        return {
            "metric": self.metric,
            "direction": self.direction,
            "best": asdict(self.best) if self.best else None,
            "recent": [list(each) for each in self._recent if each[0] <= step],
        }

    def restore(self, stored: Mapping[str, Json]) -> None:
        """Take up where `to_json` was asked; the best of another metric does not count."""
        self._recent = deque(((step, loss) for step, loss in stored["recent"]), maxlen=RECENT_MAX)
        same = (stored["metric"], stored["direction"]) == (self.metric, self.direction)
        self.best = Best(**stored["best"]) if same and stored["best"] else None

    def _is_better(self, value: float, than: float) -> bool:
        return value < than if self.direction == "min" else value > than
