"""Every error of the project, in one tree.

    TracksError
    ├── InvalidInput            a person gave something that cannot be used; the command exits with 2
    │   ├── UnknownRun          no training run, attempt, dataset or snapshot of that name
    │   └── SettingsError       an environment variable or a home that cannot be used
    │       └── NothingYet      nothing was ever recorded there
    ├── StoreError              the object store failed
    │   ├── StoreUnavailable    it cannot be reached, or refused the credentials
    │   ├── OutcomeUnknown      a write may or may not have happened (time-out, 409): read back
    │   └── StoreUnsuitable     it ignores conditional puts, or has another format version
    │       └── ArchiveNewer    an exported run that only a newer version can read
    ├── ObjectLost              an object is missing, or has other bytes than its sha256 names
    ├── TrackError              the records of a track
    │   ├── TrackBroken         the hash chain or a record does not hold
    │   │   └── RecordNewer     it chains, and only a newer version can read it
    │   ├── InvalidDecision     the state does not allow that record
    │   ├── RecordTooLarge      more than the limit of its kind
    │   └── Contended           a decision lost the race more often than its bound allows
    ├── Fenced                  this launch has lost the right to write; it exits at once
    ├── CheckpointError         a checkpoint cannot be written or read
    │   ├── CheckpointCorrupt   bytes do not have the hash that the manifest names
    │   ├── CheckpointMismatch  its tensors, cursor or format do not fit what reads it
    │   ├── CheckpointWriteFailed  the save that nothing comes after failed
    │   └── NoCheckpoint        there is no committed checkpoint
    ├── TrainingError           a trainer cannot continue
    │   ├── NonFinite           the loss or a weight became NaN or infinite
    │   ├── LossDiverged        the loss stayed far above its recent range
    │   └── RankLost            another rank failed; the cause is in its own last word
    ├── LedgerError             the SQL projection cannot be read or written
    │   ├── LedgerAhead         it has taken in a record that the store does not hold
    │   └── RowRefused          the database does not take a value of a row
    ├── DataRejected            rows or text that did not pass their checks
    ├── GangError               a gang cannot be started or asked
    │   └── NoDevices           it has no devices of this machine to start on
    ├── StillWaiting            a wait ended by its bound, and what it waited for did not come
    ├── ModelOnHold             what was promoted may not be used now: in quarantine, or gone
    ├── OrchestratorError       Dagster's daemon, web server or storage cannot be set up
    └── TrackerError            curves cannot be sent to TensorBoard's folder, MLflow or W&B's

A message says what was attempted, with which values, what was found and what happens next. Foreign
exceptions are translated into these once, in the adapter that meets them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


class TracksError(Exception):
    """The root of all errors that the project raises on purpose."""


class InvalidInput(TracksError):
    """A person gave a value that cannot be used; nothing was written."""


def check_all(*checks: Callable[[], object]) -> None:
    """Make every check, then raise what the only failing one raised, or an InvalidInput with what each
    found: who mends it sees all at once."""
    found: list[InvalidInput] = []
    for check in checks:
        try:
            check()
        except InvalidInput as error:
            found.append(error)
    if len(found) == 1:
        raise found[0]
    if found:
        raise InvalidInput("\n".join(dict.fromkeys(map(str, found))))


class UnknownRun(InvalidInput):
    """There is no training run, attempt, dataset or snapshot of that name."""


class SettingsError(InvalidInput):
    """An environment variable, or what it points to, cannot be used."""


class NothingYet(SettingsError):
    """A home and store in which nothing was ever recorded; anyone who only reads makes neither."""


class StoreError(TracksError):
    """The object store failed."""


class StoreUnavailable(StoreError):
    """The object store cannot be reached, or refused the credentials."""


class OutcomeUnknown(StoreError):
    """A conditional write may or may not have happened: settle it by reading back."""


class StoreUnsuitable(StoreError):
    """The store ignores conditional puts or was written by another format version."""


class StoreMissing(StoreUnsuitable):
    """There is no store at the address: `tracks run` makes one, a command that only reads does not."""


class ArchiveNewer(StoreUnsuitable):
    """An exported run is of a format that a newer version writes: update and read it again."""


class ObjectLost(TracksError):
    """An object that is named by its sha256 is missing, or has other bytes: restore it."""


class TrackError(TracksError):
    """A track, or a record for one, is not as it must be."""


class TrackBroken(TrackError):
    """A stored record does not parse, or does not chain to the one before it."""


class RecordNewer(TrackBroken):
    """A stored record is of a newer version: update, there is nothing to restore.

    prev_sha256: what it names as the record before it, where the chain is still to be checked.
    """

    def __init__(self, message: str, *, prev_sha256: str | None = None) -> None:
        super().__init__(message)
        self.prev_sha256 = prev_sha256


class InvalidDecision(TrackError):
    """The state of the track does not allow this record now."""


class RecordTooLarge(TrackError):
    """A record exceeds the limit of its kind; larger things are objects named in it by sha256."""


class Contended(TrackError):
    """A decision lost its place to other writers more often than its bound allows."""


class Fenced(TracksError):
    """This launch met its own end or a newer one: it exits at once and writes nothing more."""


class CheckpointError(TracksError):
    """A checkpoint cannot be written or read."""


class CheckpointCorrupt(CheckpointError):
    """Bytes of a checkpoint do not have the hash that its manifest or record names."""


class CheckpointMismatch(CheckpointError):
    """A checkpoint holds other tensors, shapes or samples than this model and config need, or is of
    another format version. Its bytes are right: it is never quarantined for that."""


class CheckpointWriteFailed(CheckpointError):
    """The last save of an attempt, or the one on SIGTERM, failed: its steps are lost."""


class NoCheckpoint(CheckpointError):
    """There is no committed checkpoint to resume from."""


class TrainingError(TracksError):
    """A trainer cannot continue; most often a script used `join` in a way that cannot work."""


class NonFinite(TrainingError):
    """The loss of a step, or a weight that it left behind, is NaN or infinite.

    onset_step: the step whose loss it is, or that left the weight behind; None where nobody knows.
    """

    def __init__(self, message: str, *, onset_step: int | None = None) -> None:
        super().__init__(message)
        self.onset_step = onset_step


class LossDiverged(TrainingError):
    """The loss has been far above its recent range for many steps; onset_step: the first of them."""

    def __init__(self, message: str, *, onset_step: int) -> None:
        super().__init__(message)
        self.onset_step = onset_step


class RankLost(TrainingError):
    """Another rank of the gang failed, so this one ends too."""


class LedgerError(TracksError):
    """The ledger cannot be reached, read or written."""


class LedgerAhead(LedgerError):
    """The ledger has taken in a record of a track that the store does not hold, or not any more."""


class RowRefused(LedgerError):
    """The database does not take a value of a row; the same row is refused again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """One value that did not pass. row: 1-based, in the order of the source, headings not counted.

    value: shortened, None when it is missing; check: what it should have been.
    """

    row: int
    column: str
    value: str | None
    check: str

    def __str__(self) -> str:
        found = "nothing" if self.value is None else repr(self.value)
        return f"row {self.row}, {self.column}: {found} is not {self.check}"


class DataRejected(TracksError):
    """Rows or text did not pass their checks; no snapshot was committed.

    bad_rows: the first of them; bad_row_count: how many there are in all.
    """

    def __init__(
        self, message: str, *, bad_rows: tuple[BadRow, ...] = (), bad_row_count: int = 0
    ) -> None:
        super().__init__(message)
        self.bad_rows = bad_rows
        self.bad_row_count = bad_row_count


class GangError(TracksError):
    """A gang cannot be started, found or signalled."""


class GangUnreachable(GangError):
    """Where gangs run cannot be asked now: nobody refused, and the same request may succeed later."""


class NoDevices(GangError):
    """What was to start has no lease of this machine's devices any more; it waits for another one."""


class OrchestratorError(TracksError):
    """Dagster's daemon, web server or storage cannot be set up, started or stopped."""


class StillWaiting(TracksError):
    """A wait ended by its bound; what it waited for may come later."""


class ModelOnHold(TracksError):
    """What has an alias may not be used now: it descends from a source in quarantine, or is gone."""


class TrackerError(TracksError):
    """Curves cannot be sent to a tracker now; what it has stays, and the next export goes on."""


def rejection(dataset: str, bad_rows: Sequence[BadRow], bad_row_count: int) -> str:
    """Return the message of a DataRejected that names `bad_rows`, the first of `bad_row_count`."""
    named = "; ".join(str(row) for row in bad_rows)
    more = bad_row_count - len(bad_rows)
    rest = f"; and {more} more" if more else ""
    values = "value does" if bad_row_count == 1 else "values do"
    return (
        f"Cannot make a snapshot of {dataset}: {bad_row_count} {values} not pass the checks: "
        f"{named}{rest}. Nothing was stored; correct the source and make the snapshot again."
    )
