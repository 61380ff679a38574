"""Check the bytes that records name: checkpoints, evidence, code, packages, evals, data, journals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tracks_dagster.attempts.effects.evidence import read_journal_end
from tracks_dagster.recovery.effects.fsck_tracks import Finding, FindingKind, fold_track, read_track
from tracks_dagster.stores.hashes import digest
from tracks_dagster.stores.journals import (
    SEGMENT_BYTES_MAX,
    journal_prefix,
    segment_key,
    segment_offsets,
)
from tracks_dagster.track import imported, media
from tracks_dagster.track.addressed import damage_at, damage_of
from tracks_dagster.track.artifacts import artifacts_of, files_of, list_key, part_key
from tracks_dagster.track.bodies import SnapshotCommitted
from tracks_dagster.track.errors import CheckpointError, DataRejected, TrackBroken
from tracks_dagster.track.json_text import (
    MANIFEST_BYTES_MAX,
    SMALL_BYTES_MAX,
    SNAPSHOT_BYTES_MAX,
    parse_json,
)
from tracks_dagster.track.names import AttemptRef, run_track
from tracks_dagster.track.placement import places_key
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.checkpoints import CheckpointRef, manifest_key
from tracks_dagster.track.states.dataset_state import DatasetState, checks_key
from tracks_dagster.track.states.evals import artifact_key, result_key
from tracks_dagster.track.states.files_manifest import (
    FilesManifest,
    Part,
    files_shard_key,
    is_files_manifest,
    parse_files_manifest,
)
from tracks_dagster.track.states.history_state import HistoryState
from tracks_dagster.track.states.project_state import ProjectState
from tracks_dagster.track.states.run_state import AttemptState, RunState, code_of, trainer_of
from tracks_dagster.track.states.study_state import StudyState
from tracks_dagster.track.track import (
    code_diff_key,
    history_chunk_key,
    history_curves_key,
    history_uids_key,
    packages_key,
    project_code_key,
    project_diff_key,
)

VerifyCheckpoint = Callable[[ObjectStore, CheckpointRef], object]  # reads it all, or raises
IsAbsent = Callable[[str], bool]  # whether an object is not there on purpose, by its key

RESTORE = "Restore the object from a backup or the bucket's versions if the steps matter"
FILES_NAMED_MAX = 3  # of a dataset, whose bytes a bad shard holds


def nothing_is_absent(key: str) -> bool:
    """Miss every object that a record names and that is not there."""
    return False


def check_checkpoints(
    store: ObjectStore, state: RunState, verify: VerifyCheckpoint
) -> Iterator[Finding]:
    """Read every byte of every checkpoint that was not deleted."""
    for checkpoint in state.checkpoints:
        if checkpoint.deleted:
            continue
        ref = checkpoint.ref
        try:
            verify(store, ref)
        except CheckpointError as error:
            if _was_deleted_since(store, ref):
                continue
            yield Finding(
                kind=FindingKind.CHECKPOINT_CORRUPT,
                where=ref.object_prefix,
                meaning=f"The checkpoint of step {ref.step}, attempt {ref.attempt_id}, of run "
                f"{ref.run_id} cannot be trusted. {error}",
                to_do="Nothing by hand: a restore verifies every hash, quarantines it and falls "
                "back to the checkpoint before. Do not promote it.",
            )


def _was_deleted_since(store: ObjectStore, ref: CheckpointRef) -> bool:
    """Whether a checkpoint was deleted after its track had been read."""
    name = run_track(ref.run_id)
    state, _ = fold_track(name, read_track(store, name)[0])
    checkpoint = state.checkpoint(ref.manifest_sha256) if isinstance(state, RunState) else None
    return checkpoint is not None and checkpoint.deleted


def check_deletions(store: ObjectStore, state: RunState) -> Iterator[Finding]:
    """Check the lists of chunks by which unfinished deletions continue."""
    for checkpoint in state.checkpoints:
        key = checkpoint.deletion.chunks_key if checkpoint.deletion is not None else None
        if key is None or store.get(manifest_key(checkpoint.ref), 0) is None:
            continue
        problem = damage_at(store, key)
        if problem is not None:
            yield Finding(
                kind=FindingKind.DELETION_LIST_WRONG,
                where=key,
                meaning=f"The list of chunks that go with step {checkpoint.ref.step}, attempt "
                f"{checkpoint.ref.attempt_id}, of run {state.run_id} {problem}, and the deletion is "
                "not finished.",
                to_do="Restore the object if it can be had; else, once the attempt has ended, "
                f"`tracks checkpoints gc {state.run_id}` removes what lies under the checkpoint's "
                "own prefix.",
            )


def check_evidence(
    store: ObjectStore, state: RunState, is_absent: IsAbsent = nothing_is_absent
) -> Iterator[Finding]:
    """Check the stored evidence of every ended attempt."""
    for attempt in state.attempts:
        if attempt.ended is None or is_absent(attempt.ended.evidence_key):
            continue
        key = attempt.ended.evidence_key
        problem = damage_at(store, key, attempt.ended.evidence_sha256)
        if problem is not None:
            yield Finding(
                kind=FindingKind.EVIDENCE_WRONG,
                where=key,
                meaning=f"The evidence for the end of attempt {attempt.attempt_id} of run "
                f"{state.run_id} {problem}; the verdict ({attempt.reason}) is in the track.",
                to_do="Restore the object from a backup if the verdict is in doubt.",
            )


def check_places(
    store: ObjectStore, state: RunState, is_absent: IsAbsent = nothing_is_absent
) -> Iterator[Finding]:
    """Check the list of places of each gang that was too large for its record."""
    for attempt in state.attempts:
        placed = attempt.placed
        if placed is None or placed.places_sha256 is None:
            continue
        key = places_key(state.ref(attempt), placed.launch_id, placed.places_sha256)
        problem = None if is_absent(key) else damage_at(store, key, placed.places_sha256)
        if problem is not None:
            yield Finding(
                kind=FindingKind.PLACES_WRONG,
                where=key,
                meaning=f"The list of where each rank of attempt {attempt.attempt_id} of run "
                f"{state.run_id} ran {problem}; its record still names the nodes.",
                to_do="Restore the object from a backup if the devices or processes matter.",
            )


def check_eval_results(store: ObjectStore, state: RunState) -> Iterator[Finding]:
    """Check that what an evaluator left, where it still lies there, is what the record took from it."""
    for each in state.evals:
        key = result_key(state.run_id, each.opened.eval_id, each.opened.number)
        if each.ended is None or not each.ended.metrics:
            continue
        data = store.get(key, SMALL_BYTES_MAX)
        if data is not None and _metrics_of(data) != dict(each.ended.metrics):
            yield Finding(
                kind=FindingKind.EVAL_RESULT_WRONG,
                where=key,
                meaning=f"The stored result of eval {each.opened.eval_id}, number "
                f"{each.opened.number}, of run {state.run_id} has other metrics than the record "
                f"that was made of it: it was changed afterwards. The record counts.",
                to_do="Find out who wrote there; `tracks explain` and promotion go by the record.",
            )


def check_eval_files(
    store: ObjectStore, state: RunState, is_absent: IsAbsent = nothing_is_absent
) -> Iterator[Finding]:
    """Check the files that evals left."""
    for each in state.evals:
        opened = each.opened
        written_at = result_key(state.run_id, opened.eval_id, opened.number)
        for artifact in () if each.ended is None else each.ended.artifacts:
            key = artifact_key(written_at, artifact.name)
            problem = None if is_absent(key) else damage_at(store, key, artifact.sha256)
            if problem is not None:
                yield Finding(
                    kind=FindingKind.EVAL_FILE_WRONG,
                    where=key,
                    meaning=f"{artifact.name}, which eval {opened.eval_id}, number {opened.number}, of "
                    f"run {state.run_id} left, {problem}; its metrics are in the record.",
                    to_do="Restore the object from a backup, or measure again with another seed: "
                    f"`tracks eval {state.run_id}@{opened.checkpoint.step} --seed N`.",
                )


def check_artifacts(
    store: ObjectStore, state: RunState, is_absent: IsAbsent = nothing_is_absent
) -> Iterator[Finding]:
    """Check what the run's script left beside its checkpoints, every byte."""
    for left in artifacts_of(note.body for note in state.notes):
        key = list_key(state.run_id, left.sha256)
        data = store.get(key, MANIFEST_BYTES_MAX)
        problem = damage_of(data, left.sha256)
        if problem is None:
            for file in files_of(parse_json(data or b"", bytes_max=MANIFEST_BYTES_MAX)):
                for part in file.parts:
                    own = part_key(state.run_id, part)
                    wrong = None if is_absent(own) else damage_at(store, own, part)
                    key, problem = (own, f"{file.path} {wrong}") if wrong else (key, problem)
        if problem is not None:
            yield Finding(
                kind=FindingKind.ARTIFACT_WRONG,
                where=key,
                meaning=f"The artifact {left.name} of run {state.run_id} cannot be had: {problem}.",
                to_do="Restore the object from a backup, or leave the artifact again under its name; "
                "nothing resumes from it.",
            )


def check_media(
    store: ObjectStore, state: RunState, is_absent: IsAbsent = nothing_is_absent
) -> Iterator[Finding]:
    """Check the texts, pictures and tables that the run's script logged, and the lists of them."""
    for attempt in state.attempts:
        if attempt.placed is None:
            continue
        key = media.index_key(state.ref(attempt), attempt.placed.launch_id)
        for at, problem in _media_problems(store, state.run_id, key, is_absent):
            yield Finding(
                kind=FindingKind.MEDIA_WRONG,
                where=at,
                meaning=f"What attempt {attempt.attempt_id} of run {state.run_id} logged cannot be "
                f"shown: {problem}.",
                to_do="Restore the object from a backup if it is to be seen; nothing is decided by it.",
            )


def _media_problems(
    store: ObjectStore, run_id: str, key: str, is_absent: IsAbsent
) -> Iterator[tuple[str, str]]:
    data = store.get(key, MANIFEST_BYTES_MAX)
    if data is None:
        return
    try:
        found = parse_json(data, bytes_max=MANIFEST_BYTES_MAX)
    except ValueError:
        yield key, "the list of it is not JSON"
        return
    items, _ = media.index_of(found)
    if (count := media.left_out(found)) > 0:
        yield (
            key,
            f"{count} of what its list names is of a kind that is not known here, or damaged",
        )
    for sha256, item in {item.sha256: item for item in items}.items():
        part = media.part_key(run_id, sha256)
        problem = None if is_absent(part) else damage_at(store, part, sha256)
        if problem is not None:
            yield part, f"{item.name} of step {item.step} {problem}"


def check_packages(
    store: ObjectStore, state: RunState, is_absent: IsAbsent = nothing_is_absent
) -> Iterator[Finding]:
    """Check each list of packages that attempts ran with; mostly they share one."""
    ran_with: dict[str, list[int]] = {}
    for attempt in state.attempts:
        if attempt.placed is not None and attempt.placed.packages_sha256 is not None:
            ran_with.setdefault(attempt.placed.packages_sha256, []).append(attempt.attempt_id)
    for sha256, attempt_ids in ran_with.items():
        key = packages_key(state.run_id, sha256)
        problem = None if is_absent(key) else damage_at(store, key, sha256)
        if problem is not None:
            yield Finding(
                kind=FindingKind.PACKAGES_WRONG,
                where=key,
                meaning=f"The list of all packages that run {state.run_id} had from attempt "
                f"{attempt_ids[0]} on {problem}; its records still name python, torch and numpy.",
                to_do="Restore the object from a backup if the interpreter is to be built again; "
                "nothing reads it to train.",
            )


def check_trainer(
    store: ObjectStore, state: RunState, is_absent: IsAbsent = nothing_is_absent
) -> Iterator[Finding]:
    """Check the stored code of a run, and the local changes of its checkout: what it was declared with,
    and what later attempts and evals were given."""
    brought = [each.opened.brought.code_key for each in state.evals if each.opened.brought]
    trainers = (trainer_of(state, each) for each in state.attempts)
    for key in sorted({state.declared.trainer, *trainers, *brought}):
        if key == "family" or is_absent(key):
            continue
        problem = damage_at(store, key)
        if problem is not None:
            yield Finding(
                kind=FindingKind.TRAINER_WRONG,
                where=key,
                meaning=f"The stored code of run {state.run_id} {problem}.",
                to_do="Restore the object, or give the run the code of your own checkout: "
                f'`tracks retry {state.run_id} --why "…" --code DIR`, or --trainer FILE.py.',
            )
    codes = (state.declared.code, *(code_of(state, each) for each in state.attempts))
    for code in dict.fromkeys(codes):
        if code.diff_sha256 is None:
            continue
        key = code_diff_key(state.run_id, code.diff_sha256)
        problem = None if is_absent(key) else damage_at(store, key, code.diff_sha256)
        if problem is not None:
            yield Finding(
                kind=FindingKind.CODE_DIFF_WRONG,
                where=key,
                meaning=f"What the checkout of run {state.run_id} had beside commit "
                f"{code.git_commit or 'unknown'} {problem}.",
                to_do="Restore the object from a backup if the change is to be read; a project's files "
                "are stored whole beside it.",
            )


def check_project(store: ObjectStore, state: ProjectState) -> Iterator[Finding]:
    """Check the files of every stored version of a project, and what each has beside its commit."""
    again = "Restore the object, or store the project again: `tracks projects add DIR`."
    for version in state.versions:
        body, name = version.body, f"Version {version.number} of the project {state.project}"
        key = project_code_key(state.project, body.code_sha256)
        problem = damage_at(store, key, body.code_sha256)
        if problem is not None:
            yield Finding(
                kind=FindingKind.TRAINER_WRONG,
                where=key,
                meaning=f"{name} cannot be trained: its stored code {problem}.",
                to_do=again,
            )
        if body.code.diff_sha256 is None:
            continue
        key = project_diff_key(state.project, body.code.diff_sha256)
        problem = damage_at(store, key, body.code.diff_sha256)
        if problem is not None:
            yield Finding(
                kind=FindingKind.CODE_DIFF_WRONG,
                where=key,
                meaning=f"{name} lacks what its checkout had beside commit "
                f"{body.code.git_commit or 'unknown'}: it {problem}.",
                to_do=again,
            )


def check_study_code(store: ObjectStore, state: StudyState) -> Iterator[Finding]:
    """Check the stored code that the trials of a study train."""
    key = state.declared.run.trainer
    problem = damage_at(store, key)
    if problem is not None:
        yield Finding(
            kind=FindingKind.TRAINER_WRONG,
            where=key,
            meaning=f"The stored code of the study {state.declared.study} {problem}; no further run of "
            "its trials can begin.",
            to_do="Restore the object from a backup or the bucket's versions; every run of its trials "
            "has a copy in its own folder.",
        )


def check_history(store: ObjectStore, state: HistoryState) -> Iterator[Finding]:
    """Check what was imported: attempts, the list of which are known, and their curves.

    Holds one chunk at a time. Curves that only a lost chunk names are not known of.
    """
    for chunk in {each.chunk_sha256: each for each in state.chunks}.values():
        runs = f"runs {chunk.first_run_id} to {chunk.last_run_id}, attempts: {chunk.attempt_count}"
        key = history_uids_key(state.name, chunk.uids_sha256)
        problem = damage_at(store, key, chunk.uids_sha256)
        if problem is not None:
            yield _history_wrong(
                state.name,
                key,
                f"The list of which attempts of {state.name} were imported {problem}, for {runs}. They "
                "are shown; nothing more of this history can be imported, as nobody knows what is new.",
            )
        key = history_chunk_key(state.name, chunk.chunk_sha256)
        data = store.get(key, SNAPSHOT_BYTES_MAX)
        problem = damage_of(data, chunk.chunk_sha256)
        attempts: Sequence[imported.ImportedAttempt] = ()
        if problem is None:
            try:
                attempts = imported.unpack(data or b"")
            except TrackBroken as error:
                problem = f"is not one: {error}"
        if problem is not None:
            yield _history_wrong(
                state.name,
                key,
                f"A chunk of {state.name} {problem}. What it has of {runs}, is not known: these "
                "have no page and no explanation, and a reindex would lose their rows.",
            )
        for attempt in attempts:
            yield from _lost_curves(store, state.name, attempt)


def _lost_curves(
    store: ObjectStore, name: str, attempt: imported.ImportedAttempt
) -> Iterator[Finding]:
    for sha256 in attempt.curves.values():
        key = history_curves_key(name, sha256)
        problem = damage_at(store, key, sha256)
        if problem is not None:
            yield _history_wrong(
                name,
                key,
                f"Curves of the attempt of {attempt.run_id} that ended at {attempt.ended_at} cannot be "
                f"shown: their object {problem}. Its verdict and newest values are known.",
            )


def _history_wrong(name: str, where: str, meaning: str) -> Finding:
    return Finding(
        kind=FindingKind.HISTORY_WRONG,
        where=where,
        meaning=meaning,
        to_do="Restore the object from a backup or the bucket's versions, or import the same source "
        f"again with another --name: as {name} its attempts count as known.",
    )


def check_journals(store: ObjectStore, state: RunState) -> Iterator[Finding]:
    """Check the journal of every rank of every ended attempt; holds one segment at a time.

    No record names them by hash: they are too frequent. But their segments follow one another to the
    byte, every line but the last is whole, and they reach the step that the end's record names.
    """
    for attempt in state.attempts:
        if attempt.placed is None or attempt.ended is None:
            continue
        launch_id = attempt.placed.launch_id
        prefix = f"{state.ref(attempt).folder}{launch_id}/journal/"
        for rank in store.folders(prefix):
            yield from _check_segments(store, f"{prefix}{rank}/")
        yield from _check_end(store, state.run_id, attempt, prefix)


def _check_segments(store: ObjectStore, prefix: str) -> Iterator[Finding]:
    """Yield the first thing that is wrong with one rank's journal."""
    end, torn = 0, b""  # of the file on the gang's machine; what the segment before did not finish
    for offset in segment_offsets(store, prefix):
        key = segment_key(prefix, offset)
        data = store.get(key, SEGMENT_BYTES_MAX)
        if data is None:
            continue
        if len(data) > SEGMENT_BYTES_MAX:
            yield Finding(
                kind=FindingKind.JOURNAL_EDITED,
                where=key,
                meaning=f"It has more than {SEGMENT_BYTES_MAX} bytes, and no segment of a journal has: "
                "something else wrote it. What is in it is not shown.",
                to_do=f"{RESTORE}, and find out who wrote there.",
            )
            return
        if offset > end:
            yield Finding(
                kind=FindingKind.JOURNAL_GAP,
                where=key,
                meaning=f"The {offset - end} bytes of this journal before it are gone: segments are "
                "shipped one after the other, so one was deleted. The steps in it are not shown.",
                to_do=f"{RESTORE}; no decision rests on them.",
            )
            return
        lines = (torn + data[end - offset :]).split(b"\n")
        torn = lines.pop()
        end = max(end, offset + len(data))
        if (bad := next((line for line in lines if not _is_whole(line)), None)) is not None:
            yield Finding(
                kind=FindingKind.JOURNAL_EDITED,
                where=key,
                meaning=f"A line of this journal is not JSON ({bad[:40]!r}…) and whole lines follow "
                "it: it was edited or damaged after it was written. That line is not shown.",
                to_do=f"{RESTORE}, and find out who wrote there.",
            )
            return


def _check_end(
    store: ObjectStore, run_id: str, attempt: AttemptState, prefix: str
) -> Iterator[Finding]:
    assert attempt.placed is not None
    assert attempt.ended is not None
    recorded = attempt.ended.last_step
    if recorded is None:
        return
    journal = journal_prefix(AttemptRef(run_id, attempt.attempt_id), attempt.placed.launch_id, 0)
    found = read_journal_end(store, journal).last_step
    if found is None or found < recorded:
        yield Finding(
            kind=FindingKind.JOURNAL_SHORT,
            where=prefix,
            meaning=f"The journal of attempt {attempt.attempt_id} of run {run_id} "
            f"{'holds no step' if found is None else f'ends at step {found}'}, and its record names "
            f"step {recorded}: the end of it was deleted, or never left a machine that was taken away.",
            to_do="Nothing, where the machine is gone: the verdict and the count of steps are in "
            f"the track. Else {RESTORE[0].lower()}{RESTORE[1:]}.",
        )


def _is_whole(line: bytes) -> bool:
    try:
        return not line or isinstance(parse_json(line), dict)
    except ValueError:
        return False


def check_snapshots(
    store: ObjectStore, state: DatasetState, is_absent: IsAbsent = nothing_is_absent
) -> Iterator[Finding]:
    """Check the manifest, every shard and the own checks of each snapshot of a dataset."""
    for snapshot in state.snapshots:
        body = snapshot.body
        yield from _check_checks(store, body, is_absent)
        for key, problem in _snapshot_problems(
            store, body.manifest_key, body.snapshot_id, is_absent
        ):
            yield Finding(
                kind=FindingKind.SNAPSHOT_WRONG,
                where=key,
                meaning=f"An object of snapshot {body.snapshot_id} of {body.dataset} {problem}; "
                "runs on that snapshot cannot load it.",
                to_do="Restore the object, or remove it and make the snapshot again from the same "
                "source: the same data gives the same id.",
            )


def _check_checks(
    store: ObjectStore, body: SnapshotCommitted, is_absent: IsAbsent
) -> Iterator[Finding]:
    sha256 = body.checks_sha256
    key = "" if sha256 is None else checks_key(body.dataset, sha256)
    problem = None if sha256 is None or is_absent(key) else damage_at(store, key, sha256)
    if problem is not None:
        yield Finding(
            kind=FindingKind.CHECKS_WRONG,
            where=key,
            meaning=f"The file of checks that snapshot {body.snapshot_id} of {body.dataset} passed "
            f"{problem}; runs on the snapshot are not affected.",
            to_do="Restore the object from a backup, or name the file again with the next snapshot: "
            f"`tracks snapshots add {body.dataset} PATH --checks FILE.py`.",
        )


def _snapshot_problems(
    store: ObjectStore, manifest_key: str, snapshot_id: str, is_absent: IsAbsent
) -> Iterator[tuple[str, str]]:
    manifest = store.get(manifest_key, SNAPSHOT_BYTES_MAX)
    problem = damage_of(manifest, snapshot_id)
    if manifest is None or problem is not None:
        yield manifest_key, problem or "is missing"
        return
    if is_files_manifest(manifest):
        try:
            files = parse_files_manifest(manifest)
        except DataRejected:
            yield manifest_key, "is not a manifest that this version knows"
            return
        yield from _files_problems(store, files, is_absent)
        return
    shards = _shards_of(manifest)
    if shards is None:
        yield manifest_key, "is not a manifest that this version knows"
        return
    for key, sha256 in shards:
        problem = None if is_absent(key) else damage_at(store, key, sha256)
        if problem is not None:
            yield key, problem


def _files_problems(
    store: ObjectStore, manifest: FilesManifest, is_absent: IsAbsent
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the shards of files; what lies in place is each attempt's to verify."""
    for name, parts in manifest.shards.items():
        key = files_shard_key(manifest.dataset, name)
        if is_absent(key):
            continue
        data = store.get(key, SNAPSHOT_BYTES_MAX)
        wrong = parts if data is None else [part for part in parts if not _holds(data, part)]
        if wrong:
            how = "is missing" if data is None else "has other bytes than the manifest names"
            yield key, f"{how}, of {_files_with(manifest, name, wrong)}"


def _holds(data: bytes, part: Part) -> bool:
    return digest(memoryview(data)[part.offset : part.offset + part.size_bytes]) == part.blake3


def _files_with(manifest: FilesManifest, shard: str, parts: Sequence[Part]) -> str:
    """Name the files that have bytes in these parts of a shard."""
    offsets = {part.offset for part in parts}
    found = [
        file.path
        for file in manifest.files
        if any(part.shard == shard and part.offset in offsets for part in file.parts)
    ]
    more = f" and {len(found) - FILES_NAMED_MAX} more files"
    return ", ".join(found[:FILES_NAMED_MAX]) + (more if len(found) > FILES_NAMED_MAX else "")


def _shards_of(manifest: bytes) -> list[tuple[str, str]] | None:
    try:
        return [
            (shard["key"], shard["sha256"])
            for shard in parse_json(manifest, bytes_max=SNAPSHOT_BYTES_MAX)["shards"]
        ]
    except (ValueError, KeyError, TypeError):
        return None


def _metrics_of(data: bytes) -> Json:
    try:
        return parse_json(data)["metrics"]
    except (ValueError, KeyError, TypeError):
        return None
