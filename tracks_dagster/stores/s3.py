"""An object store in an S3 bucket, or in what speaks S3 and honours `If-None-Match: *`.

Address, region and credentials come from the usual AWS variables, `AWS_ENDPOINT_URL_S3` among them.
The SDK repeats what may be repeated; a creation is sent exactly once, because the answer to a second
sending would be about the first.

Every object is one request whose header carries its CRC32, so that a server keeps no bytes that
changed on the way; one that refuses the header (400, 501) fails the probe at start-up. Requests run
in the caller's threads: how many go on at once is for the callers' pools to say, and with more than
CONNECTIONS_MAX of them the rest open connections that are not kept.
"""

from __future__ import annotations

import base64
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from tracks_dagster.track.errors import (
    OutcomeUnknown,
    SettingsError,
    StoreUnavailable,
    StoreUnsuitable,
)
from tracks_dagster.track.ports import LEFTOVER_AGE_S, check_key, is_key

try:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        ConnectionError,  # noqa: A004 - botocore's: nothing was sent yet
        HTTPClientError,
        IncompleteReadError,
        NoCredentialsError,
        PartialCredentialsError,
        SSLError,
    )
    from botocore.response import StreamingBody
except ModuleNotFoundError as error:
    raise SettingsError(
        f"A store in a bucket needs boto3, and {sys.executable} has none. Install it there: "
        f"{sys.executable} -m pip install 'tracks-dagster[s3]'"
    ) from error

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

CONNECT_TIMEOUT_S = 3
READ_TIMEOUT_S = 60  # between two bytes of a reply
TRIES_MAX = 4  # of one get, put, list or delete; the SDK waits about 1, 2 and 4 s between them
READ_BYTES_MAX = 1 << 20  # asked of the wire at once: the SDK copies every piece once
SWEPT_MAX = 10_000  # uploads looked at by one sweep; the next one continues
CONNECTIONS_MAX = 64  # kept open for the threads of one process

T = TypeVar("T")

NO_BODY = "404"  # what the SDK makes of one whose body, with the code, broke off
CLOCK_SKEWED = "RequestTimeTooSkewed"  # a 403; S3 bears 15 minutes
_REFUSED = frozenset({401, 403})
_CHANGED = frozenset({404, 412, 416})  # of a read on a condition: another object, or a shorter one
_LOST = frozenset({408, 409})  # with every 5xx: the write may have happened


class S3Store:
    """The port `ObjectStore` over one prefix of one bucket. Safe from several threads."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._endpoint = "its endpoint"
        with self._translated("use"):
            session = boto3.Session()
            self._client: S3Client = session.client("s3", config=_config(tries_max=TRIES_MAX))
            self._sent_once: S3Client = session.client("s3", config=_config(tries_max=1))
        self._endpoint = _without_credentials(self._client.meta.endpoint_url)

    @property
    def url(self) -> str:
        """`s3://bucket/prefix`."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def get(self, key: str, bytes_max: int | None = None) -> bytes | None:
        """Return the object's bytes, or None when there is none."""

        def take(body: StreamingBody, size_bytes: int) -> bytes:
            if bytes_max is None or size_bytes <= bytes_max:
                return body.read()
            return body.read(bytes_max + 1)

        return self._read(key, take)

    def read_into(self, key: str, buffer: memoryview) -> int | None:
        """Read the object into the start of `buffer`; return its size in bytes."""

        def fill(body: StreamingBody, size_bytes: int) -> int:
            filled = 0
            while filled < len(buffer):
                piece = buffer[filled : filled + READ_BYTES_MAX]
                count = body.readinto(piece)  # type: ignore[arg-type]  # the stub is wrong
                if count == 0:  # the end; one that came too early raises
                    break
                filled += count
            return size_bytes

        return self._read(key, fill)

    def create(self, key: str, data: bytes | memoryview) -> bool:
        """Create the object if there is none; True when this call created it."""
        path, checksum = self._path(key), _crc32(data)
        with self._translated(f"create {key} in"):
            try:
                reply = self._sent_once.put_object(
                    Bucket=self._bucket,
                    Key=path,
                    Body=bytes(data),
                    ChecksumCRC32=checksum,
                    IfNoneMatch="*",
                )
            except ClientError as error:
                if _status(error) == 412:
                    return False
                if _status(error) in _LOST or (_status(error) >= 500 and _status(error) != 501):
                    raise self._unknown(key, f"{_status(error)} {_code(error)}") from error
                raise
            except (HTTPClientError, SSLError) as error:
                raise self._unknown(key, type(error).__name__) from error
        if (found := reply.get("ChecksumCRC32", checksum)) != checksum:
            raise self._unknown(key, f"CRC32 {checksum} was sent, {found} arrived")
        return True

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Write the object, replacing what was there."""
        path, checksum = self._path(key), _crc32(data)
        with self._translated(f"write {key} in"):
            reply = self._client.put_object(
                Bucket=self._bucket, Key=path, Body=bytes(data), ChecksumCRC32=checksum
            )
        if (found := reply.get("ChecksumCRC32", checksum)) != checksum:
            raise StoreUnavailable(
                f"Cannot write {key} in {self.url}: it was sent with CRC32 {checksum} and arrived "
                f"with {found}, so what is stored is damaged; write it again."
            )

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the keys that begin with `prefix`, in ascending order."""
        with self._translated(f"list {prefix}* in"):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix
            )
            for page in pages:
                for entry in page.get("Contents", ()):
                    key = entry["Key"].removeprefix(self._prefix)
                    if is_key(key):
                        yield key

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield what follows `prefix` up to the next "/", once each."""
        path = self._prefix + prefix
        with self._translated(f"list the folders of {prefix} in"):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=path, Delimiter="/"
            )
            for page in pages:
                for entry in page.get("CommonPrefixes", ()):
                    name = entry["Prefix"].removeprefix(path).removesuffix("/")
                    if is_key(name):
                        yield name

    def objects(self) -> Iterator[tuple[str, int, str]]:
        """Yield (name below the prefix, bytes, ETag) of everything there, from any writer."""
        with self._translated("list"):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix
            )
            for page in pages:
                for entry in page.get("Contents", ()):
                    yield entry["Key"].removeprefix(self._prefix), entry["Size"], entry["ETag"]

    def read_range(self, name: str, etag: str, offset: int, size_bytes: int) -> bytes | None:
        """Return bytes of the object that `objects` named; None when it is no longer that one."""
        with self._translated(f"read {name} in"):
            try:
                reply = self._client.get_object(
                    Bucket=self._bucket,
                    Key=self._prefix + name,
                    Range=f"bytes={offset}-{offset + size_bytes - 1}",
                    IfMatch=etag,
                )
            except ClientError as error:
                if _status(error) in _CHANGED:
                    return None
                raise
            with closing(reply["Body"]) as body:
                return body.read()

    def delete(self, key: str) -> None:
        """Remove the object; nothing happens when there is none."""
        if not is_key(key):
            return
        path = self._path(key)
        with self._translated(f"delete {key} in"):
            self._client.delete_object(Bucket=self._bucket, Key=path)

    def sweep(self, *, older_than_s: float = LEFTOVER_AGE_S) -> int:
        """Abort the multipart uploads under the prefix that were begun before then and never ended.

        They are other tools' (a copy into the bucket): this store writes every object whole. Nobody
        sees their parts, and the bucket's owner pays for them.
        """
        before = datetime.now(UTC) - timedelta(seconds=older_than_s)
        with self._translated("sweep"):
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self._bucket,
                Prefix=self._prefix,
                PaginationConfig={"MaxItems": SWEPT_MAX},
            )
            uploads = [upload for page in pages for upload in page.get("Uploads", ())]
            old = [upload for upload in uploads if upload["Initiated"] < before]
            return sum(self._abort(upload["Key"], upload["UploadId"]) for upload in old)

    def _abort(self, path: str, upload_id: str) -> bool:
        try:
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=path, UploadId=upload_id)
        except ClientError as error:
            if _code(error) == "NoSuchUpload":
                return False
            raise
        return True

    def _path(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _read(self, key: str, take: Callable[[StreamingBody, int], T]) -> T | None:
        """Return what `take` makes of the body and its size in bytes; None without an object."""
        if not is_key(key):
            return None
        path = self._path(key)
        with self._translated(f"read {key} in"):
            for _ in range(TRIES_MAX - 1):
                try:
                    return self._fetch(path, take)
                except (HTTPClientError, IncompleteReadError):
                    continue  # the reply broke off in its body, which the SDK does not repeat
                except ClientError as error:
                    if _code(error) != NO_BODY:
                        raise
            return self._fetch(path, take)

    def _fetch(self, path: str, take: Callable[[StreamingBody, int], T]) -> T | None:
        try:
            reply = self._client.get_object(Bucket=self._bucket, Key=path)
        except ClientError as error:
            if _code(error) == "NoSuchKey":
                return None
            raise
        with closing(reply["Body"]) as body:
            return take(body, reply["ContentLength"])

    def _unknown(self, key: str, found: str) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"Whether {key} was created in {self.url} is not known ({found}); read it back."
        )

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """Turn the SDK's errors into ours; their own text may hold credentials and is left out."""
        try:
            yield
        except ClientError as error:
            raise self._refusal(what, error) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise StoreUnavailable(
                f"Cannot {what} {self.url}: no credentials were found. Set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or any other way that the AWS tools know."
            ) from error
        except (ConnectionError, HTTPClientError) as error:
            raise StoreUnavailable(
                f"Cannot {what} {self.url}: no answer from {self._endpoint} "
                f"({type(error).__name__}). Check the network and AWS_ENDPOINT_URL_S3."
            ) from error
        except (BotoCoreError, ValueError) as error:
            raise StoreUnavailable(
                f"Cannot {what} {self.url}: {type(error).__name__}. Check the AWS variables and "
                "configuration (region, profile, AWS_ENDPOINT_URL_S3)."
            ) from error

    def _refusal(self, what: str, error: ClientError) -> StoreUnavailable | StoreUnsuitable:
        found = f"{_status(error)} {_code(error)}"
        if _code(error) == "NoSuchBucket":
            return StoreUnavailable(
                f"Cannot {what} {self.url}: there is no bucket {self._bucket!r} at "
                f"{self._endpoint}. Create it, or name another in TRACKS_STORE."
            )
        if _status(error) == 501:
            return StoreUnsuitable(
                f"Cannot {what} {self.url}: {self._endpoint} does not know conditional writes, "
                f"x-amz-checksum-crc32 or multipart uploads ({found}); use a store that does."
            )
        if _code(error) == CLOCK_SKEWED:
            return StoreUnavailable(
                f"Cannot {what} {self.url}: {self._endpoint} refused the request ({found}), because "
                f"the clock of this machine {_clock_difference(error)}. Set it (NTP, chronyd), then "
                "try again; the credentials were not looked at."
            )
        if _status(error) in _REFUSED:
            return StoreUnavailable(
                f"Cannot {what} {self.url}: {self._endpoint} refused the credentials ({found}). "
                "They need s3:ListBucket and s3:ListBucketMultipartUploads on the bucket, and "
                "s3:GetObject, s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload on the "
                "prefix."
            )
        return StoreUnavailable(f"Cannot {what} {self.url}: {self._endpoint} answered {found}.")


def _config(*, tries_max: int) -> Config:
    return Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        retries={"mode": "standard", "total_max_attempts": tries_max},
        max_pool_connections=CONNECTIONS_MAX,
        # The SDK's newer default streams its checksum after the body, which several servers other
        # than AWS refuse; ours is a plain header. Replies need none: every object of ours has its
        # own hash in its name or in the record that names it.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )


def _crc32(data: bytes | memoryview) -> str:
    """Return the checksum as S3 wants it: of b"123456789" it is "y/Q5Jg==" (0xcbf43926)."""
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", "unknown"))


def _clock_difference(error: ClientError) -> str:
    """Say how far this machine's clock is from S3's, by the time that the refusal names."""
    server_time = str(error.response.get("Error", {}).get("ServerTime") or "")
    sent = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date") or ""
    try:
        theirs = datetime.fromisoformat(server_time) if server_time else parsedate_to_datetime(sent)
    except ValueError:
        return "differs too much from its own, which it did not name"
    now = datetime.now(UTC)
    if theirs.tzinfo is None:
        theirs = theirs.replace(tzinfo=UTC)
    difference_s = (now - theirs).total_seconds()
    way = "ahead of" if difference_s > 0 else "behind"
    return (
        f"is {abs(difference_s):,.0f} s {way} its own ({now:%Y-%m-%d %H:%M:%S} UTC here, "
        f"{theirs.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC there)"
    )


def _without_credentials(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
