"""Files of one's own are frozen by content, shared between snapshots, and read back verified."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import boto3
import pytest

from tests.fakes import FakeObjectStore, Fault
from tracks_dagster.data.effects import freezing
from tracks_dagster.data.effects.freezing import freeze, list_files
from tracks_dagster.stores.hashes import Hashes, Run
from tracks_dagster.stores.local_files import local_files
from tracks_dagster.stores.sources import FolderSource, SourceFile, open_source
from tracks_dagster.track.bodies import SnapshotRef
from tracks_dagster.track.errors import DataRejected, InvalidInput, StoreUnavailable
from tracks_dagster.track.records import canonical_json, sha256_hex
from tracks_dagster.track.states import files_manifest
from tracks_dagster.track.states.dataset_state import manifest_key
from tracks_dagster.track.states.files_manifest import (
    PACK_BYTES_MAX,
    PACK_BYTES_MIN,
    PACK_BYTES_MORE,
    FrozenFile,
    Part,
    encode_files,
    ends_pack,
    join_files,
    parse_files_manifest,
    shard_name,
)

SEED = 11


def freeze_folder(
    store: FakeObjectStore, folder: Path, cache: Path | None = None, *, in_place: bool = False
) -> tuple[SnapshotRef, freezing.Frozen]:
    return freeze_place(store, str(folder), cache, in_place=in_place)


def freeze_place(
    store: FakeObjectStore, place: str, cache: Path | None = None, *, in_place: bool = False
) -> tuple[SnapshotRef, freezing.Frozen]:
    source = open_source(place)
    hashes = Hashes(cache, source.url)
    frozen = freeze(source, list_files(source), store, "mine", in_place=in_place, hashes=hashes)
    data = frozen.manifest.data
    ref = SnapshotRef(dataset="mine", snapshot_id=sha256_hex(data))
    store.put(manifest_key("mine", ref.snapshot_id), data)
    return ref, frozen


def set_packs(monkeypatch: pytest.MonkeyPatch, *, least: int, more: int, most: int) -> None:
    for bound, size_bytes in (("MIN", least), ("MORE", more), ("MAX", most)):
        monkeypatch.setattr(files_manifest, f"PACK_BYTES_{bound}", size_bytes)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """900 small files, an empty one, and a large one of four chunks."""
    monkeypatch.setattr(files_manifest, "CHUNK_BYTES", 2**20)
    set_packs(monkeypatch, least=5000, more=10_000, most=40_000)
    draw = random.Random(SEED)
    root = tmp_path / "in"
    for number in range(900):
        path = root / f"d{number % 7}" / f"{number:04d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw.randbytes(draw.randrange(1, 400)))
    (root / "empty").touch()
    (root / "ä large.bin").write_bytes(draw.randbytes(3 * 2**20 + 5))
    old = 1_700_000_000
    for path in root.rglob("*"):
        os.utime(path, (old, old))
    return root


def named_by(frozen: freezing.Frozen) -> files_manifest.FilesManifest:
    return parse_files_manifest(frozen.manifest.data)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_what_was_frozen_is_what_a_rank_gets_read_only_and_once(
    store: FakeObjectStore, folder: Path, tmp_path: Path
) -> None:
    ref, frozen = freeze_folder(store, folder)
    manifest = named_by(frozen)
    assert frozen.written_bytes == frozen.manifest.total_bytes == manifest.total_bytes
    assert frozen.manifest.shard_count == len(manifest.shards)
    assert 4 + 1 <= len(manifest.shards) < 30  # packs, not 900 objects
    got = local_files(store, ref, tmp_path / "cache")
    assert contents(got) == contents(folder)
    assert (got / "empty").stat().st_mode & 0o222 == 0
    calls = len(store.calls)
    assert local_files(store, ref, tmp_path / "cache") == got
    assert {key for _, key in store.calls[calls:]} == {manifest_key("mine", ref.snapshot_id)}


def test_one_changed_file_writes_one_pack_again_and_the_same_files_give_the_same_id(
    store: FakeObjectStore, folder: Path
) -> None:
    ref, first = freeze_folder(store, folder)
    again, nothing = freeze_folder(store, folder)
    assert (again, nothing.written_bytes) == (ref, 0)
    (folder / "d3" / "0010.txt").write_text("changed")
    other, second = freeze_folder(store, folder)
    assert other != ref
    new = named_by(second).shards.keys() - named_by(first).shards.keys()
    assert len(new) == 1
    elsewhere, _ = freeze_folder(FakeObjectStore(), folder)
    assert elsewhere == other  # the same in a home that never saw the first


@pytest.mark.parametrize("size_bytes", [2_000, 48_000, 800_000])
def test_packs_are_about_as_large_whatever_the_files_size_is(size_bytes: int) -> None:
    draw = random.Random(SEED)
    packs = [0]
    for _ in range(1_000_000_000 // size_bytes):
        packs[-1] += size_bytes
        if ends_pack(f"{draw.getrandbits(256):064x}", size_bytes, packs[-1]):
            packs.append(0)
    whole = packs[:-1]
    assert min(whole) >= PACK_BYTES_MIN
    assert max(whole) < PACK_BYTES_MAX + size_bytes
    mean = PACK_BYTES_MIN + PACK_BYTES_MORE
    assert 0.75 * mean < sum(whole) / len(whole) < 1.25 * mean


def test_a_manifest_is_joined_to_the_bytes_that_canonical_json_has() -> None:
    one, two = "1" * 64, "2" * 64
    files = [
        FrozenFile('ä "\\u0000\n', (Part(two, 0, 3, "a"), Part(one, 0, 4, "b"))),
        FrozenFile("empty", ()),
        FrozenFile("z", (Part(two, 3, 5, "c"),)),
    ]
    logical = [[f.path, [[p.size_bytes, p.blake3] for p in f.parts]] for f in files]
    numbers = {two: 0, one: 1}
    rows = [[f.path, [[numbers[p.shard], *p[1:]] for p in f.parts]] for f in files]
    value = {
        "format": 2,
        "kind": "files",
        "dataset": "mine",
        "in_place": None,
        "shards": [two, one],
        "files": rows,
        "logical_sha256": sha256_hex(canonical_json(logical)),
        "total_bytes": 12,
    }
    joined = [encode_files([file]) for file in files]
    assert join_files("mine", None, [encode_files(files)]).data == canonical_json(value)
    assert join_files("mine", None, joined).data == canonical_json(value)
    there = [FrozenFile("z", (Part("", 0, 5, "c"),))]
    value |= {"in_place": '/"files":[', "shards": [], "files": [["z", [[-1, 0, 5, "c"]]]]}
    value |= {"logical_sha256": sha256_hex(b'[["z",[[5,"c"]]]]'), "total_bytes": 5}
    assert join_files("mine", '/"files":[', [encode_files(there)]).data == canonical_json(value)


def test_whatever_changed_the_manifest_is_that_of_a_first_freezing(
    store: FakeObjectStore, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracks_dagster.stores.hashes.GRAIN_S", -3600.0)  # files are seconds old
    set_packs(monkeypatch, least=1000, more=3000, most=5000)
    taken: list[bool] = []
    take_pack = freezing._Freezing.take_pack

    def counted(self: freezing._Freezing, run: Run) -> bool:
        taken.append(take_pack(self, run))
        return taken[-1]

    monkeypatch.setattr(freezing._Freezing, "take_pack", counted)
    draw = random.Random(SEED)
    for number in range(12):
        for _ in range(draw.randrange(4)):
            paths = sorted(path for path in folder.rglob("*") if path.is_file())
            path = draw.choice(paths)
            what = draw.choice(("change", "remove", "rename", "add", "empty"))
            if what == "remove":
                path.unlink()
            elif what == "rename":
                path.rename(path.with_name(f"{draw.random()}"))
            elif what == "add":
                path.with_name(f"{draw.random()}").write_bytes(draw.randbytes(300))
            else:
                path.write_bytes(b"" if what == "empty" else draw.randbytes(200))
        if number % 4 == 3:  # the store lost what is known
            store.delete(draw.choice([key for key in store.objects if "/shards/" in key]))
        ref, _ = freeze_folder(store, folder, tmp_path / "hashes")
        assert ref == freeze_folder(FakeObjectStore(), folder)[0]
    assert sum(taken) > 100  # packs, as a whole
    assert contents(local_files(store, ref, tmp_path / "cache")) == contents(folder)


def test_a_shard_that_the_store_lost_is_written_again(
    store: FakeObjectStore, folder: Path, tmp_path: Path
) -> None:
    ref, frozen = freeze_folder(store, folder)
    lost = next(iter(named_by(frozen).shards))
    store.delete(files_manifest.files_shard_key("mine", lost))
    with pytest.raises(DataRejected, match="is missing"):
        local_files(store, ref, tmp_path / "cache")
    assert freeze_folder(store, folder)[0] == ref
    assert contents(local_files(store, ref, tmp_path / "cache")) == contents(folder)


def test_files_in_place_are_verified_and_changed_ones_are_named(
    store: FakeObjectStore, folder: Path, tmp_path: Path
) -> None:
    copied, copy = freeze_folder(store, folder)
    count = len(store.objects)
    ref, frozen = freeze_folder(store, folder, in_place=True)
    assert len(store.objects) == count + 1  # the manifest
    assert ref != copied
    assert frozen.manifest.logical_sha256 == copy.manifest.logical_sha256
    assert local_files(store, ref, tmp_path / "cache") == folder
    path = folder / "d3" / "0010.txt"
    data, status = path.read_bytes(), path.stat()
    path.write_bytes(bytes(len(data)))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # as if nothing had been
    with pytest.raises(DataRejected, match=r"1 files of .* d3/0010\.txt"):
        local_files(store, ref, tmp_path / "cache")
    path.write_bytes(data)
    assert local_files(store, ref, tmp_path / "cache") == folder
    (folder / "added.txt").touch()
    with pytest.raises(DataRejected, match=r"1 files of .* added\.txt"):
        local_files(store, ref, tmp_path / "cache")
    shutil.rmtree(folder)
    with pytest.raises(DataRejected, match="not on this machine"):
        local_files(store, ref, tmp_path / "cache")


def test_a_changed_cache_is_fetched_again(
    store: FakeObjectStore, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ref, _ = freeze_folder(store, folder)
    got = local_files(store, ref, tmp_path / "cache")
    (got / "d3" / "0010.txt").chmod(0o644)
    (got / "d3" / "0010.txt").write_bytes(b"a script that writes")
    with (got / "ä large.bin").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\0")
    assert contents(local_files(store, ref, tmp_path / "cache")) == contents(folder)
    assert "was changed (d3/0010.txt, ä large.bin)" in capsys.readouterr().err


def test_what_a_killed_fetch_left_is_removed_by_the_next(
    store: FakeObjectStore, folder: Path, tmp_path: Path
) -> None:
    ref, _ = freeze_folder(store, folder)
    partial = tmp_path / "cache" / "data" / f"{ref.snapshot_id}.partial"
    (partial / "d3").mkdir(parents=True)
    (partial / "d3" / "0010.txt").touch()
    assert contents(local_files(store, ref, tmp_path / "cache")) == contents(folder)
    assert not partial.exists()


def test_a_wrong_shard_is_refused(store: FakeObjectStore, folder: Path, tmp_path: Path) -> None:
    ref, frozen = freeze_folder(store, folder)
    key = files_manifest.files_shard_key("mine", named_by(frozen).files[5].parts[0].shard)
    data = bytearray(store.get(key) or b"")
    data[-1] ^= 1
    store.put(key, bytes(data))
    with pytest.raises(DataRejected, match="another hash"):
        local_files(store, ref, tmp_path / "cache")
    assert not list((tmp_path / "cache" / "data").glob(f"{ref.snapshot_id}*/"))


def test_unchanged_files_are_not_read_again(
    store: FakeObjectStore, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracks_dagster.stores.hashes.GRAIN_S", -3600.0)  # files are seconds old
    _, first = freeze_folder(store, folder, tmp_path / "hashes")
    (folder / "d3" / "0010.txt").write_text("changed")
    read: list[str] = []
    whole = FolderSource.read

    def counted(self: FolderSource, file: SourceFile, offset: int, buffer: memoryview) -> None:
        read.append(file.path)
        whole(self, file, offset, buffer)

    monkeypatch.setattr(FolderSource, "read", counted)
    _, second = freeze_folder(store, folder, tmp_path / "hashes")
    [new] = named_by(second).shards.keys() - named_by(first).shards.keys()
    assert sorted(read) == sorted(
        file.path for file in named_by(second).files for part in file.parts if part.shard == new
    )


def test_a_hint_that_is_wrong_costs_time_only(
    store: FakeObjectStore, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracks_dagster.stores.hashes.GRAIN_S", -3600.0)
    right, _ = freeze_folder(FakeObjectStore(), folder, tmp_path / "hashes")
    source = open_source(str(folder))
    hashes, files = Hashes(tmp_path / "hashes", source.url), source.files()
    assert not any(run.unknown() for run in hashes.runs(files))
    hashes.learn({next(f for f in files if f.path == "d3/0010.txt"): ("0" * 64,)})
    hashes.save()
    ref, _ = freeze_folder(store, folder, tmp_path / "hashes")
    assert ref == right


def test_a_pack_that_is_not_what_it_was_hashed_to_costs_time_only(
    store: FakeObjectStore, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracks_dagster.stores.hashes.GRAIN_S", -3600.0)
    right, _ = freeze_folder(FakeObjectStore(), folder, tmp_path / "hashes")
    source = open_source(str(folder))
    hashes = Hashes(tmp_path / "hashes", source.url)
    pack = next(run for run in hashes.runs(source.files()) if run.kept)
    wrong = [FrozenFile(f.path, (Part("0", 0, f.size_bytes, "0" * 64),)) for f in pack.files]
    digests = {file: each.digests for file, each in zip(pack.files, wrong, strict=True)}
    hashes.learn(digests, pack=encode_files(wrong))
    hashes.save()
    ref, _ = freeze_folder(store, folder, tmp_path / "hashes")
    assert ref == right


def test_hints_that_the_disk_spoiled_are_not_believed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracks_dagster.stores.hashes.GRAIN_S", -3600.0)
    freeze_folder(FakeObjectStore(), folder, tmp_path / "hashes")
    [hints] = (tmp_path / "hashes").iterdir()
    written = hints.read_bytes()
    for spoiled in (b"", written[:-1], written[:-1] + b"\0", b"{}", written[:64]):
        hints.write_bytes(spoiled)
        source = open_source(str(folder))
        [run] = Hashes(tmp_path / "hashes", source.url).runs(source.files())
        assert run.unknown() == source.files()


def change(path: Path) -> None:
    path.write_text("changed meanwhile")


def remove(path: Path) -> None:
    path.unlink()


def add(path: Path) -> None:
    path.with_name("new").write_text("x")


@pytest.mark.parametrize("meanwhile", [change, remove, add])
def test_files_that_change_while_they_are_frozen_are_named(
    store: FakeObjectStore, folder: Path, meanwhile: Callable[[Path], None]
) -> None:
    source = open_source(str(folder))
    files = list_files(source)
    meanwhile(folder / "d3" / "0010.txt")
    with pytest.raises(InvalidInput, match=r"d3/(0010\.txt|new).*Nothing was recorded"):
        freeze(source, files, store, "mine", in_place=False, hashes=Hashes(None, source.url))


def test_a_known_file_is_frozen_as_it_was_listed_but_in_place_as_it_is(
    store: FakeObjectStore, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracks_dagster.stores.hashes.GRAIN_S", -3600.0)
    _, first = freeze_folder(store, folder, tmp_path / "hashes")
    source = open_source(str(folder))
    files = list_files(source)
    change(folder / "d3" / "0010.txt")

    def again(*, in_place: bool) -> freezing.Frozen:
        hashes = Hashes(tmp_path / "hashes", source.url)
        return freeze(source, files, store, "mine", in_place=in_place, hashes=hashes)

    assert again(in_place=False).manifest == first.manifest
    with pytest.raises(InvalidInput, match=r"frozen: d3/0010\.txt"):
        again(in_place=True)
    add(folder / "d3" / "0010.txt")
    with pytest.raises(InvalidInput, match=r"frozen: d3/new"):
        again(in_place=False)
    _, second = freeze_folder(store, folder, tmp_path / "hashes")
    assert second.manifest != first.manifest


def test_what_cannot_be_frozen_is_named_before_a_byte_is_copied(tmp_path: Path) -> None:
    root = tmp_path / "in"
    (root / "sub").mkdir(parents=True)
    (root / "ok").write_text("x")
    (root / "inside").symlink_to(root / "ok")
    assert [file.path for file in open_source(str(root)).files()] == ["inside", "ok"]
    (tmp_path / "secret").write_text("x")
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "gone").symlink_to(root / "nowhere")
    (root / "link").symlink_to(root / "sub")
    os.mkfifo(root / "pipe")
    with pytest.raises(InvalidInput) as refused:
        open_source(str(root)).files()
    for says in ("out is a link out of the folder", "gone cannot be read", "pipe is not a file"):
        assert says in str(refused.value)
    assert "link is a link to a folder" in str(refused.value)
    for nothing in (str(tmp_path / "nothing"), ""):
        with pytest.raises(InvalidInput, match="There is no file or folder"):
            open_source(nothing)


def test_nothing_to_freeze_and_no_room_for_it_are_said_at_once(
    store: FakeObjectStore, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "empty").touch()
    with pytest.raises(InvalidInput, match="1 files and not one byte"):
        list_files(open_source(str(tmp_path / "none")))
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(store, "url", str(tmp_path))
    with pytest.raises(InvalidInput, match=r"0\.0 GB that may be new.*--in-place"):
        freeze_folder(store, folder)
    assert store.objects == {}


def test_a_pack_is_named_by_what_is_in_it() -> None:
    assert shard_name(["a"]) != shard_name(["a", "b"]) != shard_name(["b", "a"])


@pytest.mark.parametrize("method", ["put", "read_into"])
def test_a_store_that_fails_anywhere_leaves_nothing_that_the_next_freezing_minds(
    folder: Path, tmp_path: Path, method: str
) -> None:
    right, whole = freeze_folder(FakeObjectStore(), folder)
    for number in range(1, len(named_by(whole).shards) + 1, 3):
        store = FakeObjectStore()
        store.fail(method, number, Fault.FAILS)
        with pytest.raises(StoreUnavailable):
            freeze_folder(store, folder)
        assert freeze_folder(store, folder)[0] == right
        assert contents(local_files(store, right, tmp_path / f"{number}")) == contents(folder)


def test_files_in_a_bucket_are_frozen_as_files_of_a_folder_are(
    store: FakeObjectStore, folder: Path, tmp_path: Path, s3_url: str
) -> None:
    place = s3_url.replace("/store", "/their data")
    bucket, _, prefix = place.removeprefix("s3://").partition("/")
    client = boto3.client("s3")
    names = ["ä large.bin", "empty", *(f"d3/{number:04d}.txt" for number in (3, 10, 17))]
    for name in names:
        data = (folder / name).read_bytes()
        client.put_object(Bucket=bucket, Key=f"{prefix}/{name}", Body=data)
    client.put_object(Bucket=bucket, Key=f"{prefix}/folder/", Body=b"")
    source = open_source(place)
    ref, frozen = freeze_place(store, place)
    assert [file.path for file in named_by(frozen).files] == sorted(names)
    got = contents(local_files(store, ref, tmp_path / "cache"))
    assert got == {name: (folder / name).read_bytes() for name in names}
    files = list_files(source)
    client.put_object(Bucket=bucket, Key=f"{prefix}/d3/0010.txt", Body=b"changed meanwhile")
    with pytest.raises(InvalidInput, match=r"d3/0010\.txt"):
        freeze(source, files, store, "mine", in_place=False, hashes=Hashes(None, source.url))
    ref, _ = freeze_place(store, place, in_place=True)
    assert contents(local_files(store, ref, tmp_path / "cache"))["d3/0010.txt"] == (
        b"changed meanwhile"
    )
    client.put_object(Bucket=bucket, Key=f"{prefix}/d3/0010.txt", Body=b"and once more tha")
    with pytest.raises(DataRejected, match=r"d3/0010\.txt .*another hash"):
        local_files(store, ref, tmp_path / "another machine")
