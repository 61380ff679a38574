"""Checks a store's bytes against the rules of the design, sharing no code with the product.

Only json, hashlib, blake3 and a way to read objects: so a mistake in the product's folds, its fsck or
its stores cannot hide itself here. `violations` returns every rule that the stored bytes break.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import boto3
from blake3 import blake3

_LOG_KEY = re.compile(r"(?P<track>.+)/log/(?P<seq>[0-9]{12})\.json")
_TRAINER_KINDS = ("attempt_placed", "attempt_restored", "checkpoint_committed")
_AFTER_FINISH = re.compile(
    r"note|alert|eval_.*|checkpoint_.*|promotion_decided|attempt_reclassified"
)

Stored = dict[str, Any]  # one record, as json.loads returns it


class RawStore(Protocol):
    """The bytes of a store, by key below its root."""

    def keys(self) -> list[str]:
        """Return every key, sorted."""
        ...

    def read(self, key: str) -> bytes:
        """Return the bytes; raises KeyError when there is none."""
        ...


class RawFolder:
    """A store in a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def keys(self) -> list[str]:
        """Return every key, sorted."""
        files = (path for path in self._root.rglob("*") if path.is_file())
        return sorted(path.relative_to(self._root).as_posix() for path in files)

    def read(self, key: str) -> bytes:
        """Return the bytes; raises KeyError when there is none."""
        try:
            return (self._root / key).read_bytes()
        except FileNotFoundError:
            raise KeyError(key) from None


class RawBucket:
    """A store in a bucket. variables: AWS's, with the endpoint; url: `s3://bucket/prefix`."""

    def __init__(self, url: str, variables: Mapping[str, str]) -> None:
        self._bucket, _, prefix = url.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._client = boto3.client(
            "s3",
            endpoint_url=variables["AWS_ENDPOINT_URL_S3"],
            aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
            region_name=variables["AWS_DEFAULT_REGION"],
        )

    def keys(self) -> list[str]:
        """Return every key, sorted."""
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix
        )
        found = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
        return sorted(key.removeprefix(self._prefix) for key in found)

    def read(self, key: str) -> bytes:
        """Return the bytes; raises KeyError when there is none."""
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)
        except self._client.exceptions.NoSuchKey:
            raise KeyError(key) from None
        return answer["Body"].read()


def violations(store: RawStore) -> list[str]:
    """Return every broken rule, in words: chains, attempts, commits, and each stored chunk's hash."""
    wrong: list[str] = []
    for track, seqs in _tracks(store).items():
        records, broken = _chain(store, track, seqs)
        wrong += broken
        if track.startswith("runs/"):
            wrong += [f"{track}: {what}" for what in _attempts(records) + _commits(records)]
            wrong += [f"{track}: {what}" for what in _stored_checkpoints(store, records)]
    return wrong


def weights_digest(store: RawStore, run_id: str) -> str:
    """Return sha256 over the model's tensors, name by name, of the run's last committed checkpoint."""
    track = f"runs/{run_id}"
    records, _ = _chain(store, track, _tracks(store)[track])
    commit = [record for record in records if record["kind"] == "checkpoint_committed"][-1]
    manifest = json.loads(store.read(_manifest_key(commit["body"]["ref"])))
    chunks = [store.read(chunk["key"]) for chunk in manifest["chunks"]]
    digest = hashlib.sha256()
    for tensor in sorted(manifest["members"]["model"]["tensors"], key=lambda entry: entry["name"]):
        [shard] = tensor["shards"]  # data parallel: rank 0 holds each tensor whole
        digest.update(json.dumps([tensor["name"], tensor["dtype"], tensor["shape"]]).encode())
        for piece in shard["pieces"]:
            begin = piece["offset_bytes"]
            digest.update(chunks[piece["chunk_index"]][begin : begin + piece["size_bytes"]])
    return digest.hexdigest()


def _tracks(store: RawStore) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for key in store.keys():  # noqa: SIM118 (a store is not a dict)
        if match := _LOG_KEY.fullmatch(key):
            found[match["track"]].append(int(match["seq"]))
    return found


def _chain(store: RawStore, track: str, seqs: list[int]) -> tuple[list[Stored], list[str]]:
    """Return a track's records, and what is wrong with their numbers, hashes or uids."""
    records: list[Stored] = []
    wrong: list[str] = []
    if sorted(seqs) != list(range(len(seqs))):
        wrong.append(f"{track}: its records are {sorted(seqs)}")
    before: str | None = None
    for seq in sorted(seqs):
        data = store.read(f"{track}/log/{seq:012d}.json")
        record = json.loads(data)
        if record["seq"] != seq or record["prev_sha256"] != before:
            wrong.append(f"{track}: record {seq} does not follow the one before it")
        before = hashlib.sha256(data).hexdigest()
        records.append(record)
    uids = [record["uid"] for record in records]
    wrong += [f"{track}: uid {uid} stands twice" for uid in set(uids) if uids.count(uid) > 1]
    return records, wrong


def _attempts(records: list[Stored]) -> list[str]:
    """Attempts are numbered 1, 2, …, one open at a time, each placed once; a finish is the end."""
    wrong: list[str] = []
    open_id: int | None = None
    opened = 0
    placed: set[int] = set()
    finished = False
    for record in records:
        kind, attempt_id, seq = record["kind"], record.get("attempt_id"), record["seq"]
        if finished and not _AFTER_FINISH.fullmatch(kind):
            wrong.append(f"record {seq}, {kind}, after the run was finished")
        if kind == "attempt_opened":
            opened += 1
            if attempt_id != opened or open_id is not None:
                wrong.append(f"record {seq} opens attempt {attempt_id} while {open_id} is open")
            open_id = attempt_id
        elif kind == "attempt_ended":
            if attempt_id != open_id:
                wrong.append(f"record {seq} ends attempt {attempt_id} while {open_id} is open")
            open_id = None
        elif kind in _TRAINER_KINDS and attempt_id != open_id:
            wrong.append(f"record {seq}, {kind}, of attempt {attempt_id} while {open_id} is open")
        if kind == "attempt_placed":
            if attempt_id in placed:
                wrong.append(f"record {seq} places attempt {attempt_id} once more")
            placed.add(attempt_id)
        finished = finished or kind == "run_finished"
    return wrong


def _commits(records: list[Stored]) -> list[str]:
    """Every commit is of the launch that was placed, and no attempt commits a step twice."""
    wrong: list[str] = []
    launches = {
        r["attempt_id"]: r["body"]["launch_id"] for r in records if r["kind"] == "attempt_placed"
    }
    seen: set[tuple[int, int]] = set()
    for record in records:
        if record["kind"] != "checkpoint_committed":
            continue
        attempt_id, body = record["attempt_id"], record["body"]
        step = body["ref"]["step"]
        if (attempt_id, step) in seen:
            wrong.append(
                f"record {record['seq']} commits step {step} of attempt {attempt_id} again"
            )
        seen.add((attempt_id, step))
        if body["launch_id"] != launches.get(attempt_id):
            wrong.append(f"record {record['seq']} is a commit of a launch that was never placed")
    return wrong


def _stored_checkpoints(store: RawStore, records: list[Stored]) -> list[str]:
    """The manifest and each chunk of every checkpoint that is not deleted are there, byte for byte."""
    wrong: list[str] = []
    hashes: dict[str, tuple[str, int]] = {}
    deleted = {
        record["body"]["manifest_sha256"]
        for record in records
        if record["kind"] == "checkpoint_deleted"
    }
    for record in records:
        if record["kind"] != "checkpoint_committed":
            continue
        ref = record["body"]["ref"]
        if ref["manifest_sha256"] in deleted:
            continue
        try:
            data = store.read(_manifest_key(ref))
        except KeyError as missing:
            wrong.append(f"the manifest of step {ref['step']} is missing: {missing}")
            continue
        if hashlib.sha256(data).hexdigest() != ref["manifest_sha256"]:
            wrong.append(
                f"the manifest of step {ref['step']} has other bytes than its commit names"
            )
        for chunk in json.loads(data)["chunks"]:
            key = chunk["key"]
            if key not in hashes:
                hashes[key] = _hash_of(store, key)
            if hashes[key] != (chunk["blake3"], chunk["size_bytes"]):
                wrong.append(f"step {ref['step']} names {key}, which holds {hashes[key]}")
    return wrong


def _hash_of(store: RawStore, key: str) -> tuple[str, int]:
    try:
        data = store.read(key)
    except KeyError:
        return "missing", 0
    return blake3(data).hexdigest(), len(data)


def _manifest_key(ref: Stored) -> str:
    return f"{ref['object_prefix']}manifest-{ref['manifest_sha256']}.json"
