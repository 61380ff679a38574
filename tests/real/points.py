"""The places where lives are led and killed: each a copy of one store, on a disk or on S3."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import boto3

from tests.real.checkpoint_life import RUN_ID, Life
from tests.real.kill_switch import KillSwitch
from tests.real.planted_faults import PLANTED
from tests.real.said import Said, SayingStore
from tests.real.survivors import not_resumed, problems, unclean
from tracks_dagster.stores import Store, open_store
from tracks_dagster.stores.local import PARTIAL_FOLDER
from tracks_dagster.track.names import run_track
from tracks_dagster.track.records import Json
from tracks_dagster.track.states.run_fold import fold
from tracks_dagster.track.states.run_state import RunState
from tracks_dagster.track.track import read_records

BEGIN = "begin"  # the folder of what every life begins with
STORE = "store"
SAID = "said.jsonl"


class Points:
    """Makes points, all from the same beginning."""

    def __init__(self, folder: Path, *, s3: bool, plant: str = "") -> None:
        self._folder = folder
        self._plant = plant
        self._s3 = s3
        self._numbers = count()

    def warm_up(self) -> None:
        """Lead the life up to where points begin, and once to its end."""
        begin = Point(self._folder / BEGIN)
        begin.folder.mkdir(parents=True)
        open_store(str(begin.folder / STORE))
        begin.life().begin()
        once = Point(self._folder / "once")
        once.copy_begin()
        once.life().go_on()
        if self._s3:
            session = boto3.Session()  # what it has read of the SDK's own files, all forks know
            boto3.Session = lambda: session  # type: ignore[misc, assignment]
            boto3.client("s3")

    def next(self) -> Point:
        """Return a point where nothing was done yet."""
        bucket = f"tracks-{uuid.uuid4().hex}" if self._s3 else None
        return Point(self._folder / f"{next(self._numbers)}", bucket, self._plant)


@dataclass(frozen=True, slots=True)
class Point:
    """One store and one life in it. Without a bucket the store is a folder in `folder`.

    plant: the fault that the life has, by its name in `planted_faults`.
    """

    folder: Path
    bucket: str | None = None
    plant: str = ""

    def live(self, at: int, moment: str) -> Json:
        """Lead the life and be killed; return the calls it made when it was not."""
        self.copy_begin()
        switch = KillSwitch(at, moment)
        life = self.life()
        if self.plant:
            PLANTED[self.plant](life)
        if self.bucket is None:
            switch.watch_folder(self.folder / STORE)
        else:
            switch.watch_requests()
        life.go_on()
        assert not switch.missed, f"calls that no point stands for: {switch.missed}"
        return switch.calls

    def judge(self) -> Iterator[str]:
        """Yield what is wrong after the kill, or after the sequel that follows it.

        What an S3 server holds is first brought into a folder, where reading costs little.
        """
        if self.bucket is not None:
            self._fetch(self.bucket)
        here = Point(self.folder)
        store = here.store()
        wrong = list(problems(store, here.said()))
        yield from (f"after the kill: {each}" for each in wrong)
        if wrong:
            return
        expected = _state(store).resumes_from
        assert expected is not None
        state = here.life().recover()
        store.sweep(older_than_s=-1.0)
        for each in problems(store, here.said()):
            yield f"after the sequel: {each}"
        yield from not_resumed(state, expected)
        yield from unclean(store, state)
        for path in (self.folder / STORE / PARTIAL_FOLDER).glob("*"):
            yield f"a sweep left {path.name}"

    def store(self) -> Store:
        """Return the store, as a process opens it."""
        if self.bucket is None:
            return open_store(str(self.folder / STORE), probe=False)
        return open_store(f"s3://{self.bucket}/{STORE}", probe=False)

    def life(self) -> Life:
        """Return a process that lives here."""
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        return Life(SayingStore(self.store(), self.folder / SAID), work)

    def said(self) -> Said:
        """Return what lives here wrote down."""
        return Said.read(self.folder / SAID)

    def copy_begin(self) -> None:
        """Copy what every life begins with. A store changes no file in place, so links will do."""
        begin = self.folder.parent / BEGIN
        self.folder.mkdir()
        shutil.copy(begin / SAID, self.folder / SAID)
        if self.bucket is None:
            shutil.copytree(begin / STORE, self.folder / STORE, copy_function=os.link)
            return
        client = boto3.client("s3")
        client.create_bucket(Bucket=self.bucket)
        for path in (begin / STORE).rglob("*"):
            if path.is_file():
                key = str(path.relative_to(begin))
                client.put_object(Bucket=self.bucket, Key=key, Body=path.read_bytes())

    def _fetch(self, bucket: str) -> None:
        client = boto3.client("s3")
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            for entry in page["Contents"]:
                path = self.folder / entry["Key"]
                path.parent.mkdir(parents=True, exist_ok=True)
                # A deletion that the killed process had sent may come through only now.
                with suppress(client.exceptions.NoSuchKey):
                    reply = client.get_object(Bucket=bucket, Key=entry["Key"])
                    path.write_bytes(reply["Body"].read())


def _state(store: Store) -> RunState:
    state = fold(read_records(store, run_track(RUN_ID)))
    assert state is not None
    return state
