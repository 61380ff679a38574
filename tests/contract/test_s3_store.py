"""What only S3 can get wrong: the wire. A double in front of the real server plays the network."""

from __future__ import annotations

from collections.abc import Iterator

import boto3
import pytest

from tests.s3_double import Misbehaviour, S3Double, s3_double
from tracks_dagster.stores import open_store
from tracks_dagster.stores import s3 as s3_module
from tracks_dagster.track.errors import OutcomeUnknown, StoreUnavailable, StoreUnsuitable
from tracks_dagster.track.ports import ObjectStore

SECRET = "a-secret-that-no-message-shows"


def is_put(method: str) -> bool:
    return method == "PUT"


def is_get(method: str) -> bool:
    return method == "GET"


@pytest.fixture
def double(s3_endpoint: str, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Double]:
    with s3_double(s3_endpoint) as double:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", double.endpoint)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        yield double


@pytest.fixture
def opened(double: S3Double, s3_url: str) -> ObjectStore:
    store = open_store(s3_url)
    double.methods.clear()
    return store


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the SDK repeat without waiting."""
    backoff = "botocore.retries.standard.ExponentialBackoff.delay_amount"
    monkeypatch.setattr(backoff, lambda self, context: 0)


def test_a_server_that_ignores_the_condition_is_refused(double: S3Double, s3_url: str) -> None:
    double.misbehaviour = Misbehaviour(strip="If-None-Match")
    with pytest.raises(StoreUnsuitable, match="does not honour conditional writes"):
        open_store(s3_url)


def test_a_server_that_does_not_know_the_condition_is_refused(
    double: S3Double, s3_url: str
) -> None:
    double.misbehaviour = Misbehaviour(concerns=is_put, status=501, code="NotImplemented")
    with pytest.raises(StoreUnsuitable, match="does not know conditional writes"):
        open_store(s3_url)


@pytest.mark.parametrize(
    ("wrong", "took_effect"),
    [
        (Misbehaviour(status=409, code="ConditionalRequestConflict"), False),
        (Misbehaviour(status=500, code="InternalError"), False),
        (Misbehaviour(status=503, code="SlowDown"), False),
        (Misbehaviour(drop_request=True), False),
        (Misbehaviour(drop_reply=True), True),
    ],
)
def test_a_creation_whose_reply_says_nothing_is_unknown_and_sent_only_once(
    opened: ObjectStore, double: S3Double, wrong: Misbehaviour, took_effect: bool
) -> None:
    double.misbehaviour = wrong
    with pytest.raises(OutcomeUnknown, match=r"key was created in s3://.* read it back"):
        opened.create("key", b"1")
    assert double.methods == ["PUT"]
    double.misbehaviour = Misbehaviour()
    assert opened.get("key") == (b"1" if took_effect else None)
    assert opened.create("key", b"1") is not took_effect


def test_a_creation_that_times_out_is_unknown(
    double: S3Double, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_module, "READ_TIMEOUT_S", 2.0)  # opening has to come through before it
    store = open_store(s3_url)
    double.misbehaviour = Misbehaviour(concerns=is_put, stall=True)
    with pytest.raises(OutcomeUnknown, match="ReadTimeoutError"):
        store.create("key", b"1")


@pytest.mark.parametrize(
    "wrong",
    [
        Misbehaviour(count=2, status=503, code="SlowDown"),
        Misbehaviour(count=1, drop_reply=True),
        Misbehaviour(count=1, drop_request=True),
    ],
)
def test_what_may_be_repeated_is_repeated(
    opened: ObjectStore, double: S3Double, wrong: Misbehaviour, no_backoff: None
) -> None:
    double.misbehaviour = wrong
    opened.put("key", b"1")
    assert len(double.methods) == 1 + (2 if wrong.status else 1)
    assert opened.get("key") == b"1"


@pytest.mark.parametrize("how", [{"cut_body": True}, {"reset_body": True}])
def test_an_answer_that_there_is_no_object_which_breaks_off_is_asked_for_again(
    opened: ObjectStore, double: S3Double, how: dict[str, bool]
) -> None:
    double.misbehaviour = Misbehaviour(count=2, **how)  # type: ignore[arg-type]
    assert opened.get("key") is None


def test_repetition_ends(opened: ObjectStore, double: S3Double, no_backoff: None) -> None:
    double.misbehaviour = Misbehaviour(status=503, code="SlowDown")
    with pytest.raises(StoreUnavailable, match="answered 503 SlowDown"):
        opened.get("key")
    assert len(double.methods) == s3_module.TRIES_MAX


def test_a_reply_that_breaks_off_in_its_body_is_asked_for_again(
    opened: ObjectStore, double: S3Double
) -> None:
    opened.put("key", b"0123456789" * 10_000)
    double.misbehaviour = Misbehaviour(concerns=is_get, count=2, cut_body=True)
    assert opened.get("key") == b"0123456789" * 10_000
    buffer = memoryview(bytearray(100_000))
    double.misbehaviour = Misbehaviour(concerns=is_get, count=2, cut_body=True)
    assert opened.read_into("key", buffer) == 100_000
    assert buffer == b"0123456789" * 10_000
    double.misbehaviour = Misbehaviour(concerns=is_get, cut_body=True)
    with pytest.raises(StoreUnavailable, match="Cannot read key in s3://"):
        opened.get("key")
    with pytest.raises(StoreUnavailable, match="Cannot read key in s3://"):
        opened.read_into("key", buffer)


@pytest.mark.parametrize("write", ["put", "create"])
def test_a_write_carries_its_checksum_in_a_header_and_nothing_after_its_body(
    opened: ObjectStore, double: S3Double, write: str
) -> None:
    getattr(opened, write)("key", b"123456789")
    assert double.headers["x-amz-checksum-crc32"] == "y/Q5Jg=="  # 0xcbf43926, the check value
    assert double.headers["content-length"] == "9"
    assert "x-amz-trailer" not in double.headers
    assert opened.get("key") == b"123456789"


def test_a_write_that_arrived_with_another_checksum_does_not_count(
    opened: ObjectStore, double: S3Double
) -> None:
    double.misbehaviour = Misbehaviour(concerns=is_put, checksum="AAAAAA==")
    with pytest.raises(StoreUnavailable, match="CRC32 y/Q5Jg== and arrived with AAAAAA=="):
        opened.put("key", b"123456789")
    with pytest.raises(OutcomeUnknown, match="y/Q5Jg== was sent, AAAAAA== arrived"):
        opened.create("other", b"123456789")


@pytest.mark.parametrize(("status", "code"), [(400, "InvalidArgument"), (501, "NotImplemented")])
def test_a_server_that_refuses_the_checksum_fails_the_probe(
    double: S3Double, s3_url: str, status: int, code: str
) -> None:
    double.misbehaviour = Misbehaviour(concerns=is_put, status=status, code=code)
    with pytest.raises((StoreUnavailable, StoreUnsuitable), match=f"{status} {code}"):
        open_store(s3_url)


CENTURY_S = 100 * 365 * 24 * 3600.0  # the server of the tests says that all began in 2010


def test_uploads_that_nobody_ended_are_aborted_under_the_prefix_only(s3_url: str) -> None:
    store, client = open_store(s3_url), boto3.client("s3")
    bucket = s3_url.removeprefix("s3://").removesuffix("/store")
    for key in ("store/a", "store/b/c", "store-of-another/a"):
        client.create_multipart_upload(Bucket=bucket, Key=key)
    store.put("key", b"1")
    assert store.sweep(older_than_s=CENTURY_S) == 0
    assert store.sweep() == 2
    assert store.sweep() == 0
    left = client.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert [upload["Key"] for upload in left] == ["store-of-another/a"]
    assert store.get("key") == b"1"


def test_an_upload_that_another_sweep_aborted_first_does_not_count(
    double: S3Double, s3_url: str
) -> None:
    store = open_store(s3_url)
    bucket = s3_url.removeprefix("s3://").removesuffix("/store")
    boto3.client("s3").create_multipart_upload(Bucket=bucket, Key="store/a")
    double.misbehaviour = Misbehaviour(
        concerns=lambda method: method == "DELETE", status=404, code="NoSuchUpload"
    )
    assert store.sweep() == 0


@pytest.mark.parametrize(
    ("clock_s", "found"),
    [(3600, "3,[56].. s behind"), (-7200, "7,2.. s ahead of"), (None, r"[0-9] s (ahead|behind)")],
)
def test_a_skewed_clock_is_named_with_the_difference_and_not_the_credentials(
    double: S3Double, s3_url: str, clock_s: float | None, found: str
) -> None:
    double.misbehaviour = Misbehaviour(status=403, code="RequestTimeTooSkewed", clock_s=clock_s)
    with pytest.raises(StoreUnavailable, match=found) as refusal:
        open_store(s3_url)
    assert "clock of this machine" in str(refusal.value)
    assert "s3:ListBucket" not in str(refusal.value)


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"])
def test_refused_credentials_say_so_without_showing_them(
    double: S3Double, s3_url: str, code: str
) -> None:
    double.misbehaviour = Misbehaviour(status=403, code=code)
    with pytest.raises(StoreUnavailable, match=f"refused the credentials .403 {code}") as refusal:
        open_store(s3_url)
    assert s3_url in str(refusal.value)
    assert double.endpoint in str(refusal.value)
    assert SECRET not in str(refusal.value)


def test_missing_credentials_say_what_to_set(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    with pytest.raises(StoreUnavailable, match="no credentials were found"):
        open_store(s3_url)


def test_a_missing_bucket_is_named(s3_url: str) -> None:
    with pytest.raises(StoreUnavailable, match="there is no bucket 'tracks-nowhere'"):
        open_store("s3://tracks-nowhere/store")


def test_an_unreachable_server_is_named_without_its_credentials(
    s3_url: str, monkeypatch: pytest.MonkeyPatch, no_backoff: None
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://user:{SECRET}@127.0.0.1:9")
    with pytest.raises(StoreUnavailable, match=r"no answer from http://127\.0\.0\.1:9 ") as refusal:
        open_store(s3_url)
    assert SECRET not in str(refusal.value)


def test_an_address_that_is_not_one_is_refused(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "not an address")
    with pytest.raises(StoreUnavailable, match="AWS_ENDPOINT_URL_S3"):
        open_store(s3_url)


def test_two_prefixes_of_one_bucket_are_two_stores(s3_url: str) -> None:
    store, other = open_store(s3_url), open_store(s3_url + "-other/deeper/")
    store.put("key", b"1")
    assert other.get("key") is None
    assert list(other.list("")) == ["format.json"]
    assert store.get("format.json") != other.get("format.json")
    assert other.url == s3_url + "-other/deeper"
