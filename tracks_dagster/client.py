"""Tracks from Python: declare runs, wait for them, use what was promoted. Public: docs/client.md.

    from tracks_dagster.client import Tracks

It uses what the commands use, on the same home and store, and starts no daemon. What is returned as a
dict has the keys of that command's `--json`. Nothing heavy is imported before it is needed.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracks_dagster.settings import Settings, person
from tracks_dagster.track.errors import (
    InvalidInput,
    LedgerError,
    ModelOnHold,
    OutcomeUnknown,
    StillWaiting,
    StoreUnavailable,
    UnknownRun,
)
from tracks_dagster.track.names import attempt_key
from tracks_dagster.track.records import Json

if TYPE_CHECKING:
    from tracks_dagster.ledger.effects.tracks import Tracks as StoredTracks
    from tracks_dagster.ledger.ports import Ledger
    from tracks_dagster.track.states.checkpoints import CheckpointRef
    from tracks_dagster.wiring import App

WAIT_S = 86_400.0  # a day
POLL_S = 2.0
PROMOTION_S_MAX = 60.0  # after success, until the run's own rule was applied
MODELS = "models"  # of a home's cache: what was promoted, a folder each
_AWAY = (StoreUnavailable, OutcomeUnknown, LedgerError)
_log = logging.getLogger(__name__)


class Tracks:
    """A home, its store and its ledger, as one person or service sees them.

    home, store, postgres_url: as TRACKS_HOME, TRACKS_STORE and TRACKS_POSTGRES_URL, which count where
    they are left out. by: in whose name things are recorded; your user name where it is left out.
    """

    def __init__(
        self,
        *,
        home: str | Path | None = None,
        store: str | Path | None = None,
        postgres_url: str | None = None,
        by: str | None = None,
    ) -> None:
        """Remember where everything is; nothing is opened or made yet. Raises SettingsError."""
        given = {"TRACKS_HOME": home, "TRACKS_STORE": store, "TRACKS_POSTGRES_URL": postgres_url}
        changed = {name: str(value) for name, value in given.items() if value is not None}
        self.settings = Settings.from_environment(changed=changed)
        self.by = by or person()

    def submit(
        self,
        project: str | Path | None = None,
        *,
        config: Mapping[str, Json] | None = None,
        key: str | None = None,
        branch_from: str | None = None,
        branch_from_attempt: int | None = None,
        remark: Callable[[str], object] = _log.warning,
        **fields: Any,
    ) -> Run:
        """Declare a run and return it; the daemon of the store starts it.

        project: a folder with a tracks.yaml, one script (`train.py`), or the name of a project that
        was added; a text with no slash is a name. None with branch_from="RUN@STEP": the code that its
        source stored. config: overrides by key. fields: as the options of `tracks submit`, with
        underscores: intent, run_id, ranks, stage, snapshot_id, launcher, max_cost and the others.

        With a `run_id` it may be repeated: where that run was asked for in the same way it is returned,
        else InvalidInput names what differs. key: in its place, what asks, such as the id of another
        program's run: the run id follows from it. Raises InvalidInput with everything that is wrong.
        """
        from tracks_dagster.submitting import submit

        done = submit(
            self.app,
            project,
            fields,
            config=config or {},
            by=self.by,
            key=key,
            branch_from=branch_from,
            branch_from_attempt=branch_from_attempt,
            remark=remark,
        )
        return Run(self, done.run_id)

    def run(self, run_id: str) -> Run:
        """Return the run of that id; raises UnknownRun."""
        self.stored.run(run_id)
        return Run(self, run_id)

    def tune(
        self,
        project: str | Path,
        study: Mapping[str, Json] | Path,
        *,
        remark: Callable[[str], object] = _log.warning,
    ) -> Study:
        """Declare a search of a project's config and return it; the daemon of the store starts trials.

        project: as of `submit`. study: the keys of docs/tuning.md, or a file with them. One of the
        same name goes on, with the larger caps of this call. Raises InvalidInput and SettingsError
        with everything that is wrong.
        """
        from tracks_dagster.studies.effects.study_file import read_study, study_of
        from tracks_dagster.submitting import find_code, tune

        if isinstance(study, Path):
            asked = read_study(study, is_section=False)
        else:
            asked = study_of(study)
        found = find_code(self.app, project, None, launcher=None)
        assert found is not None, "a project is named"
        return Study(self, tune(self.app, found, asked, by=self.by, remark=remark).declared.study)

    def study(self, name: str) -> Study:
        """Return the study of that name; raises UnknownRun."""
        self.stored.study(name)
        return Study(self, name)

    def promoted(self, project: str, alias: str) -> Model:
        """Return what the project's alias was given to last.

        Raises UnknownRun where it was given to nothing, ModelOnHold where that may not be used now.
        """
        from tracks_dagster.evals.effects.promoting import find_holder

        holder = find_holder(self.ledger, project, alias)
        if holder is None:
            raise UnknownRun(_no_model(self.ledger, project, alias))
        run_id, sha256 = holder
        state = self.stored.run(run_id)
        promotions = (each for each in reversed(state.promotions) if each.body.promoted)
        given = next(
            each
            for each in promotions
            if (each.body.alias, each.body.checkpoint.manifest_sha256) == (alias, sha256)
        )
        found = Model(
            client=self,
            project=project,
            alias=alias,
            ref=given.body.checkpoint,
            metrics=dict(given.body.metrics),
            decided_by=given.body.decided_by,
            decided_at=given.at,
            why=given.body.why,
        )
        found.check()
        return found

    def lineage(self, thing: str) -> dict[str, Json]:
        """Return what a thing rests on and what came of it, as `tracks lineage --json`."""
        from tracks_dagster.holds.effects.lineage import read_lineage

        return read_lineage(self.stored, self.ledger, thing).facts

    def sql(self, query: str) -> list[dict[str, Json]]:
        """Return the rows of one SELECT over the ledger, within 60 s, as `tracks sql --json`; times are
        datetimes."""
        from tracks_dagster.ledger.effects.database.sql_query import run_sql

        columns, rows = run_sql(self.settings.ledger_url, query, warn=_log.warning)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    @cached_property
    def app(self) -> App:
        """What writes; makes the home and the store where there is none. Internal."""
        from tracks_dagster.wiring import build

        return build(self.settings)

    @cached_property
    def stored(self) -> StoredTracks:
        """The tracks, to be read. Internal."""
        from tracks_dagster.reading import open_tracks_to_read

        return open_tracks_to_read(self.settings)

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger, to be read. Internal."""
        from tracks_dagster.reading import open_ledger_to_read

        return open_ledger_to_read(self.settings)


@dataclass(frozen=True, slots=True)
class Run:
    """One run, by its id; whatever is asked of it is read again."""

    client: Tracks
    run_id: str

    def status(self) -> dict[str, Json]:
        """Return its state, step and what it waits for, as `tracks status RUN --json`."""
        from tracks_dagster.review.effects.status import read_status
        from tracks_dagster.track.body_json import to_json

        stored, ledger = self.client.stored, self.client.ledger
        [line] = read_status(stored, ledger, run_id=self.run_id, tries=self._eval_tries)
        return to_json(line)

    def wait(
        self, timeout_s: float = WAIT_S, *, report: Callable[[str], object] = _log.info
    ) -> dict[str, Json]:
        """Wait until the run is over or needs a person; return its outcome, as `tracks run --json`.

        report: called with what it waits for, whenever that changes. A store that is away is waited for
        too. Raises StillWaiting after `timeout_s`, with what it waited for.
        """
        from tracks_dagster.review.effects.status import waits_for_a_person
        from tracks_dagster.track.states.evals import promotion_is_settled
        from tracks_dagster.track.states.lifecycle import RunLifecycle, run_status

        until, words = time.monotonic() + timeout_s, ""
        succeeded_at: float | None = None
        while True:
            try:
                state = self.client.stored.run(self.run_id)
                status = run_status(state)
                if status.state == RunLifecycle.SUCCEEDED and not promotion_is_settled(state):
                    succeeded_at = succeeded_at or time.monotonic()
                    if time.monotonic() - succeeded_at > PROMOTION_S_MAX:
                        return self._outcome()
                elif status.state != RunLifecycle.RUNNING:
                    return self._outcome()
                elif (owed := waits_for_a_person(state, self._eval_tries)) is not None:
                    report(f"{self.run_id}: {owed}")
                    return {**self._outcome(), "state": RunLifecycle.WAITING.value}
                line = self.status()
                now = f"{line['waiting_for'] or line['why']}"
            except _AWAY as error:
                now = str(error)
            if now != words:
                words = now
                report(f"{self.run_id}: {words}")
            if time.monotonic() > until:
                raise StillWaiting(
                    f"{self.run_id} is not over after {timeout_s:g} s. {words} Whatever runs goes on; "
                    "wait again, with a longer timeout_s."
                )
            time.sleep(min(POLL_S, timeout_s))

    def _eval_tries(self) -> int | None:
        from tracks_dagster.settings import eval_tries

        return eval_tries(self.client.settings)

    def _outcome(self) -> dict[str, Json]:
        from tracks_dagster.review.effects.outcome import read_outcome
        from tracks_dagster.training.saves.manifest import weights_sha256

        tracks = self.client.app.tracks  # a final checkpoint that is corrupt is put in quarantine
        return read_outcome(tracks, self.run_id, weights_sha256, by=self.client.by)

    def stop(self, why: str) -> None:
        """Save and end the open attempt, then finish the run, as `tracks stop`."""
        self._end("stop", why)

    def drain(self, why: str) -> None:
        """Save and end the open attempt; the run then waits for `retry`, as `tracks drain`."""
        self._end("drain", why)

    def _end(self, mode: Any, why: str) -> None:
        from tracks_dagster.holds.effects.stops import request_stop

        request_stop(self.client.app.tracks, self.run_id, mode=mode, by=self.client.by, why=why)

    def retry(
        self,
        why: str,
        *,
        config: Mapping[str, Json] | None = None,
        force: bool = False,
        **compute: Any,
    ) -> int:
        """Open the next attempt and return its number, as `tracks retry`.

        config, compute (ranks, launcher, pool and the others): what changes. force: also with nothing
        changed that could change the result. Raises InvalidInput.
        """
        from tracks_dagster.attempts.effects.manual_retry import (
            AttemptChanges,
            ManualRetry,
            retry_by_person,
        )
        from tracks_dagster.wiring import gang_check

        app = self.client.app
        wanted = ManualRetry(
            name=self.client.by,
            why=why,
            changes=AttemptChanges(config=config or {}, compute=compute),
            is_forced=force,
            check_gang=gang_check(app.settings),
        )
        record = retry_by_person(app.world(app.policy), self.run_id, wanted)
        assert record.attempt_id is not None, "what it opens has a number"
        return record.attempt_id

    def note(self, text: str, *, attempt_id: int | None = None) -> None:
        """Add a sentence to its track, as `tracks note`."""
        from tracks_dagster.attempts.effects.notes import note

        tracks = self.client.app.tracks
        note(tracks, self.run_id, attempt_id=attempt_id, by=self.client.by, text=text)


@dataclass(frozen=True, slots=True)
class Study:
    """One study, by its name; whatever is asked of it is read again."""

    client: Tracks
    name: str

    def status(self) -> dict[str, Json]:
        """Return its trials, its best and what it used, as `tracks studies NAME --json`."""
        from tracks_dagster.studies.words import as_facts

        return as_facts(self.client.stored.study(self.name))

    def wait(
        self, timeout_s: float = WAIT_S, *, report: Callable[[str], object] = _log.info
    ) -> dict[str, Json]:
        """Wait until it is finished; return its status. report: called with each thing that happens.

        A store that is away is waited for too. Raises StillWaiting after `timeout_s`.
        """
        from tracks_dagster.review.effects.status import trials_for_a_person
        from tracks_dagster.studies.words import sentence, summary
        from tracks_dagster.track.names import study_track

        until, shown, words = time.monotonic() + timeout_s, 0, self.name
        while True:
            try:
                records = self.client.stored.records(study_track(self.name))
                for record in records[shown:]:
                    report(sentence(record))
                shown = len(records)
                study = self.client.stored.study(self.name)
                if study.finished is not None:
                    return self.status()
                stored, run_ids = self.client.stored, [r.proposed.run_id for r in study.open_rungs]
                words = summary(study, stored.now(), trials_for_a_person(stored, run_ids))
            except _AWAY as error:
                words = str(error)
            if time.monotonic() > until:
                raise StillWaiting(
                    f"{self.name} is not finished after {timeout_s:g} s. {words} Its trials go on; "
                    "wait again, with a longer timeout_s."
                )
            time.sleep(min(POLL_S, timeout_s))

    def stop(self, why: str) -> None:
        """Let its open trials save and wait, as `tracks stop`; `tune` with its name continues it."""
        from tracks_dagster.studies.effects.stopping import stop_study

        stop_study(self.client.app.tracks, self.name, by=self.client.by, why=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A checkpoint that has an alias of its project. why, decided_by, decided_at: of its promotion."""

    client: Tracks
    project: str
    alias: str
    ref: CheckpointRef
    metrics: Mapping[str, float]
    decided_by: str
    decided_at: datetime
    why: str

    @property
    def run_id(self) -> str:
        """The run that trained it."""
        return self.ref.run_id

    @property
    def step(self) -> int:
        """After how many steps it was saved."""
        return self.ref.step

    @property
    def manifest_sha256(self) -> str:
        """What it is: the sha256 of its manifest, which names every byte of it."""
        return self.ref.manifest_sha256

    @property
    def name(self) -> str:
        """RUN@STEP, as commands take it."""
        return f"{self.ref.run_id}@{self.ref.step}"

    def check(self) -> None:
        """Raise ModelOnHold where it may not be used now: in quarantine, or gone."""
        from tracks_dagster.holds.effects.holds import Holds

        state = self.client.stored.run(self.run_id)
        checkpoint = state.checkpoint(self.manifest_sha256)
        doing = f"{self.project}/{self.alias} may not be used: {self.name}"
        if checkpoint is None or not checkpoint.holds_for_branches:
            what = "was deleted" if checkpoint is None or checkpoint.deleted else "is in quarantine"
            raise ModelOnHold(
                f"{doing} {what}. Promote another checkpoint: `tracks promote RUN@STEP --alias "
                f"{self.alias}`."
            )
        hold = Holds(self.client.stored).on_checkpoint(self.ref, state)
        if hold is not None:
            raise ModelOnHold(
                f"{doing} {hold.words}. Release the source, or promote another checkpoint."
            )

    def path(self) -> Path:
        """Return a folder with it, every byte verified, as `tracks checkpoints export --bundle` makes
        it: weights.pt (or files/), config.json, code, evals.json, lineage.json.

        It lies in the home's cache, which may be removed at any time; copy what has to stay, and change
        nothing. Raises ModelOnHold, CheckpointCorrupt.
        """
        from tracks_dagster.review.effects.bundle import damage_of_bundle, write_bundle

        self.check()
        folder = self.client.settings.cache / MODELS / self.manifest_sha256
        if folder.is_dir():
            damage = damage_of_bundle(folder)
            if damage is None:
                return folder
            _log.warning("%s is made again: %s", folder, damage)
            shutil.rmtree(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        state = self.client.stored.run(self.run_id)
        checkpoint = state.checkpoint(self.manifest_sha256)
        assert checkpoint is not None, "it was checked"
        try:
            write_bundle(self.client.stored, self.client.ledger, state, checkpoint, folder)
        except InvalidInput:
            if not folder.is_dir() or damage_of_bundle(folder) is not None:
                raise  # else another process was faster
        return folder

    def state_dict(self) -> dict[str, Any]:
        """Return name → tensor, on the CPU; imports torch. Raises InvalidInput for a model of files."""
        import torch

        from tracks_dagster.training.saves.handoff import WEIGHTS

        weights = self.path() / WEIGHTS
        if not weights.is_file():
            raise InvalidInput(
                f"{self.name} is a folder of files that its script wrote: read them below "
                f"{weights.with_name('files')}."
            )
        loaded: dict[str, Any] = torch.load(weights, weights_only=True, map_location="cpu")
        return loaded

    def lineage(self) -> dict[str, Json]:
        """Return what it rests on and what came of it, as `tracks lineage --json`."""
        of_attempt = attempt_key(self.ref.run_id, self.ref.attempt_id)
        return self.client.lineage(f"checkpoint:{of_attempt}@{self.ref.step}")


def _no_model(ledger: Ledger, project: str, alias: str) -> str:
    rows = ledger.query(
        "select distinct p.alias from promotions p join training_runs r on r.run_id = p.run_id "
        "where p.promoted and r.model_family = :project order by p.alias",
        {"project": project},
    )
    there = ", ".join(row["alias"] for row in rows)
    has = f"it has {there}" if there else "nothing of it was promoted yet"
    return f"The project {project} has no model {alias!r}; {has}."
