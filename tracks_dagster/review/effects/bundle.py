"""A checkpoint to hand over: one folder with all that is needed to use it, and where it comes from.

    weights.pt, config.json, checkpoint.json    as an eval gets them (`training.saves.handoff`)
    files/                                      in weights.pt's place, of a folder that a script wrote
    code/                                       the files that the run was declared with
    packages.txt                                name==version of the interpreter that trained it
    evals.json, evals/SUITE/NUMBER/…            every eval of it, and the files that these left
    artifacts/NAME/…                            what the run's script left beside its checkpoints
    lineage.json                                run, checkpoint, promotions, attempts that it rests on
    SHA256SUMS                                  `sha256sum -c SHA256SUMS` checks all of it

Nothing in it needs this package to be read.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracks_dagster.holds.effects.descent import ancestors
from tracks_dagster.holds.effects.things import find_exact
from tracks_dagster.holds.lineage import checkpoint_thing
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.ledger.facts.checkpoint import CHECKPOINT, EVAL, eval_view
from tracks_dagster.ledger.facts.fact import nested
from tracks_dagster.ledger.facts.run import PROMOTION, RUN, PromotionView, run_view
from tracks_dagster.ledger.ports import Ledger
from tracks_dagster.track.addressed import read_addressed, sha256_in
from tracks_dagster.track.artifacts import artifacts_of
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import CheckpointCorrupt, InvalidInput, ObjectLost
from tracks_dagster.track.names import TRAINER_FAMILY
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.evals import artifact_key, result_key
from tracks_dagster.track.states.run_state import CheckpointState, EvalState, RunState, trainer_of
from tracks_dagster.track.states.stop_cause import stop_cause
from tracks_dagster.track.track import packages_key
from tracks_dagster.training.projects.code import CODE, lay_out
from tracks_dagster.training.saves import handoff
from tracks_dagster.training.saves.artifacts import write_out

SUMS = "SHA256SUMS"
PACKAGES, EVALS, ARTIFACTS, LINEAGE = "packages.txt", "evals.json", "evals", "lineage.json"
LEFT = "artifacts"
OWN_NAMES = {
    *(handoff.WEIGHTS, handoff.OWN_FILES, handoff.CONFIG, handoff.CHECKPOINT, CODE),
    *(PACKAGES, EVALS, ARTIFACTS, LINEAGE, LEFT, SUMS),
}
# What Trainer and accelerate leave beside the model; `tracks checkpoints export` writes it too.
TRAINING_STATE = re.compile(
    r"(optimizer|scheduler|scaler)(_\d+)?\.(pt|bin)|training_args\.bin|rng_state(_\d+)?\.pth|"
    r"random_states_\d+\.pkl"
)
BACKSLASH = "\\"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What was written. missing: what the store no longer has, in words."""

    path: str
    weights_sha256: str
    file_count: int
    total_bytes: int
    missing: tuple[str, ...]


def write_bundle(
    tracks: Tracks,
    ledger: Ledger,
    state: RunState,
    checkpoint: CheckpointState,
    folder: Path,
    *,
    added: Sequence[Path] = (),
    then: Callable[[Path], None] | None = None,
) -> Bundle:
    """Make `folder` of a checkpoint, in full or not at all; every chunk is verified as it is read.

    added: files of a person's own, put beside; then: completes the folder before it is sealed. Raises
    InvalidInput for a folder that is there or cannot be written, CheckpointCorrupt, CheckpointMismatch.
    """
    check_bundle(folder, added)
    scratch = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.partial")
    try:
        digest, missing = _fill(tracks, ledger, state, checkpoint, scratch, added)
        if then is not None:
            then(scratch)
        sizes = [path.stat().st_size for path in _seal(scratch)]
        scratch.rename(folder)
    except OSError as error:
        raise InvalidInput(
            f"Cannot write {folder}: {error}. Nothing was left; choose a folder that can be written "
            "and has room for the weights."
        ) from error
    except CheckpointCorrupt as error:
        ref = checkpoint.ref
        raise CheckpointCorrupt(
            f"Cannot hand over step {ref.step} of run {ref.run_id}: {error} Nothing was left. `tracks "
            f"checkpoints verify {ref.run_id} --step {ref.step} --attempt {ref.attempt_id}` records it."
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Bundle(
        path=str(folder),
        weights_sha256=digest,
        file_count=len(sizes),
        total_bytes=sum(sizes),
        missing=missing,
    )


def describe_bundle(made: Bundle) -> str:
    """Return what was written in sentences."""
    lost = "".join(f" Not in it: {each}." for each in made.missing)
    return (
        f"{made.path}: {made.file_count} files, {made.total_bytes} bytes; weights_sha256 "
        f"{made.weights_sha256}.{lost}"
    )


def check_bundle(folder: Path, added: Sequence[Path]) -> None:
    """Raise InvalidInput unless `folder` can be made, and each of `added` has a name for itself."""
    try:
        is_free = not folder.exists() and folder.absolute().parent.is_dir()
    except OSError as error:  # a name that is too long, a folder that may not be read
        raise InvalidInput(f"Cannot make {folder}: {error.strerror}.") from error
    if not is_free:
        raise InvalidInput(
            f"Cannot make {folder}: name a folder that is not there yet, in one that is."
        )
    taken = set(OWN_NAMES)
    for path in added:
        if path.name in taken:
            raise InvalidInput(
                f"Cannot add {path}: another file of the bundle is called {path.name}; give yours "
                "another name."
            )
        taken.add(path.name)


def _fill(
    tracks: Tracks,
    ledger: Ledger,
    state: RunState,
    checkpoint: CheckpointState,
    folder: Path,
    added: Sequence[Path],
) -> tuple[str, tuple[str, ...]]:
    """Write everything but the sums; return the weights' digest and what the store lacks."""
    store, ref = tracks.store, checkpoint.ref
    attempt = state.attempt(ref.attempt_id)
    config = state.declared.config if attempt is None else attempt.opened.config
    digest = handoff.write_checkpoint(store, ref, folder, config=config)
    missing = _without_training_state(folder / handoff.OWN_FILES)
    trainer = state.declared.trainer if attempt is None else trainer_of(state, attempt)
    if trainer != TRAINER_FAMILY:
        code = _read(store, trainer, sha256_in(trainer), missing)
        if code is not None:
            lay_out(folder / CODE, code=code, key=trainer, files={})
    placed = None if attempt is None else attempt.placed
    if placed is not None and placed.packages_sha256 is not None:
        key = packages_key(state.run_id, placed.packages_sha256)
        packages = _read(store, key, placed.packages_sha256, missing)
        if packages is not None:
            (folder / PACKAGES).write_bytes(packages)
    done = [each for each in state.evals if each.opened.checkpoint == ref]
    handoff.write_json(folder / EVALS, [nested(EVAL, eval_view(state, each)) for each in done])
    for each in done:
        _write_artifacts(store, state.run_id, each, folder / ARTIFACTS, missing)
    for left in artifacts_of(each.body for each in state.notes):
        try:
            write_out(store, state.run_id, left.sha256, folder / LEFT / left.name)
        except CheckpointCorrupt as error:
            missing.append(f"artifact {left.name}: {error}".rstrip("."))
    handoff.write_json(folder / LINEAGE, _lineage(tracks, ledger, state, checkpoint))
    for path in added:
        shutil.copyfile(path, folder / path.name)
    return digest, tuple(missing)


def _without_training_state(files: Path) -> list[str]:
    """Remove what only training on needs of a folder that a framework wrote; return it in words."""
    found = [path for path in files.rglob("*") if TRAINING_STATE.fullmatch(path.name)]
    for path in found:
        path.unlink()
    names = ", ".join(sorted({path.name for path in found}))
    return [f"{names}, which only training on needs"] if found else []


def _read(store: ObjectStore, key: str, expected: str, missing: list[str]) -> bytes | None:
    """Return an object that has that sha256; else None, and say so."""
    try:
        return read_addressed(store, key, expected)
    except ObjectLost as error:
        missing.append(str(error))
        return None


def _write_artifacts(
    store: ObjectStore, run_id: str, done: EvalState, folder: Path, missing: list[str]
) -> None:
    opened = done.opened
    written_at = result_key(run_id, opened.eval_id, opened.number)
    for each in () if done.ended is None else done.ended.artifacts:
        data = _read(store, artifact_key(written_at, each.name), each.sha256, missing)
        if data is not None:
            path = folder / opened.suite / str(opened.number) / each.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def _lineage(
    tracks: Tracks, ledger: Ledger, state: RunState, checkpoint: CheckpointState
) -> dict[str, Json]:
    promotions = [
        PromotionView(run_id=state.run_id, body=each.body, seq=each.seq, at=each.at)
        for each in state.promotions
        if each.body.checkpoint == checkpoint.ref
    ]
    found = find_exact(tracks, ledger, checkpoint_thing(checkpoint.ref))
    return {
        "run": nested(RUN, run_view(state)),
        "checkpoint": nested(CHECKPOINT, checkpoint),
        "stop_cause": stop_cause(state, checkpoint.ref).value,
        "promotions": [nested(PROMOTION, each) for each in promotions],
        "rests_on": to_json(ancestors(ledger, found)),
    }


def _seal(folder: Path) -> list[Path]:
    """Write the sums of all files, make them durable, and return the files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    lines = (_sum_line(_digest(path), path.relative_to(folder).as_posix()) for path in files)
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")
    files.append(folder / SUMS)
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    return files


def damage_of_bundle(folder: Path) -> str | None:
    """Return what of a bundle is not as its sums say, or None."""
    try:
        lines = set((folder / SUMS).read_text(encoding="utf-8").splitlines(keepends=True))
        found = {
            _sum_line(_digest(path), path.relative_to(folder).as_posix())
            for path in folder.rglob("*")
            if path.is_file() and path != folder / SUMS
        }
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    differing = sorted(lines ^ found)
    return f"other bytes than its sums say: {differing[0].strip()}" if differing else None


def _sum_line(digest: str, name: str) -> str:
    """Return a line as `sha256sum` writes it: one with escapes in the name begins with a backslash."""
    escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"{'' if escaped == name else BACKSLASH}{digest}  {escaped}\n"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
