"""No key goes into the stored code, whatever git says, and what may be one is named."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tests.attempts.test_code_archive import git, write
from tracks_dagster.attempts.effects.local.checkout import read_code_diff
from tracks_dagster.attempts.effects.local.code_archive import pack_folder
from tracks_dagster.attempts.effects.local.key_files import key_part
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.track.text.private_keys import holds_private_key
from tracks_dagster.track.text.redact import redact

BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7"
KINDS = ("", "RSA ", "EC ", "DSA ", "OPENSSH ", "ENCRYPTED ")


def pem(kind: str = "") -> str:
    return f"-----BEGIN {kind}PRIVATE KEY-----\n{BODY}\n{BODY}\n-----END {kind}PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    "name",
    [
        *("id_ecdsa", "id_dsa", "id_rsa"),
        *("id_ed25519", "id_ed25519_sk", ".ssh/id_ecdsa", ".ssh/config"),
        *(".npmrc", ".pypirc", ".netrc"),
        *("_netrc", ".git-credentials", ".aws/credentials", ".aws/config"),
        *(".kube/config", ".docker/config.json", "tls/server.key", "a.p12", "a.pfx", "a.ppk", "a.pem"),
        *(".env", ".envrc", ".env.local", "prod.env", "secrets.yaml", "secrets.toml", "secret.json"),
        *("conf/secrets.prod.yaml", "prod.secrets.yml"),
        *("service-account.json", "my-service_account-1.json"),
        *("application_default_credentials.json", "terraform.tfstate", "terraform.tfstate.backup"),
        *("prod.tfvars", ".pgpass", ".my.cnf", ".htpasswd", "credentials.json", "credentials.csv"),
        *("client_secret_1.apps.json", "kaggle.json"),
        *(".kaggle/kaggle.json", "kubeconfig", "x.kubeconfig"),
        *("kubeconfig.yaml", "app.jks", "app.keystore"),
        *("pass.kdbx", "key.asc", "key.gpg", "AuthKey_1.p8"),
        *(".vault-token", ".s3cfg", ".boto", "rclone.conf", ".databrickscfg", ".huggingface/token"),
        *(".config/gh/hosts.yml", ".bash_history", "deploy_rsa", "ssh_host_ed25519_key", "krb5.keytab"),
        *(".ENV", "a.PEM", "ID_RSA"),
        *("Secrets.YAML", ".AWS/Credentials", "PROD.Env", "Service-Account.JSON"),
        *("a/b/.Env.production", "deep/.aws/sso/cache/x.json"),
        *(".env~", "#.env#", "..env.swp", ".netrc~", ".npmrc.old", "server.key.bak", ".a.pem.swp"),
        *("prod.env.bak", "id.key.1", "credentials.json.bak.2", "ann_accessKeys.csv", "rootkey.csv"),
        *("stored_tokens", "deploy_key", "cookies.txt", ".modal.toml", "wallet.dat", "x.keychain-db"),
    ],
)  # fmt: skip
def test_a_name_of_a_key_is_one_in_any_case_and_any_folder(name: str) -> None:
    assert key_part(name) is not None


@pytest.mark.parametrize(
    "name",
    [
        *("train.py", "tokenizer.json", "vocab.txt", "tokens.bin", "secrets.py", "credentials.py"),
        *(
            "credentials/__init__.py",
            "identity/model.py",
            "gcloud/run.py",
            "keys.py",
            "key_dim.yaml",
        ),
        *(
            "environment.yml",
            "env.py",
            "envs/cartpole.py",
            ".envs.md",
            "kubeconfig.py",
            "public.crt",
        ),
        *(
            "monkey.jpg",
            "keyboard.json",
            "README.md",
            ".gitignore",
            "configs/model.yaml",
            "author.txt",
        ),
    ],
)
def test_an_ordinary_name_is_not_one(name: str) -> None:
    assert key_part(name) is None


@pytest.mark.parametrize("tracked", [False, True])
def test_keys_stay_out_whatever_git_tracks_and_are_named(tmp_path: Path, tracked: bool) -> None:
    folder = write(tmp_path / "mine", train_DOT_py="", _DOT_env="A=1", _DOT_aws__credentials="x=1")
    write(folder, id_ecdsa="x", my_token_DOT_txt="x", config_DOT_py='password = "opensesame"\n')
    if tracked:
        git(folder, "init", "-q")
        git(folder, "add", "-f", ".")
        git(folder, "commit", "-qm", "first")
    found = pack_folder(folder)
    assert found.names == ("config.py", "my_token.txt", "train.py")
    out, stored = found.remarks
    assert "called like keys: .aws, .env, id_ecdsa. Give secrets" in out
    assert "may hold secrets: config.py, my_token.txt. The store" in stored


def test_what_lies_in_a_folder_of_secrets_is_named(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "mine", secrets__db_DOT_txt="x", secrets__load_DOT_py="", _DOT_secrets__a=""
    )
    assert pack_folder(folder).suspects == (".secrets/a", "secrets/db.txt")


def test_a_folder_without_keys_has_no_remark(tmp_path: Path) -> None:
    folder = write(tmp_path / "mine", train_DOT_py="lr = 0.1\ntoken_count = 3\n")
    assert pack_folder(folder).remarks == ()


def test_a_needed_file_that_is_called_like_a_key_says_so(tmp_path: Path) -> None:
    folder = write(tmp_path / "mine", conf_DOT_env="A=1")
    with pytest.raises(InvalidInput, match=r"conf\.env is called like a key\. Call it otherwise"):
        pack_folder(folder, needed=("conf.env",))


def test_the_changes_of_a_file_that_is_called_like_a_key_are_in_no_diff(tmp_path: Path) -> None:
    folder = write(tmp_path / "mine", train_DOT_py="a = 1\n", _DOT_env="A=plain\n")
    git(folder, "init", "-q")
    git(folder, "add", "-f", ".")
    git(folder, "commit", "-qm", "first")
    write(folder, train_DOT_py="a = 2\n", _DOT_env="A=plain words\n", id_ecdsa="mine\n")
    diff = (read_code_diff(folder, redact) or b"").decode()
    assert "+a = 2" in diff
    assert "plain words" not in diff
    assert "+mine" not in diff
    assert diff.count("it is called like a key") == 2


HOLDING = {
    **{f"PEM {kind}": pem(kind).encode() for kind in KINDS},
    "cut": pem()[:120].encode(),
    "with headers": pem("RSA ")
    .replace(f"\n{BODY}", f"\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,AB\n\n{BODY}", 1)
    .encode(),
    "in Python": b'KEY = """' + pem().encode() + b'"""\n',
    "in lines of Python": b"KEY = (\n"
    + b"".join(f"    {line!r}\n".encode() for line in pem().splitlines(keepends=True))
    + b")\n",
    "in JSON": json.dumps({"type": "service_account", "private_key": pem()}).encode(),
    "Windows": pem().replace("\n", "\r\n").encode(),
    "UTF-16": pem().encode("utf-16"),
    "UTF-16 without its mark": b"\0" + pem().encode("utf-16-le")[:-1],
    "PGP": b"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQVYBGAAAAEBDADhq9Xk0Vb1cYp0w0dC5rZl\n=ab\n",
    "PuTTY": b"PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nPublic-Lines: 1\nAA\n"
    b"Private-Lines: 1\nAAAAIFF\nPrivate-MAC: ab\n",
    "age": b"# created\nAGE-SECRET-KEY-1QQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQ\n",
    "JWK": b'{"kty": "EC", "crv": "P-256", "x": "ab", "d": "jpsQnnGQmL-YBIffH1136cspYG6-0iY7X1fCE9"}',
    "JWK the other way": b'{"k": "AyM1SysPpbyDfgZld3umj1qzKObwVMko", "kty": "oct"}',
    "kubeconfig": b"users:\n- user:\n    client-key-data: " + base64.b64encode(pem().encode()),
}


@pytest.mark.parametrize("data", HOLDING.values(), ids=HOLDING)
def test_a_file_with_a_private_key_is_refused_by_name_with_the_cure(
    tmp_path: Path, data: bytes
) -> None:
    assert holds_private_key(data)
    folder = write(tmp_path / "mine", train_DOT_py="")
    (folder / "notes.txt").write_bytes(data)
    with pytest.raises(InvalidInput, match=r"notes\.txt holds a private key.*let \.gitignore"):
        pack_folder(folder)


@pytest.mark.parametrize(
    "text",
    [
        'if "-----BEGIN PRIVATE KEY-----" in text:\n    raise ValueError("no keys here, please")\n',
        'BEGIN = "-----BEGIN RSA PRIVATE KEY-----"\nEND = "-----END RSA PRIVATE KEY-----"\n',
        "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----\n",
        pem().replace("PRIVATE KEY", "PUBLIC KEY"),
        pem().replace("PRIVATE KEY", "CERTIFICATE"),
        "certificate-authority-data: "
        + base64.b64encode(pem().replace("PRIVATE KEY", "CERTIFICATE").encode()).decode(),
        '{"kty": "EC", "crv": "P-256", "x": "gI0GAILBdu7T53akrFmMyGcsF3n5dO7MmwNBHKW5SV0"}',
        '{"d": 512, "k": 3, "kty": "none"}',
        "PuTTY-User-Key-File-3 is what PuTTY writes",
    ],
)
def test_what_only_speaks_of_keys_holds_none(text: str) -> None:
    assert not holds_private_key(text.encode())
