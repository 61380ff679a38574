"""Object stores behind the port `ObjectStore`: a local folder, S3, or an exported run to read.

`open_store` is the way in for everybody, ranks included. It refuses what cannot keep the port's
promises; what the objects mean is not a concern of this package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from tracks_dagster.stores.archive import ArchiveStore, is_archive
from tracks_dagster.stores.checks import check_format, make_format, probe_conditions
from tracks_dagster.stores.local import LocalStore, make_root
from tracks_dagster.track.errors import SettingsError, StoreUnsuitable
from tracks_dagster.track.ports import Leftovers, ObjectStore


class Store(ObjectStore, Leftovers, Protocol):
    """What `open_store` gives: an object store that can also be swept of leftovers."""


def open_store(url: str, *, probe: bool = True) -> Store:
    """Return the store at `url`: a path, a file URL, `s3://bucket/prefix`, or the file of an export.

    probe: create the store when there is none yet, and prove that it honours conditional writes.
    Without it nothing is written: for the ranks of a gang, whose supervisor has done it before.

    Raises StoreUnavailable when it cannot be reached, StoreUnsuitable when it ignores conditions or
    has another format version, SettingsError when `url` names no store.
    """
    store = _opened(url, make=probe)
    if probe and isinstance(store, ArchiveStore):
        raise StoreUnsuitable(
            f"{store.url} is an exported run, which can only be read; name a store to write to."
        )
    known = check_format(store, must_exist=not probe)
    if probe:
        probe_conditions(store)
        if not known:
            make_format(store)
    return store


def try_store(url: str) -> Store:
    """Return the store at `url` once it has proved that it honours conditional writes; make nothing.

    A folder has to be there. Raises as `open_store`.
    """
    store = _opened(url, make=False)
    check_format(store, must_exist=False)
    probe_conditions(store)
    return store


def _opened(url: str, *, make: bool) -> Store:
    return _s3(url) if url.startswith("s3:") else _local(url, make=make)


def _local(url: str, *, make: bool) -> Store:
    scheme, separator, rest = url.partition("://")
    if separator and scheme != "file":
        raise SettingsError(
            f"{scheme}:// is not a kind of object store; give a folder or s3://bucket/prefix."
        )
    path = unquote(rest.removeprefix("localhost")) if separator else url
    if not path or (separator and not path.startswith("/")):
        raise SettingsError(f"{url!r} names no folder; write /path/to/store or s3://bucket/prefix.")
    root = Path(path).absolute()
    if is_archive(root):
        archive = ArchiveStore(root)
        archive.manifest()  # the last member: without it, records at the end may be gone unnoticed
        return archive
    if make:
        make_root(root)
    return LocalStore(root)


def _s3(url: str) -> Store:
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise SettingsError(
            "An s3:// URL holds no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "or any other way that the AWS tools know."
        )
    if not url.startswith("s3://") or not parts.netloc or parts.query or parts.fragment:
        raise SettingsError(f"{url!r} names no bucket; write s3://bucket/prefix.")
    # boto3 takes a third of a second to import, which nobody with a local store should pay.
    from tracks_dagster.stores.s3 import S3Store

    return S3Store(parts.netloc, parts.path.strip("/"))
