"""How often a gang's watcher does things, and how long it waits after failures."""

from __future__ import annotations

from dataclasses import dataclass, field

from tracks_dagster.kubernetes.effects.api.change_stream import Backoff
from tracks_dagster.kubernetes.effects.log_tails import LOG_EVERY_S, LOG_READS_PER_S
from tracks_dagster.kubernetes.effects.pod_evidence import TAILS_EVERY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """log_reads_per_s: of one gang, log_every_s: of one pod, beside the reads at once."""

    backoff: Backoff = field(default_factory=Backoff)
    log_reads_per_s: float = LOG_READS_PER_S
    log_every_s: float = LOG_EVERY_S
    tails_every_s: float = TAILS_EVERY_S
