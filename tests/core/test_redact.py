"""Credentials do not reach evidence, logs or messages."""

from __future__ import annotations

from tracks_dagster.core.redact import redact, secrets_of


def test_a_password_in_a_url_is_hidden_and_the_rest_stays() -> None:
    text = "cannot reach postgresql+psycopg2://ann:s3cr:et@db:5432/x"
    assert redact(text) == "cannot reach postgresql+psycopg2://ann:[hidden]@db:5432/x"


def test_text_without_credentials_stays_as_it_is() -> None:
    text = "mail ann@example.org about http://host:8080/path@v2 and a:b@c"
    assert redact(text) == text


def test_the_values_of_secret_variables_are_hidden_wherever_they_stand() -> None:
    environment = {
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI",
        "AWS_DEFAULT_REGION": "us-east-1",
        "WANDB_API_KEY": "0123456789",
        "TRACKS_POSTGRES_URL": "postgresql://ann:hunter22@db/x",
        "PGPASSWORD": "opensesame",
        "minio_secret_key": "minio-hush",
        "SHORT_TOKEN": "abc",
    }
    secrets = secrets_of(environment)
    assert redact("key=wJalrXUtnFEMI hunter22 opensesame minio-hush us-east-1 abc", secrets) == (
        "key=[hidden] [hidden] [hidden] [hidden] us-east-1 abc"
    )


def test_of_two_secrets_the_longer_one_goes_first() -> None:
    assert redact("abcdef-more", ("abcdef", "abcdef-more")) == "[hidden]"
