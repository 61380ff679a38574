"""Looks at the loss of every step: NaN and divergence end the attempt, a spike is an alert.

Every rank sees the mean over all ranks, so all come to the same answer in the same step.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence

from tracks_dagster.reasons.divergence import Diverged, LossWatch, Spike, limits_of
from tracks_dagster.track.bodies import Alert
from tracks_dagster.track.errors import LossDiverged, NonFinite, TracksError
from tracks_dagster.track.names import ALERT_LOSS_SPIKE
from tracks_dagster.track.records import Json, Kind
from tracks_dagster.training.launch import Launch

RANKS_NAMED_MAX = 8  # in a message
ALERTS_MAX = 20  # of one launch; the journal has every spike
ALERT_S_MAX = 5.0  # how long an ending rank waits for the newest to be appended


class LossGuard:
    """One rank's guard. Alerts are appended by a thread of rank 0: training does not wait for them."""

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
            told = {"loss": str(loss), "own_loss": str(own_loss), **fields}
            self._launch.journal.write("non_finite_loss", step=step, **told)
            losses = [float(each) for each in self._launch.ranks.gather(str(own_loss))]
            raise NonFinite(
                f"The loss of step {step} is {loss}{_whose(losses)}; nothing of this step is saved.",
                onset_step=step if self._watch.onset_step is None else self._watch.onset_step,
            )
        found = self._watch.take(step, loss)
        if found is None:
            return
        if isinstance(found, Spike):
            self._tell_of(found)
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

    def _tell_of(self, spike: Spike) -> None:
        told = {
            "step": spike.step,
            "loss": spike.loss,
            "z": round(spike.z, 2),
            "median": spike.median,
        }
        self._launch.journal.write("loss_spike", **told)
        if not self._launch.ranks.is_first or len(self._alerts) >= ALERTS_MAX:
            return
        text = (
            f"The loss spiked in step {spike.step}: {spike.loss:.6g}, the median of the steps before "
            f"is {spike.median:.6g} (modified z-score {spike.z:.1f}). Training goes on."
        )
        alert = Alert(rule=ALERT_LOSS_SPIKE, text=text, data=told)
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
