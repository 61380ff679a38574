"""Long lists of names, arguments and shapes: what is a secret is hidden, what is training stays."""

from __future__ import annotations

import base64
import html
import json
import uuid
from urllib.parse import quote

import pytest

from tracks_dagster.track.text.redact import redact, redact_json, secrets_of

SECRET = "geheimX7q2w9er4"  # what nobody may read; 15 characters, with digits among them
DENSE = "8f3a9c1e7b5d2f4a6c8e0b1d3f5a7c9e1b3d5f7a"  # 40 hex digits
SHA1, SHA256, UUID = DENSE, DENSE + DENSE[:24], str(uuid.UUID(int=0xAB12CD34EF56 << 64))
MIXED = "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5bC7"  # 40 letters and digits of either case

VARIABLES = [
    *("DB_PASSWORD_PROD", "TOKEN_GITHUB", "SECRET_VALUE", "SSH_PRIVATE", "MYSQL_PW", "NPM_AUTH", "JWT"),
    *("AUTH", "COOKIE", "BEARER", "CREDS", "PASSWORD", "PASS", "DB_PASS_STAGING", "SECRET", "SECRETS"),
    *("API_KEY_PROD", "OPENAI_API_KEY_2", "WANDB_API_KEY", "HF_TOKEN", "HFTOKEN", "GITHUBTOKEN"),
    *("PGPASSWORD", "MYSQL_PWD", "REDIS_PASSPHRASE"),
    *("SMTP_PASSWD", "APIKEY", "MYAPIKEY", "AUTH_TOKEN_EU"),
    *("GITHUB_PAT", "PAT", "OAUTH_TOKEN"),
    *("CLIENT_SECRET_NEW", "AWS_SECRET_ACCESS_KEY", "SIGNING_KEY_OLD"),
    *("ENCRYPTION_KEY", "MASTER_KEY_1", "LICENSE_KEY"),
    *("SESSION_TOKEN", "JWT_SECRET_KEY", "COOKIE_SECRET"),
    *("BASIC_AUTH", "PROXY_AUTHORIZATION", "DB_CREDENTIALS"),
    *("GIT_CRED", "WEBHOOK_SECRET_A", "dbPassword"),
    *("apiKey", "accessToken", "clientSecretProd"),
    *("db-password", "MNEMONIC", "VAULT_TOKEN_1", "X_API_KEY"),
    *("AZURE_STORAGE_KEY", "SENTRY_DSN", "SLACK_WEBHOOK", "WANDB_KEY", "ACCOUNT_KEY", "TOTP", "SAS"),
    *("PRIVATE_KEY_ID", "TOKEN_ID", "GITHUB_TOKENS", "BASICAUTH", "WIFI_PSK", "USERPASS"),
    *("WEBHOOK_URL", "CSRF_TOKEN"),
]  # fmt: skip


@pytest.mark.parametrize("name", VARIABLES)
def test_a_secret_word_anywhere_in_the_name_of_a_variable_hides_its_value(name: str) -> None:
    assert redact(f"it is {SECRET}, yes", secrets_of({name: SECRET})) == "it is [hidden], yes"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false-2024-run"),
        ("MAX_TOKENS", "1234567890a"),
        ("TOKEN_COUNT", "98304000"),
        ("PAD_TOKEN", "reserved1token2"),
        ("AUTHOR", "ann.example9"),
        ("GIT_AUTHOR_NAME", "ann.example9"),
        ("KEY_DIM", "12345678"),
        ("SSH_AUTH_SOCK", "/tmp/ssh-aB3dE5fG7hJ9/agent.1234"),
        ("SECRET_FILE", "/run/secrets/db-1"),
        ("DB_PASSWORD_FILE", "/run/secrets/db_password"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/etc/keys/gcp.json"),
        ("PWD", "/root/work/exp7run3x"),
        ("OLDPWD", "/root/work/exp7run3x"),
        ("COMPASS_DIR", "north7east4x"),
        ("PATH", "/usr/bin:/opt/a7b3c9/bin"),
        ("PATTERN", "train7x4y2z"),
        ("PYTHONPATH", "/opt/a7b3c9d1"),
        ("NUM_KEYS", "a1b2c3d4e5f6"),
        ("CACHE_KEY", DENSE),
        ("XAUTHORITY", "/root/.Xauthority7a8b"),
        ("KEYBOARD", "us7intl8x9"),
        ("MONKEY", "banana split"),
        ("COOKIECUTTER_DIR", "a1b2c3d4e5"),
        ("PASSES", "a1b2c3d4e5"),
    ],
)
def test_a_variable_that_only_sounds_like_a_secret_hides_nothing(name: str, value: str) -> None:
    assert redact(f"it is {value}, yes", secrets_of({name: value})) == f"it is {value}, yes"


CONFIG = [
    *("wandb_key", "github_pat", "ssh_key", "auth"),
    *("bearer", "license_key", "cookie", "token", "secret"),
    *("password", "db_password", "passwd", "passphrase"),
    *("pwd", "api_key", "apikey", "apiKey", "hf_token"),
    *("access_token", "accessToken", "auth_token"),
    *("client_secret", "clientSecret", "secret_key", "jwt"),
    *("private_key", "signing_key", "encryption_key", "master_key", "account_key", "access_key", "pat"),
    *("credentials", "credential", "creds", "session_token", "refresh_token", "id_token", "bot_token"),
    *("oauth_token", "basic_auth", "proxy_auth", "set_cookie", "cookies", "webhook_secret", "pass"),
    *("smtp_pass", "mysql_pw", "model.hub.token", "logger.wandb_api_key", "s3.secret", "Authorization"),
    *("x-api-key", "gitlab-token", "otp", "deploy_key", "gpg_key", "token_prod", "secret_value"),
    *("password_of_db", "wandb.key", "slack_webhook", "sentry_dsn", "hub_token", "comet_key"),
]  # fmt: skip


@pytest.mark.parametrize("key", CONFIG)
def test_a_secret_key_of_a_config_is_one_whatever_its_value_looks_like(key: str) -> None:
    values = [DENSE] if key in PERHAPS else [DENSE, SECRET, "hunter2", "geheim", "correct horse"]
    for value in values:
        assert redact_json({key: value}, redact) == {key: "[hidden]"}
        assert redact_json({"a": [{key: [value]}]}, redact) == {"a": [{key: ["[hidden]"]}]}


PERHAPS = {"wandb_key", "wandb.key", "slack_webhook", "sentry_dsn", "comet_key"}

BENIGN = {
    "token_count": 98304000, "max_tokens": 4096, "n_keys": 8, "author": "ann7example8x",
    "tokenizer": "meta-llama/Llama-3.1-8B", "key_dim": 64, "auth_loss": 0.25, "git_sha": SHA1,
    "run_uuid": UUID, "sha256": SHA256, "commit": SHA1, "data_digest": SHA256, "eos_token": "</s>",
    "pad_token": "<|reserved_special_token_0|>", "token_dropout": 0.1, "token_type": "bpe-32k-v2",
    "eos_token_id": 50256, "num_tokens": "1024", "tokens_per_step": 524288, "key_padding_mask": True,
    "sort_key": "created_at", "cache_key": SHA256, "gate_key": SHA256, "primary_key": "user_id",
    "evidence_key": f"runs/r-1/attempts/1/evidence/{SHA256}.json", "topology_key": "k8s.io/zone1a2b",
    "pass_rate": 0.97, "passes": 3, "forward_pass": "bf16-v2-fused", "path": "/data/x7y8z9.bin",
    "pattern": "shard-00*-of-08", "patience": 5, "patch_size": "16x16-v3", "password_length": 12,
    "use_auth": True, "auth_type": "oauth2-v2", "authors": ["ann7b8c9d0"], "keys": ["a1b2c3d4e5f6"],
    "secret_ratio": 0.1, "token": None, "password": "", "secret": "${SECRET}", "api_key": "<yours>",
    "auth": "none", "image_token": "<image>", "bearer_loss": 1.5, "cookie_rate": 2, "monkey": "a7b8",
    "token_file": "/run/secrets/t", "credentials_path": "gs://a/b7c8d9e0", "private": True,
    "query_key_value": "fused7x8y9z0", "attn_key": "k_proj7x8y9", "value": MIXED, "name": "exp7-a8b9",
    "signature": "serving_default", "session": "a1b2c3d4", "salted": "a1b2c3d4e5", "jwt_mode": "rs256",
    "lr": 3e-4, "seed": 1234567890, "optimizer": "adamw8bit-v2", "url": "https://example.org/x7y8",
}  # fmt: skip


@pytest.mark.parametrize("key", BENIGN)
def test_an_ordinary_key_of_a_config_stays(key: str) -> None:
    assert redact_json({key: BENIGN[key]}, redact) == {key: BENIGN[key]}


S, D, M = SECRET, DENSE, MIXED
SHAPES = [
    f"login --password {S} now", f"--token {S}", f"--api-key {S}", f"--hf-token={S}", f"-password {S}",
    f"curl -u bob:{S} https://x", f"curl -ubob:{S}", f"curl --user bob:{S}", f"curl -u 'bob:{S}'",
    f"['train.py', '--token', '{S}']", f'["--password", "{S}"]', f"Command '['curl', '-u', 'bob:{S}']'",
    f"--db-password '{S}'", f"--client-secret {S}", f"--auth {S}", f"--bearer {S}", f"--pat {S}",
    f"mysql -u root -p{S} db", f"sshpass -p {S} ssh x", f"redis-cli -a {S}",
    f"docker login -u a -p {S}",
    f'{{"kty":"oct","k":"{S}{S}"}}', f'{{"kty": "RSA", "n": "x", "d": "{S}{S}", "p": "{S}{S}"}}',
    f"Authorization: token {S}", f"authorization: {S}", f"Authorization: Basic {S}==",
    f"'Authorization': 'Bearer {S}x'",
    f"hvs.{S}CAESIab", f"glrt-{S}abcde", f"gldt-{S}abcde", f"dop_v1_{S}{S}", f"r8_{S}abcd",
    f"gsk_{S}abcd",
    f"AGE-SECRET-KEY-1{S.upper()}{S.upper()}", f"https://api.telegram.org/bot123456:{S}/sendMessage",
    f"123456789:AA{S}{S}x", f"tgram://123456:{S}/1", f"slack://{S}/{S}/x", f"client-key-data: {S}{S}",
    f'{{"auths": {{"x": {{"auth": "{S}=="}}}}}}', f"machine x login ann password {S}",
    f"Set-Cookie: sid={S}; Path=/",
    f"Cookie: a=b; session={S}", f"pass: {S}", f"pw={S}", f"auth={S}", f'"private_key_id": "{S}f8e7d"',
    f"password%3D{S}", f"x?q=password%3D{S}%26a", f"token%3D{S}", f'https://ann:{S}"x@host/',
    f"https://ann:'{S}@host/",
    f"HF_TOKEN={S}", f"DB_PASSWORD_PROD={S}", f"TOKEN_GITHUB={S}", f"export SECRET_VALUE='{S}'",
    f"WANDB_API_KEY={S}",
    f"password={S}", f'"password": "{S}"', f"{{'api_key': '{S}'}}", f"api_key={S}",
    f"access_token={S}&x=1",
    f"x-api-key: {S}", f"secret_access_key = {S}", f"client_secret: {S}", f"refresh_token: '{S}'",
    f"jwt={S}",
    f"ghp_{M[:36]}", f"github_pat_{M}", f"hf_{M[:34]}", f"sk-{M}", f"sk-proj-{M}",
    f"sk-ant-api03-{M}", f"xoxb-1234567890-{M}",
    f"glpat-{M[:20]}", f"npm_{M[:36]}", f"pypi-{M}{M}", f"AKIA{'B7' * 8}", f"AIza{M[:35]}",
    f"ya29.{M}", f"1//0{M}",
    f"dapi{D[:32]}", f"SG.{M[:22]}.{M}", f"{D[:32]}-us12", f"SK{D[:32]}", f"dckr_pat_{M[:27]}",
    f"tskey-auth-{M}",
    f"nvapi-{M}", f"lin_api_{M}", f"figd_{M}", f"shpat_{D[:32]}", f"sntrys_{M}",
    f"lsv2_pt_{D[:32]}_ab", f"glsa_{M}",
    f"GOCSPX-{M[:28]}", f"whsec_{M}", f"rubygems_{D}", f"pscale_tkn_{M}", f"sk_live_{M[:24]}",
    f"xai-{M}", f"pul-{D}",
    f"eyJ{M}.eyJ{M}.{M}", f"postgresql://ann:{S}@db/x", f"redis://:{S}@x",
    f"https://{S}{S}@o1.sentry.io/2",
    f"AccountKey={S}==;x", f"?sig={S}&x", f"Pwd={S};", f"https://hooks.slack.com/services/T0/B0/{S}",
    f"https://x.webhook.office.com/webhookb2/{S}", f"'--password' '{S}'", f"WANDB_KEY={S}",
    f"\\\"token\\\": \\\"{S}\\\"",
    f"<password>{S}</password>", f'<add key="Password" value="{S}"/>', f"X-Amz-Signature={S}",
    f"- name: HF_TOKEN\n          value: {S}", f'{{"name":"HF_TOKEN","value":"{S}"}}',
    f"password is {S}",
    f"os.environ['HF_TOKEN'] = '{S}'", f'password = """{S}"""', f"token:\n  {S}", f"GITHUB_TOKENS={S}",
]  # fmt: skip


@pytest.mark.parametrize("text", SHAPES)
def test_a_secret_in_a_log_is_hidden_by_its_name_its_option_or_its_shape(text: str) -> None:
    for around in (text, f"step 5 | {text}\n", f"\rlogin {text}:  50%|#####     | 5/10"):
        cleaned = redact(around)
        assert "[hidden]" in cleaned
        for secret in (S, M[:20], D[:20], S.upper()):
            assert secret not in cleaned
        assert redact(cleaned) == cleaned


@pytest.mark.parametrize(
    "text",
    [
        "token_count=98304000 max_tokens: 4096 n_keys=8 author=ann7b8c9d0x key_dim: 64 auth_loss=0.251",
        f"commit {SHA1} sha256 {SHA256} uuid {UUID} tree={SHA1} digest: {SHA256} gate_key={SHA256}",
        "token_loss: 2.345e-05, token_acc=0.9312, secret_ratio=0.1, forward_pass: 12.5ms",
        "usage: train.py [-h] [--token TOKEN] [--password PASSWORD] [--api-key API_KEY] --max-tokens N",
        "--max-tokens 4096 --tokenizer llama-3.1 --token-count 5 --key-dim 64 --author ann7b8c9d0x",
        "--token is required; --password must be given; use --auth with care, --api-key option",
        "docker run -u 1000:1000 -u root:root image; chown -R ann:staff7x8y9z",
        "eos_token='<|endoftext|>' pad_token=[PAD] next_token: 50256 stop_token='###'",
        "key=model.layers.0.self_attn.q_proj.weight state_key=layer1.conv2.bn3 cache_key=a1b2c3d4e5f6",
        "sorted(x, key=lambda p: p[0]), key = torch.randn(2, 8), token = tokens[0], auth = self.auth",
        "RuntimeError: size mismatch for lm_head.weight: copying a param of torch.Size([50257, 768])",
        f"runs/r-1/attempts/1/evidence/{SHA256}.json s3://bucket/models/gpt-7b/step-1000.pt",
        "Loading checkpoint shards: 100%|██████████| 2/2 [00:05<00:00,  2.64s/it] tokens/s: 12345.6",
        "NCCL_DEBUG=INFO PYTHONPATH=/opt/a7b3c9d1 XAUTHORITY=/root/.Xa7 PWD=/root/work7x8",
        "cookie policy: strict; bearer of the news; basic training; passing: 3 tests passed=12",
        "secret_sauce.py:12 tokenization_llama.py:88 authentication.py keys.py password_utils.py:7",
        "Enter password:\nTraceback (most recent call last):\n  File 'x.py', line 3",
        "the token is missing, the password was wrong, its key is model.layers.0",
        "- name: MODE\n  value: fast7x8y9z\n- name: TOKENIZER\n  value: llama7x8y9z",
        "connect to 10.0.0.1:29500, http://127.0.0.1:8080/x?key=a&b=c, tcp://node-7:29500",
    ],
)  # fmt: skip
def test_what_training_writes_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


ENCODED = [
    lambda s: s,
    lambda s: quote(s, safe=""),
    lambda s: quote(quote(s, safe=""), safe=""),
    lambda s: json.dumps({"a": s}),
    lambda s: json.dumps(json.dumps({"a": s})),
    lambda s: repr({"a": s}),
    lambda s: repr(s.encode()),
    lambda s: base64.b64encode(s.encode()).decode(),
    lambda s: base64.urlsafe_b64encode(s.encode()).decode().rstrip("="),
    lambda s: base64.b64encode(f"ann:{s}".encode()).decode(),
    lambda s: base64.b64encode(f"a:{s}\n".encode()).decode(),
    lambda s: base64.b64encode(f"bob@x:{s}, and more".encode()).decode(),
    lambda s: s.encode().hex(),
    lambda s: s.encode().hex().upper(),
    html.escape,
    lambda s: html.escape(s).replace("&#x27;", "&#39;").replace("&quot;", "&#34;"),
    lambda s: s.replace("/", "\\/"),
]


@pytest.mark.parametrize(
    "secret", ["geheimX7q2w9er4tz", "a/b+c=d7&e<f 9%g", "größe7/und\"so'weiter8"]
)
@pytest.mark.parametrize("number", range(len(ENCODED)))
def test_the_value_of_a_variable_is_hidden_in_every_encoding(secret: str, number: int) -> None:
    written = ENCODED[number](secret)
    cleaned = redact(f"got {written}, sorry", secrets_of({"DB_PASSWORD": secret}))
    assert "[hidden]" in cleaned
    for part in (written[4:-8], secret):
        assert part not in cleaned or len(part) < 8


def test_a_key_inside_the_value_of_a_variable_is_hidden_wherever_it_stands() -> None:
    body = "MIIEvQgeheimC0AAAAAAAA7q2w9er4"
    key = f"-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----"
    for value in (key, json.dumps({"type": "service_account", "private_key": key})):
        assert redact(f"a line: {body}", secrets_of({"GCP": value})) == "a line: [hidden]"
    chat = secrets_of({"CHAT_URL": f"tgram://123456:{SECRET}/1"})
    assert SECRET not in redact(f"sent to 123456:{SECRET}/1", chat)
