"""The world of a tick: the tracks, ports and settings that deciders work with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tracks_dagster.attempts.effects.preparing import Prepared
from tracks_dagster.attempts.ports import (
    DRAIN_GRACE_S,
    FindShipped,
    LauncherOf,
    Orchestrator,
    OrchestratorRun,
)
from tracks_dagster.checkpoints.ports import CheckpointReader
from tracks_dagster.holds.effects.holds import Holds, Pools
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.ledger.prices import Prices
from tracks_dagster.reasons.user_rules import NO_RULES, UserRules
from tracks_dagster.retry.effects.node_health import NodeHealth
from tracks_dagster.retry.policy import RetryPolicy
from tracks_dagster.scheduling.effects.leases import DevicePool
from tracks_dagster.track.bodies import RunDeclared


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What every decider gets, as one object, made for one tick. Safe for several threads.

    decides_retries: False where no policy is known by which a retry could be decided; `policy` is the
    shipped one then. off: sensors that are switched off, for the words.

    checkpoints: None leaves out every remedy that is work: nothing is collected, read or quarantined.
    holds: those that a tick has read already, with its pools; without pools there are no storms.
    nodes: without it none is struck; those on hold are still avoided. shipped: finds the code of a
    run that an older version declared with a model family. devices: of this machine, which are shared
    out among what is to start; None: nothing waits for any. prices: None without a table that can be
    read, and then no cap in money is met. drain_grace_s: of a launcher's gangs. declare: records a run
    and opens its first attempt, by all that the home knows; None: nothing here declares one.
    """

    tracks: Tracks
    ledger: Ledger
    launcher_of: LauncherOf
    orchestrator: Orchestrator
    policy: RetryPolicy
    decides_retries: bool = True
    rules: UserRules = NO_RULES
    off: frozenset[str] = frozenset()
    checkpoints: CheckpointReader | None = None
    holds: Holds
    nodes: NodeHealth | None = None
    shipped: FindShipped | None = None
    devices: DevicePool | None = None
    prices: Prices | None = None
    drain_grace_s: Callable[[str], float] = lambda launcher: DRAIN_GRACE_S
    declare: Callable[[Prepared], RunDeclared] | None = None

    def for_tick(self) -> World:
        """Return the same world with nothing asked yet, and with storms and strikes of nodes."""
        pools = Pools(self.ledger, self.policy.storm, now=self.tracks.now())
        nodes = NodeHealth(self.tracks, self.ledger, self.policy.nodes, devices=self.devices)
        return replace(self, holds=Holds(self.tracks, pools=pools), nodes=nodes)


class NoOrchestrator:
    """Implements `ports.Orchestrator` where Dagster is not asked: it knows of no run."""

    def runs_of_attempt(self, attempt_key: str) -> Sequence[OrchestratorRun]:
        """Return none."""
        return ()

    def runs_of_eval(self, eval_attempt_key: str) -> Sequence[OrchestratorRun]:
        """Return none."""
        return ()

    def find(self, dagster_run_id: str) -> OrchestratorRun | None:
        """Return None."""
        return None

    def was_cancelled(self, dagster_run_id: str) -> bool:
        """Return False."""
        return False
