"""An object store in an S3 bucket, or in what speaks S3 and honours `If-None-Match: *`.

Address, region and credentials come from the usual AWS variables, `AWS_ENDPOINT_URL_S3` among them.
The SDK repeats what may be repeated; a creation is sent exactly once, because the answer to a second
sending would be about the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

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

from tracks_dagster.adapters.stores.keys import check_key, is_key
from tracks_dagster.core.errors import OutcomeUnknown, StoreUnavailable, StoreUnsuitable

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

CONNECT_TIMEOUT_S = 3
READ_TIMEOUT_S = 60  # between two bytes of a reply
TRIES_MAX = 4  # of one get, put, list or delete; the SDK waits about 1, 2 and 4 s between them
CONNECTIONS_MAX = 32  # kept open for the threads of one process

_REFUSED = frozenset({401, 403})
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

    def get(self, key: str) -> bytes | None:
        """Return the object's bytes, or None when there is none."""
        with self._translated(f"read {key} in"):
            for _ in range(TRIES_MAX - 1):
                try:
                    return self._fetch(key)
                except (HTTPClientError, IncompleteReadError):
                    continue  # the reply broke off in its body, which the SDK does not repeat
            return self._fetch(key)

    def create(self, key: str, data: bytes) -> bool:
        """Create the object if there is none; True when this call created it."""
        path = self._path(key)
        with self._translated(f"create {key} in"):
            try:
                self._sent_once.put_object(
                    Bucket=self._bucket, Key=path, Body=data, IfNoneMatch="*"
                )
            except ClientError as error:
                if _status(error) == 412:
                    return False
                if _status(error) in _LOST or (_status(error) >= 500 and _status(error) != 501):
                    raise self._unknown(key, f"{_status(error)} {_code(error)}") from error
                raise
            except (HTTPClientError, SSLError) as error:
                raise self._unknown(key, type(error).__name__) from error
            return True

    def put(self, key: str, data: bytes) -> None:
        """Write the object, replacing what was there."""
        path = self._path(key)
        with self._translated(f"write {key} in"):
            self._client.put_object(Bucket=self._bucket, Key=path, Body=data)

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

    def delete(self, key: str) -> None:
        """Remove the object; nothing happens when there is none."""
        path = self._path(key)
        with self._translated(f"delete {key} in"):
            self._client.delete_object(Bucket=self._bucket, Key=path)

    def _path(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _fetch(self, key: str) -> bytes | None:
        try:
            reply = self._client.get_object(Bucket=self._bucket, Key=self._path(key))
        except ClientError as error:
            if _code(error) == "NoSuchKey":
                return None
            raise
        return reply["Body"].read()

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
                f"Cannot {what} {self.url}: {self._endpoint} does not know conditional writes "
                f"({found}); use a store that honours If-None-Match."
            )
        if _status(error) in _REFUSED:
            return StoreUnavailable(
                f"Cannot {what} {self.url}: {self._endpoint} refused the credentials ({found}). "
                "They need s3:ListBucket on the bucket, and s3:GetObject, s3:PutObject and "
                "s3:DeleteObject on the prefix."
            )
        return StoreUnavailable(f"Cannot {what} {self.url}: {self._endpoint} answered {found}.")


def _config(*, tries_max: int) -> Config:
    return Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        retries={"mode": "standard", "total_max_attempts": tries_max},
        max_pool_connections=CONNECTIONS_MAX,
        # The SDK's newer default sends checksums that several servers other than AWS refuse; every
        # object of ours has its own hash in its name or in the record that names it.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", "unknown"))


def _without_credentials(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
