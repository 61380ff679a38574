"""Damaged checkpoints and tracks: found, named, and never loaded.

A case takes a run with three checkpoints, damages up to three things of them by a seed, and restores
as an attempt does. An oracle that knows only which objects differ says which checkpoint must come
back. The newest record of a track has no successor whose link would tell of an edit: there the
ledger's memory tells (`tests/recovery/test_fsck.py`).

TRACKS_DAMAGE_SEED=n runs the one case n in every test here.
"""

from __future__ import annotations

import copy
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.fakes import FakeObjectStore
from tests.s3_fronts import no_wire, open_faulty_store
from tests.training.checkpoints import weights_of
from tests.training.damage import DAMAGES, Target, damage, edit_record, mixed_manifest
from tests.training.gangs import TrainingRun
from tests.training.loops import train_linear
from tracks_dagster.stores import open_store
from tracks_dagster.track.bodies import CheckpointDecision
from tracks_dagster.track.body_json import to_json
from tracks_dagster.track.errors import TrackBroken
from tracks_dagster.track.names import run_track
from tracks_dagster.track.ports import ObjectStore
from tracks_dagster.track.records import Draft, Kind, sha256_hex
from tracks_dagster.track.states.checkpoints import CheckpointRef, manifest_key
from tracks_dagster.track.track import Track
from tracks_dagster.training import launch as launching
from tracks_dagster.training.environment import read_environment
from tracks_dagster.training.launch import Launch
from tracks_dagster.training.ranks import Ranks
from tracks_dagster.training.saves import layout
from tracks_dagster.training.saves.loading import Fetched, fetch, load_into
from tracks_dagster.training.saves.restoring import Found, find_checkpoint
from tracks_dagster.training.saves.staging import Arena
from tracks_dagster.training.saves.trained import Trained

ENV_SEED = "TRACKS_DAMAGE_SEED"
CPU = torch.device("cpu")
WIDTH = 64  # a layer has 16 KiB: two chunks, four pages

Weights = dict[str, bytes]


class Template:
    """A run with checkpoints of steps 2, 4 and 6 in memory; one layer of its model is frozen."""

    def __init__(self, folder: Path) -> None:
        self.store = FakeObjectStore()
        self.run = TrainingRun(folder, store=self.store, steps=6, every_steps=2)
        with self.run.joined() as a:
            train_linear(a, until=6, model=model())
        self.refs = sorted((c.ref for c in self.run.state.checkpoints), key=lambda ref: ref.step)
        self.weights = {ref: _bytes(weights_of(self.store, ref)) for ref in self.refs}
        target = Target(store=self.store, whole=self.store, refs=self.refs)
        self.objects = {ref: frozenset(target.objects(ref)) for ref in self.refs}

    def within(self, store: ObjectStore, folder: Path) -> TrainingRun:
        """The run as it lies in another store that holds the same."""
        run = copy.copy(self.run)
        run.store, run.folder = store, folder
        run.track = Track(store, run_track("r"), now=lambda: datetime.now(UTC))
        return run


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of at most 8 KiB; tensors above 1 KiB have their own."""
    monkeypatch.setattr(layout, "CHUNK_BYTES_MAX", 8192)
    monkeypatch.setattr(layout, "SHARED_BYTES_MAX", 1024)


@pytest.fixture
def template(tmp_path: Path, _small_chunks: None) -> Template:
    (tmp_path / "template").mkdir()
    return Template(tmp_path / "template")


def model() -> nn.Module:
    torch.manual_seed(3)
    layers = nn.Sequential(
        nn.Linear(1, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
    )
    layers[2].requires_grad_(False)
    return layers


def fresh() -> Trained:
    """What an attempt restores into: other weights, same shapes."""
    layers = model()
    for parameter in layers.parameters():
        nn.init.zeros_(parameter)
    return Trained(
        model=layers, optimizer=torch.optim.SGD(layers.parameters(), lr=0.1, momentum=0.9)
    )


@contextmanager
def placed(run: TrainingRun, attempt_id: int) -> Iterator[Launch]:
    """Place an attempt, as its only rank."""
    where = run.place(attempt_id, run.folder / f"work-{attempt_id}")
    ranks = Ranks(rank=0, world_size=1, device=CPU)
    alone = read_environment({})
    launch = launching.place(run.store, where, ranks, alone, on_launch_id=lambda _: None)
    try:
        yield launch
    finally:
        launch.journal.close(ship=False)


def fetching(launch: Launch, into: Trained) -> Callable[[CheckpointRef], Fetched]:
    return lambda ref: fetch(launch.store, ref, into, arena=Arena(CPU))


def restore(launch: Launch, into: Trained) -> Found[Fetched]:
    found = find_checkpoint(launch, fetching(launch, into))
    if found.fetched is not None:
        load_into(into, found.fetched)
    return found


def run_cases(
    template: Template, cases: Iterator[tuple[int, ObjectStore]], folder: Path
) -> Counter[str]:
    """Run every case; print what was done, and the seed of one that fails."""
    done: Counter[str] = Counter()
    for seed, store in cases:
        draw = random.Random(seed)
        work = folder / f"case-{seed}"
        work.mkdir()
        try:
            if draw.random() < 0.2:
                done[edited_track_case(draw, template, store, work)] += 1
            else:
                done.update(damaged_case(draw, template, store, work))
        except BaseException:
            print(f"\n{ENV_SEED}={seed}")
            raise
        shutil.rmtree(work)
    print(f"\n{dict(done)}")
    return done


def seeds(first: int, count: int) -> range:
    chosen = os.environ.get(ENV_SEED)
    return range(first, first + count) if chosen is None else range(int(chosen), int(chosen) + 1)


def damaged_case(
    draw: random.Random, template: Template, store: ObjectStore, folder: Path
) -> list[str]:
    """Damage up to three checkpoints from the newest on, restore, and ask the oracle."""
    run = template.within(store, folder)
    opens_first = draw.random() < 0.5
    attempt_id = run.open() if opens_first else 0
    target = Target(store=store, whole=template.store, refs=template.refs)
    count = draw.choice((1, 1, 2, 3))
    damages = [damage(draw, target, ref) for ref in reversed(template.refs[-count:])]
    attempt_id = attempt_id or run.open()
    into = fresh()
    with placed(run, attempt_id) as launch:
        found = restore(launch, into)
    bad = frozenset[str]().union(*(each.keys for each in damages))
    whole = [ref for ref in template.refs if not template.objects[ref] & bad]
    expected = whole[-1] if whole else None
    newer = [ref for ref in template.refs if expected is None or ref.step > expected.step]
    assert (found.fetched.ref if found.fetched else None) == expected
    assert _bytes_of(into) == (template.weights[expected] if expected else _bytes_of(fresh()))
    quarantined = {
        record.body["manifest_sha256"]: record.body["why"]
        for record in run.records(Kind.CHECKPOINT_QUARANTINED)
    }
    assert quarantined.keys() == {ref.manifest_sha256 for ref in newer}
    for ref in newer:
        check_words(quarantined[ref.manifest_sha256], template, ref, store)
    assert found.fallback_why is not None
    assert quarantined[template.refs[-1].manifest_sha256] in found.fallback_why
    tells = f"resumed from step {expected.step}" if expected else "nothing is left"
    assert tells in found.fallback_why
    return [each.how for each in damages]


def check_words(why: str, template: Template, ref: CheckpointRef, store: ObjectStore) -> None:
    """The message names an object of the checkpoint, what was expected and what was found."""
    (key,) = [key for key in template.objects[ref] if why.startswith(key)] or [""]
    assert key, why
    expected = key.rpartition("/")[2].removeprefix("manifest-").removesuffix(".json")
    assert expected in why
    data = store.get(key)
    if data is None:
        assert "is missing" in why
    elif key == manifest_key(ref):
        assert sha256_hex(data) in why
    elif len(data) != len(template.store.objects[key]):
        assert f"has {len(data)} bytes; expected {len(template.store.objects[key])}" in why
    else:
        assert "has blake3" in why


def edited_track_case(
    draw: random.Random, template: Template, store: ObjectStore, folder: Path
) -> str:
    """Edit a record that others follow: the attempt ends there and nothing is restored."""
    run = template.within(store, folder)
    attempt_id = run.open()
    records = list(run.track.refresh())
    into = fresh()
    with placed(run, attempt_id) as launch:
        how = edit_record(draw, store, records)
        with pytest.raises(TrackBroken) as broken:
            find_checkpoint(launch, fetching(launch, into))
    seq = int(how.split()[1].rstrip(":"))
    said = str(broken.value).lower()
    assert any(f"record {near}" in said for near in (seq, seq + 1, seq + 2)), f"{how}: {said}"
    assert _bytes_of(into) == _bytes_of(fresh())
    return f"record: {how.partition(': ')[2]}"


def in_memory(template: Template, which: range) -> Iterator[tuple[int, ObjectStore]]:
    for seed in which:
        store = FakeObjectStore()
        store.objects = dict(template.store.objects)
        yield seed, store


def in_a_folder(
    template: Template, which: range, tmp_path: Path
) -> Iterator[tuple[int, ObjectStore]]:
    whole = tmp_path / "whole"
    original = open_store(str(whole))
    for key, data in template.store.objects.items():
        original.put(key, data)
    for seed in which:
        root = tmp_path / "store"
        shutil.copytree(whole, root)
        yield seed, open_store(str(root), probe=False)
        shutil.rmtree(root)


def in_s3(
    template: Template, which: range, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[int, ObjectStore]]:
    with no_wire(monkeypatch) as front:
        for seed in which:
            served = front.play(seed)
            for key, data in template.store.objects.items():
                served.put(key, data)
            yield seed, open_faulty_store()


def test_damage_in_memory_is_found_and_never_loaded(template: Template, tmp_path: Path) -> None:
    done = run_cases(template, in_memory(template, seeds(0, 60)), tmp_path)
    if ENV_SEED not in os.environ:
        assert DAMAGES.keys() <= done.keys()


def test_damage_in_a_folder_is_found_and_never_loaded(template: Template, tmp_path: Path) -> None:
    run_cases(template, in_a_folder(template, seeds(1600, 10), tmp_path), tmp_path)


def test_damage_in_s3_is_found_and_never_loaded(
    template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_cases(template, in_s3(template, seeds(1900, 8), monkeypatch), tmp_path)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_thousand_fresh_damages_are_found_and_never_loaded(
    template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = random.SystemRandom().randrange(2**31)
    print(f"\n{ENV_SEED}={first} and the 999 after it")
    run_cases(template, in_memory(template, seeds(first, 800)), tmp_path)
    run_cases(template, in_a_folder(template, seeds(first + 800, 150), tmp_path), tmp_path)
    run_cases(template, in_s3(template, seeds(first + 950, 50), monkeypatch), tmp_path)


@pytest.mark.parametrize("seed", range(7))
def test_a_committed_manifest_of_two_steps_is_never_restored(
    template: Template, tmp_path: Path, seed: int
) -> None:
    """As by a trainer with a bug: every hash is right, the commit names it, only the steps differ."""
    store, run = template.store, template.run
    older, newest = template.refs[1:]
    target = Target(store=store, whole=store, refs=template.refs)
    data = mixed_manifest(random.Random(seed), target, newest, older)
    ref = replace(newest, manifest_sha256=sha256_hex(data))
    store.put(manifest_key(ref), data)
    commit = next(c for c in run.state.checkpoints if c.ref == newest).body
    draft = Draft(
        uid="mixed",
        kind=Kind.CHECKPOINT_COMMITTED,
        body=to_json(replace(commit, ref=ref)),
        attempt_id=newest.attempt_id,
    )
    run.track.decide(lambda records: draft)
    honest = CheckpointDecision(manifest_sha256=newest.manifest_sha256, by="a test", why="as if")
    withdrawal = Draft(uid="q", kind=Kind.CHECKPOINT_QUARANTINED, body=to_json(honest))
    run.track.decide(lambda records: withdrawal)
    into = fresh()
    with placed(run, run.open()) as launch:
        assert launch.opened.resume == ref
        found = restore(launch, into)
    assert found.fetched is not None
    assert found.fetched.ref == older
    assert "mixes steps" in (found.fallback_why or "")
    assert _bytes_of(into) == template.weights[older]


def _bytes(tensors: dict[str, torch.Tensor]) -> Weights:
    return {name: tensor.numpy().tobytes() for name, tensor in sorted(tensors.items())}


def _bytes_of(trained: Trained) -> Weights:
    return _bytes(dict(trained.model.state_dict()))
