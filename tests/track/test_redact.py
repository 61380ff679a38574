"""Credentials do not reach evidence, logs or messages, and ordinary words stay."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import time
import typing

import pytest

from tests.reasons.own_failures import FAILURES, WARNINGS
from tracks_dagster.track import bodies
from tracks_dagster.track.declared_fields import WORDS
from tracks_dagster.track.text.redact import HIDDEN, redact, redact_json, redact_words, secrets_of

SEED = int(os.environ.get("REDACT_SEED", random.randrange(2**32)))
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
SECRET = "wJalr9XUtnFEMIx7"

PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n"
    "MIIEowIBAAKCAQEAs9xW1Yk0bq5uZkq9bm3mYq7aPv3v1cXo2m0yJ1f6m3n4b5v6\n"
    "c7d8e9f0a1b2c3d4e5f60718293a4b5c\n-----END RSA PRIVATE KEY-----"
)
JWT = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0"


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("postgresql+psycopg2://ann:s3cr:et@db:5432/x", "postgresql+psycopg2://ann:[hidden]@db:5432/x"),
        ("postgresql://ann:p@ss@w0rd@db/x", "postgresql://ann:[hidden]@db/x"),
        ("postgresql://ann:pa/ss@db/x", "postgresql://ann:[hidden]@db/x"),
        ("redis://:opensesame@cache:6379/0", "redis://:[hidden]@cache:6379/0"),
        ("https://x/y?user=ann&password=opensesame&z=1", "https://x/y?user=ann&password=[hidden]&z=1"),
        ("https://x/y?token=f81d4fae7dec11d0a765", "https://x/y?token=[hidden]"),
        ("https://acc.windows.net/c?sv=1&sig=aB3%2Fd9Zk0", "https://acc.windows.net/c?sv=1&sig=[hidden]"),
        ("host=db password=opensesame dbname=x", "host=db password=[hidden] dbname=x"),
        ("Driver=x;UID=sa;PWD=opensesame;Server=y", "Driver=x;UID=sa;PWD=[hidden];Server=y"),
        ("password='it is long' next", "password='[hidden]' next"),
        ('{"password": "open\\"sesame", "a": 1}', '{"password": "[hidden]", "a": 1}'),
        ("{'db_password': 'opensesame'}", "{'db_password': '[hidden]'}"),
        ('"{\\"password\\": \\"opensesame\\"}"', '"{\\"password\\": \\"[hidden]\\"}"'),
        ("connect(password='opensesame", "connect(password='[hidden]"),
        (f"AWS_SECRET_ACCESS_KEY={SECRET}", "AWS_SECRET_ACCESS_KEY=[hidden]"),
        (f"api-key: {SECRET}", "api-key: [hidden]"),
        (f"AccountKey={SECRET}==;Endpoint=x", "AccountKey=[hidden];Endpoint=x"),
        (f"Authorization: Bearer {SECRET}", "Authorization: Bearer [hidden]"),
        ("https://0123456789abcdef01234567@o1.sentry.io/2", "https://[hidden]@o1.sentry.io/2"),
        ("https://hooks.slack.com/services/T00/B00/XXyyZZ", "https://hooks.slack.com/services/[hidden]"),
        ("https://discord.com/api/webhooks/1234/ab-CD_ef", "https://discord.com/api/webhooks/[hidden]"),
        ("id AKIAIOSFODNN7EXAMPLE.", "id [hidden]."),
        ("id ASIAIOSFODNN7EXAMPLE,", "id [hidden],"),
        (f"ghp_{LETTERS[:36]}", "[hidden]"),
        (f"github_pat_{LETTERS[:22]}_{LETTERS}", "[hidden]"),
        (f"login(hf_{LETTERS[10:44]})", "login([hidden])"),
        (f"key sk-{LETTERS[20:68]}", "key [hidden]"),
        (f"sk-proj-{LETTERS[20:40]}-{LETTERS[30:60]}", "[hidden]"),
        ("xoxb-123456789012-123456789012-abcDEFghi", "[hidden]"),
        (f"glpat-{LETTERS[:20]}", "[hidden]"),
        (f"sk_live_{LETTERS[:24]}", "[hidden]"),
        (f"AIza{LETTERS[:35]}", "[hidden]"),
        (f"cookie={JWT};", "cookie=[hidden];"),
        (f"before\n{PEM}\nafter", "before\n[hidden]\nafter"),
        (json.dumps({"k": PEM}), '{"k": "[hidden]"}'),
        (f"{PEM[:150]}", "[hidden]"),
        (f"{PEM[60:]}\nafter", "[hidden]\nafter"),
        (f"│ HF_TOKEN │ {LETTERS[30:]} │", "│ HF_TOKEN │ [hidden] │"),
        (f"HF_TOKEN      {LETTERS[30:]}", "HF_TOKEN      [hidden]"),
        (f"setx HF_TOKEN {LETTERS[30:]}", "setx HF_TOKEN [hidden]"),
        (f"dict_items([('HF_TOKEN', '{LETTERS[30:]}')])", "dict_items([('HF_TOKEN', '[hidden]')])"),
        (f"putenv(b'HF_TOKEN', b'{LETTERS[30:]}')", "putenv(b'HF_TOKEN', b'[hidden]')"),
        ("{b'password': b'opensesame'}", "{b'password': b'[hidden]'}"),
        ("| password | opens3same |", "| password | [hidden] |"),
        ("password -> opens3same", "password -> [hidden]"),
        ("password == opens3same", "password == [hidden]"),
        ("password=%22opensesame%22", "password=[hidden]"),
        (r"password\u003dopensesame", r"password\u003d[hidden]"),
        ("password&#61;opensesame", "password&#61;[hidden]"),
        ("password: |\n  opens3same", "password: |\n  [hidden]"),
        ("<password a='b'>\n opensesame\n</password>", "<password a='b'>\n [hidden]\n</password>"),
        ("\x1b[1mpassword\x1b[0m=\x1b[32mopensesame\x1b[0m", "password=[hidden]"),
        ("pass\u200bword=opensesame", "password=[hidden]"),
        ("\x1b]8;;http://x\x1b\\password\x1b]8;;\x1b\\=opensesame", "password=[hidden]"),
        (f"sk-\x1b[1m{LETTERS[20:68]}\x1b[0m", "[hidden]"),
    ],
)  # fmt: skip
def test_what_looks_like_a_secret_is_hidden_and_the_rest_stays(text: str, hidden: str) -> None:
    assert redact(text) == hidden


@pytest.mark.parametrize(
    "text",
    [
        "mail ann@example.org about http://host:8080/path@v2 and a:b@c",
        "tcp://10.0.0.1:29500, worker@node",
        "eos_token='<|endoftext|>' pad_token=[PAD] num_tokens=1024 token: 50256",
        "tokens/s: 1234.5, tokens=98304000, max_new_tokens: 256",
        'FATAL: password authentication failed for user "ann"',
        "wrong password: try again",
        'connect(password=self.password, token=os.environ["HF_TOKEN"])',
        "password=password, password=None, password='***', password=$PASSWORD",
        "PWD=/root/work OLDPWD=/root",
        "KeyError: 'model.layers.0.weight'  key=model.layers.0.weight sort_key=created_at",
        "secret: no such file; secretKeyRef: name; key: value",
        "sk-learn-baseline-2024-run-01 hf_hub_download hf_transfer_is_not_installed",
        "basic configuration of the bearer network",
        "commit 744d01e18b79512572f64a6bbd8b5f4a725203a7 manifest " + "ab12" * 16,
        "s3://bucket/runs/r-1/attempts/1/evidence/" + "0f" * 32 + ".json",
        "-----BEGIN CERTIFICATE-----\nMIIEowIBAAKCAQEAs9xW1Yk0bq5uZkq9\n-----END CERTIFICATE-----",
        "the signature of forward(): (self, x); signature=forward(x)",
        "password == confirm; password is required | password | needed | ('password', 'str')",
        "│ token │ loss │ PASSWORD  SET   first_token  t5-11b-xxl-fp16-2024-01-31-x2",
        "<token>hello</token> <key>pad</key> python -u train.py:main, secret vol-0a1b2c3d4e5f67890",
        "\x1b[32mpad_token\x1b[0m=\x1b[1m<pad>\x1b[0m \u200bzero width",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_no_log_of_a_failure_loses_a_word() -> None:
    changed = [failure.id for failure in FAILURES if redact(failure.log) != failure.log]
    assert changed == []
    assert redact(WARNINGS) == WARNINGS


@pytest.mark.parametrize(
    "name",
    [
        *("AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "HF_TOKEN", "GITHUB_PAT", "AZURE_STORAGE_KEY"),
        *("OPENAI_KEY", "MYSQL_PWD", "DB_PASS", "SENTRY_DSN", "SLACK_WEBHOOK_URL", "PGPASSWORD"),
        *("minio_secret_key", "TOKEN_2", "SIGNING_KEY"),
    ],
)
def test_the_value_of_a_secret_variable_is_hidden_wherever_it_stands(name: str) -> None:
    assert redact(f"it was {SECRET}.", secrets_of({name: SECRET})) == "it was [hidden]."


@pytest.mark.parametrize(
    ("name", "value"),
    {
        "AWS_ACCESS_KEY_ID": "tracks",
        "DB_PASSWORD": "postgres",
        "API_TOKEN": "abc12",
        "SORT_KEY": "created_at",
        "S3_KEY": "models/gpt/step-100.pt",
        "SSL_KEY": "/etc/ssl/private/key.pem",
        "TRACKS_CODE_KEY": "runs/r-1/trainer/0a1b2c3d4e5f6071.tar",
        "OLDPWD": "/root/work1",
        "TOKENIZERS_PARALLELISM": "false-2",
        "MY_SECRET": "123456",
    }.items(),
)  # fmt: skip
def test_a_short_or_common_value_hides_no_ordinary_words(name: str, value: str) -> None:
    text = f"File /app/{value}_dagster/x.py: {value} of a run, {value}"
    assert redact(text, secrets_of({name: value})) == text


def test_a_short_secret_is_hidden_where_it_stands_by_itself() -> None:
    secrets = secrets_of({"DB_PASSWORD": "tracks1"})
    assert (
        redact("/app/xtracks1y/z 'tracks1' tracks1", secrets)
        == "/app/xtracks1y/z '[hidden]' [hidden]"
    )


@pytest.mark.parametrize(
    "secret",
    ['pa"ss9\\word-long', "p@ss/w0rd%long-er", "größe9-geheim-lang", "two9\nlines-of-it-all"],
)
def test_a_secret_is_hidden_in_json_in_repr_and_in_a_url(secret: str) -> None:
    secrets = secrets_of({"DB_PASSWORD": secret})
    error = ValueError({"login": secret})
    for text in (
        secret,
        repr(error),
        json.dumps({"login": secret}),
        json.dumps({"login": secret}, ensure_ascii=False),
        json.dumps(repr(error)),
    ):
        assert redact(text, secrets).count(HIDDEN) == 1, text
        assert secret[:4] not in redact(text, secrets)


def test_the_password_of_a_url_is_hidden_alone_and_decoded() -> None:
    environment = {
        "DATABASE": "postgresql://ann:p%40ss9word-long@db/x",
        "OTHER": "host=db password=hunter22pw dbname=x",
    }
    text = "as p%40ss9word-long, as p@ss9word-long, and hunter22pw"
    assert redact(text, secrets_of(environment)) == "as [hidden], as [hidden], and [hidden]"


def test_of_two_secrets_the_longer_one_goes_first() -> None:
    assert redact("abcdef-more-of-it", ("abcdef", "abcdef-more-of-it")) == HIDDEN


def test_what_was_redacted_once_is_not_changed_again() -> None:
    print(f"REDACT_SEED={SEED}")
    rng = random.Random(SEED)
    pieces = (
        *("password", "token", "=", ": ", '"', "'", "\\", "\n", " ", "://", "@", ":", "ann", SECRET),
        *("?sig=", "&", ";PWD=", "api_key", "Bearer ", PEM[:90], PEM[60:], JWT, "AKIAIOSFODNN7EXAMPLE"),
        *("{", "}", "[hidden]", "[", "]", ",", "hunter22", "https://hooks.slack.com/services/", "/"),
    )  # fmt: skip
    for _ in range(3000):
        text = "".join(rng.choice(pieces) for _ in range(rng.randrange(1, 14)))
        once = redact(text, (SECRET,))
        assert redact(once, (SECRET,)) == once, text
        assert SECRET not in once, text


def test_json_is_cleaned_by_the_names_of_its_fields_too() -> None:
    result = {
        "password": "opensesame",
        "pad_token": "[PAD]",
        "deep": [{"hf_token": SECRET}],
        "n": 1,
    }
    assert redact_json(result, redact) == {
        "password": HIDDEN,
        "pad_token": "[PAD]",
        "deep": [{"hf_token": HIDDEN}],
        "n": 1,
    }


@pytest.mark.parametrize(
    "text",
    [
        *("-", "a", "password=", "://", "a://:", "A/", "sk-", "hf_", "pypi-", "token='", "key=\\"),
        *("-----BEGIN PRIVATE KEY-----", "AAAAAAAAAAAAAAAAA\n", "token:a-", "?sig=", "AIza", "eyJ"),
    ],
)
def test_no_text_takes_long(text: str) -> None:
    long = (text * 64_000)[:64_000] + " PRIVATE KEY"
    began = time.process_time()
    redact(long)
    assert (
        time.process_time() - began < 5.0
    )  # 0.1 s or less each; a pattern that explodes takes hours


# Which fields of records hold words, and are cleaned of secrets; the others name something.


# Who adds a field of text decides: words that people and programs say belong into `bodies.WORDS`.
NAMES = {
    *("accelerator", "after", "alias", "alert", "before", "blamed_node", "boot_id", "branch"),
    *("blamed_device", "light", "severity"),
    *("order", "columns", "group"),  # of a view: names of values
    *("cause", "chunks", "chunks_key", "classifier_version", "config", "dagster_run_id"),
    *("data", "dataset", "device", "device_class", "diff_sha256", "direction", "environment"),
    *("environment_sha256", "eval_id", "evidence_key", "evidence_sha256", "excluded_nodes"),
    *("fingerprint", "finished_at", "git_commit", "host", "how", "image", "key", "kind"),
    *("last_stepped_at", "launch_id", "launcher", "limit", "logical_sha256", "manifest_key"),
    *("in_place", "checks_sha256", "home", "off_peak", "metric_steps", "non_finite"),
    *("manifest_sha256", "metric", "metrics", "mode", "model_family", "name", "node", "seconds"),
    *("node_selector", "slurm", "object_prefix", "package_version", "pin", "places_sha256", "pod"),
    *("pod_nodes", "policy_version", "pool", "priority_class", "queue", "reason", "repeat", "rule"),
    *(
        "run_id",
        "sha256",
        "sample_order",
        "snapshot_id",
        "source",
        "stage",
        "started_at",
        "stop_cause",
        "struck_at",
    ),
    *(
        "config_name",
        "entry",
        "folder",
        "logs",
        "packages_sha256",
        "python",
        "roles",
        "watch",
    ),  # of a program: refused where one holds a secret
    *("asked", "devices", "granted", "machine_id", "store", "work", "workload_class"),
    *(
        "code_sha256",
        "gate_key",
        "gates",
        "passed_gates",
        "project",
        "report_sha256",
        "what",
        "where",
    ),
    *("baseline", "experiment", "required_artifacts", "required_signals"),
    *("code_key", "of", "added", "removed"),
    *("chunk_sha256", "first_run_id", "history", "last_run_id", "system", "uids_sha256"),
    "nodes_sha256",
    # of a study: refused where a config holds a secret, as `config` is
    *("constraints", "outcome", "scheduler", "search", "space", "study"),
    "place",  # of a project: cleaned where it is read, since an address may have a password
    *("suite", "suite_version", "tolerations", "topology_key", "trainer", "trigger", "until_at"),
}


def test_every_field_of_text_is_either_words_or_a_name() -> None:
    kinds = [
        k for k in vars(bodies).values() if isinstance(k, type) and dataclasses.is_dataclass(k)
    ]
    found = {
        field.name
        for kind in kinds
        for field in dataclasses.fields(kind)
        if _may_hold_text(typing.get_type_hints(kind)[field.name])
    }
    assert found - NAMES == WORDS & found
    assert not NAMES & WORDS


def test_words_are_cleaned_however_deep_and_names_stay() -> None:
    token = "sk-ABCDEFGH12345678abcd"
    body = {
        "run_id": token,
        "why": f"with {token}",
        "avoided_nodes": {"n1": f"for {token}"},
        "remediation": [{"key": token, "why": token}],
    }
    assert redact_words(body, WORDS, redact) == {
        "run_id": token,
        "why": "with [hidden]",
        "avoided_nodes": {"n1": "for [hidden]"},
        "remediation": [{"key": token, "why": "[hidden]"}],
    }


def _may_hold_text(hint: object) -> bool:
    if hint is str or hint is typing.Any:
        return True
    return any(_may_hold_text(argument) for argument in typing.get_args(hint))


def test_an_environment_that_was_judged_is_not_judged_again() -> None:
    environment = {"DB_PASSWORD": "hunter2-and-more", "HOME": "/root"}
    assert secrets_of(environment) is secrets_of(dict(environment))
    changed = {**environment, "DB_PASSWORD": "another-one-9"}
    assert "another-one-9" in secrets_of(changed)
