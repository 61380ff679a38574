"""A hostile or broken archive is refused in a sentence, within bounds, and leaves nothing behind."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import tempfile
import tracemalloc
from pathlib import Path

import pytest

from tracks_dagster.stores import archive
from tracks_dagster.stores.archive import ArchiveStore, write_archive
from tracks_dagster.track.errors import InvalidInput, StoreUnavailable, StoreUnsuitable

Member = tuple[tarfile.TarInfo, bytes]


def plain(name: str, data: bytes = b"data", **fields: object) -> Member:
    header = tarfile.TarInfo(name)
    header.size = len(data)
    for field, value in fields.items():
        setattr(header, field, value)
    return header, data


def packed(path: Path, *members: Member, tail: bytes = b"") -> Path:
    with gzip.open(path, "wb") as raw:
        with tarfile.open(mode="w", fileobj=raw, format=tarfile.PAX_FORMAT) as tar:
            for header, data in members:
                tar.addfile(header, io.BytesIO(data) if header.isreg() else None)
        raw.write(tail)
    return path


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    folder = tmp_path / "temp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[io.BufferedRandom]:
    """Every temporary file that was made."""
    files: list[io.BufferedRandom] = []
    make = tempfile.TemporaryFile

    def made() -> io.BufferedRandom:
        files.append(make())
        return files[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", made)
    return files


def refused(path: Path, opened: list[io.BufferedRandom], temp: Path) -> str:
    with pytest.raises(StoreUnsuitable, match="Nothing of it was kept") as caught:
        ArchiveStore(path)
    assert [file.closed for file in opened] == [True]
    assert list(temp.iterdir()) == []
    return str(caught.value)


HOSTILE: dict[str, tuple[Member, str]] = {
    "absolute": (plain("/etc/passwd"), "'/etc/passwd' in it leads out of the archive"),
    "upwards": (plain("store/../../x"), "leads out of the archive"),
    "unprintable": (
        plain("store/\x1b[2Jx"),
        r"'store/\x1b[2Jx' in it leads out of the archive, or",
    ),
    "symbolic link": (
        plain("store/x", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        "'store/x' in it is a link to '/etc/passwd', no plain file",
    ),
    "hard link": (plain("x", b"", type=tarfile.LNKTYPE, linkname="y"), "is a link to 'y'"),
    "device": (plain("x", b"", type=tarfile.BLKTYPE), "is a device or pipe"),
    "pipe": (plain("x", b"", type=tarfile.FIFOTYPE), "is a device or pipe"),
    "folder": (plain("store", b"", type=tarfile.DIRTYPE), "is a folder"),
    "twice": (plain("one"), "It holds 'one' twice"),
    "negative": (plain("x", pax_headers={"size": "-5"}), "has -5 bytes"),
    "holes": (
        plain("x", pax_headers={"GNU.sparse.size": str(10**15), "GNU.sparse.numblocks": "0"}),
        "a file with holes",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_not_a_plain_file_inside_is_refused(
    kind: str, opened: list[io.BufferedRandom], temp: Path, tmp_path: Path
) -> None:
    member, why = HOSTILE[kind]
    assert why in refused(packed(tmp_path / "r.tar.gz", plain("one"), member), opened, temp)


def test_no_more_bytes_or_files_than_the_bounds_are_taken(
    opened: list[io.BufferedRandom], temp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = packed(tmp_path / "r.tar.gz", *(plain(str(n), bytes(100)) for n in range(5)))
    ArchiveStore(path)
    for bound, value, why in (
        ("MEMBERS_MAX", 4, "more than 4 files"),
        ("MEMBER_BYTES_MAX", 99, "'0' in it has 100 bytes; none has more than 99"),
        ("TOTAL_BYTES_MAX", 499, "more than 499 bytes in all"),
        ("NAMES_CHARACTERS_MAX", 4, "names have more than 4 characters in all"),
    ):
        opened.clear()
        with monkeypatch.context() as patch:
            patch.setattr(archive, bound, value)
            assert why in refused(path, opened, temp)


def test_what_would_fill_the_disk_is_refused_before_it_is_written(
    opened: list[io.BufferedRandom], temp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(temp)._replace(free=2000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    ArchiveStore(packed(tmp_path / "fits.tar.gz", plain("one", bytes(1000))))
    opened.clear()
    path = packed(tmp_path / "r.tar.gz", plain("one", bytes(900)), plain("two", bytes(101)))
    with pytest.raises(StoreUnavailable, match=r"more than half of what is free.*set TMPDIR"):
        ArchiveStore(path)
    assert [file.closed for file in opened] == [True]


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE])
def test_a_description_of_a_file_cannot_fill_the_memory(
    kind: bytes, opened: list[io.BufferedRandom], temp: Path, tmp_path: Path
) -> None:
    size = 64 * 1024**2
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, size
    path = tmp_path / "r.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as raw:
        raw.write(header.tobuf(tarfile.USTAR_FORMAT))
        raw.write(bytes(size))
    tracemalloc.start()
    try:
        assert "It describes" in refused(path, opened, temp)
        assert tracemalloc.get_traced_memory()[1] < size / 8
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [60_000, 1025])
def test_names_cannot_fill_the_memory(
    length: int, opened: list[io.BufferedRandom], temp: Path, tmp_path: Path
) -> None:
    members = (plain(f"{n:04}".ljust(length, "n"), b"") for n in range(500))
    path = packed(tmp_path / "r.tar.gz", *members)
    tracemalloc.start()
    try:
        why = refused(path, opened, temp)
        assert ("It describes a file in" in why) or ("more than 1024 characters" in why)
        assert tracemalloc.get_traced_memory()[1] < 4 * 1024**2
    finally:
        tracemalloc.stop()


def test_descriptions_of_descriptions_without_end_are_refused(temp: Path, tmp_path: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type = tarfile.XHDTYPE
    path = tmp_path / "r.tar.gz"
    path.write_bytes(gzip.compress(header.tobuf(tarfile.USTAR_FORMAT) * 10_000))
    with pytest.raises(StoreUnsuitable, match="cannot be unpacked"):
        ArchiveStore(path)


def test_an_endless_tail_is_refused(
    opened: list[io.BufferedRandom], temp: Path, tmp_path: Path
) -> None:
    path = packed(tmp_path / "r.tar.gz", plain("one"), tail=bytes(3 * 1024**2))
    assert "bytes follow its last file" in refused(path, opened, temp)


def test_a_cut_archive_leaves_nothing_behind(
    opened: list[io.BufferedRandom], temp: Path, tmp_path: Path
) -> None:
    path = packed(tmp_path / "r.tar.gz", plain("one", bytes(range(256)) * 400))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(StoreUnsuitable, match="cut short or changed on its way"):
        ArchiveStore(path)
    assert [file.closed for file in opened] == [True]
    assert list(temp.iterdir()) == []


def test_a_disk_that_is_full_is_reported_as_the_disk_and_not_as_the_archive(
    opened: list[io.BufferedRandom], temp: Path, tmp_path: Path
) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    path = packed(tmp_path / "r.tar.gz", plain("one", bytes(100_000)))
    with (
        full.open("r+b", buffering=0) as device,
        pytest.raises(StoreUnavailable, match=r"No space left.*set TMPDIR"),
    ):
        archive._unpack(path, device)


def test_nothing_is_exported_that_could_not_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tracks_dagster.stores import archive

    for bound, value, why in (
        ("MEMBERS_MAX", 1, "at most 1 files"),
        ("NAMES_CHARACTERS_MAX", 5, "at most 5 characters in all"),
        ("TOTAL_BYTES_MAX", 7, "and 7 bytes"),
        ("MEMBER_BYTES_MAX", 3, "one has 4 bytes"),
    ):
        path = tmp_path / "r.tar.gz"
        with monkeypatch.context() as patch:
            patch.setattr(archive, bound, value)
            with pytest.raises(InvalidInput, match=why), write_archive(path) as add:  # noqa: PT012
                add("one", b"four")
                add("two", b"four")
        assert list(tmp_path.iterdir()) == []
