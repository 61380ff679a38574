"""Which names are those of secrets (of variables, keys of a config, options), and which values look so.

A name is read word by word, however they are joined: DB_PASSWORD_PROD, dbPassword, db-password. Many
words of secrets are words of training too (a pad token, a key's dimension, an author), so their
neighbours count.
"""

from __future__ import annotations

import re
from enum import Enum

LENGTH_MIN = 6  # shorter values would blank out ordinary words


class Names(Enum):
    """What a name says of its value."""

    PASSWORD = "a password, whatever it looks like"
    SECRET = "a secret, in a config or a variable whatever it looks like"
    PERHAPS = "a secret where the value looks like one"
    NOTHING = "nothing"


_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_PASSWORDS = frozenset(
    {
        "password",
        "passwords",
        "passwd",
        "passphrase",
        "passcode",
        "pwd",
        "pw",
        "passwort",
        "kennwort",
    }
    | {"userpass", "dbpass", "rootpass", "adminpass", "mypw"}
)
_SECRETS = frozenset(
    {"secret", "secrets", "token", "jwt", "bearer", "cred", "creds", "credential", "credentials"}
    | {
        "auth",
        "oauth",
        "authorization",
        "cookie",
        "cookies",
        "pat",
        "pass",
        "otp",
        "totp",
        "mnemonic",
    }
    | {"basicauth", "authkey", "passkey", "psk", "csrf", "xsrf", "hmac", "mypat", "ghpat"}
)
# Written together: PGPASSWORD, hftoken, apikey.
_ENDINGS = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "apikey",
    "secretkey",
    "accesskey",
)
_ADDRESSES = frozenset({"dsn", "webhook", "webhooks", "connstr"})  # who has one may write there
_PERHAPS = frozenset(
    {"private", "sas", "salt", "pepper", "sessionid", "sig", "signature", "tokens", "license"}
    | {"licence"}
)
_KEY_OF = frozenset(
    {"api", "access", "secret", "private", "account", "encryption", "encrypt", "signing", "sign"}
    | {
        "master",
        "ssh",
        "gpg",
        "pgp",
        "license",
        "licence",
        "deploy",
        "service",
        "auth",
        "hmac",
        "jwt",
    }
    | {"subscription", "decryption", "rsa", "aes", "shared", "admin", "root", "webhook", "ingest"}
)
# Of a dictionary, a table, a store, attention: no secret, and often a digest.
_KEY_IN = frozenset(
    {
        "sort",
        "primary",
        "foreign",
        "cache",
        "public",
        "partition",
        "group",
        "object",
        "store",
        "code",
    }
    | {"manifest", "chunk", "chunks", "evidence", "gate", "result", "row", "column", "index", "map"}
    | {"dict", "query", "value", "attention", "attn", "image", "text", "label", "input", "output"}
    | {
        "target",
        "feature",
        "metric",
        "loss",
        "batch",
        "run",
        "config",
        "param",
        "state",
        "topology",
    }
    | {"packages", "diff", "report", "run", "asset", "dedup", "idempotency", "trace", "log", "data"}
)
# Of a model's vocabulary, or counted.
_TOKENS = frozenset(
    {"eos", "bos", "pad", "unk", "mask", "sep", "cls", "image", "video", "audio", "special", "stop"}
    | {
        "start",
        "end",
        "begin",
        "next",
        "prev",
        "previous",
        "first",
        "last",
        "new",
        "extra",
        "newline",
    }
    | {
        "per",
        "each",
        "num",
        "n",
        "max",
        "min",
        "total",
        "mean",
        "avg",
        "prefix",
        "suffix",
        "middle",
    }
    | {"decoder", "encoder", "forced", "think", "tool", "prompt", "register", "class", "fim", "by"}
    | {"forward", "backward", "second", "single", "one", "two", "multi", "full", "high", "low"}
)
# As the last word: what of the secret it is instead.
_ASIDE = frozenset(
    {"count", "counts", "id", "ids", "idx", "index", "len", "length", "size", "dim", "dims", "rate"}
    | {"ratio", "loss", "acc", "accuracy", "weight", "weights", "embedding", "embeddings", "limit"}
    | {
        "budget",
        "type",
        "types",
        "mode",
        "method",
        "name",
        "names",
        "path",
        "paths",
        "file",
        "files",
    }
    | {"dir", "folder", "url", "uri", "ttl", "expiry", "expires", "timeout", "strategy", "policy"}
    | {"provider", "backend", "enabled", "required", "host", "port", "sock", "socket", "env", "var"}
    | {
        "level",
        "dropout",
        "format",
        "prefix",
        "suffix",
        "field",
        "header",
        "column",
        "label",
        "layer",
    }
    | {
        "dataset",
        "model",
        "head",
        "heads",
        "mask",
        "masks",
        "position",
        "positions",
        "step",
        "steps",
    }
    | {
        "num",
        "max",
        "min",
        "s",
        "seconds",
        "bytes",
        "class",
        "module",
        "scheme",
        "version",
        "region",
    }
    | {"parallelism", "mixing", "merging", "shift", "classification", "task", "user", "username"}
)


def what_names(name: str) -> Names:
    """Return what a name says of its value."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if words == ["pwd"]:  # as a variable the working folder
        return Names.NOTHING if name.isupper() else Names.SECRET
    kinds = [_kind(words, at) for at in range(len(words))]
    found = max(kinds, key=_STRENGTH.index, default=Names.NOTHING)
    is_aside = len(words) > 1 and words[-1] in _ASIDE and not _ADDRESSES.intersection(words)
    return Names.PERHAPS if is_aside and found in (Names.PASSWORD, Names.SECRET) else found


_STRENGTH = [Names.NOTHING, Names.PERHAPS, Names.SECRET, Names.PASSWORD]


def _kind(words: list[str], at: int) -> Names:
    word, before = words[at], words[at - 1] if at else ""
    if word in _PASSWORDS:
        return Names.NOTHING if before == "old" else Names.PASSWORD
    if word.endswith(_ENDINGS[:3]):
        return Names.NOTHING if word == "oldpwd" else Names.PASSWORD
    is_string = word == "string" and before == "connection"
    if word in _SECRETS or word in _ADDRESSES or is_string or word.endswith(_ENDINGS):
        is_of_text = word in ("token", "pass") and before in _TOKENS
        return Names.NOTHING if is_of_text else Names.SECRET
    if word in ("key", "keys"):
        if before in _KEY_OF or words[at + 1 : at + 2] == ["data"]:  # client-key-data
            return Names.SECRET
        return Names.NOTHING if word == "keys" or before in _KEY_IN else Names.PERHAPS
    is_perhaps = word in _PERHAPS or word.endswith("key")
    return Names.PERHAPS if is_perhaps and before not in _TOKENS else Names.NOTHING


# user_id, models/gpt.pt, us-east-1, /etc/ssl/key.pem: words and numbers, one after the other; and
# numbers of all kinds: 2.5e-05, 1.2GB/s, 0x7f3a, 2026-01-31T02:00:00Z
_ORDINARY = re.compile(
    r"[./~_-]*[A-Za-z][a-z]*(?:[\s._/-]+(?:[A-Za-z][a-z]*|\d{1,4}))*[._/-]*|[\d.,:x-]*|[A-Z_]+"
    r"|[+-]?\d[\d_,.]*(?:[eE][+-]?\d+)?\s?[A-Za-z%]{0,3}(?:/[a-z]{1,6})?"
    r"|0x[0-9a-fA-F]+|\d{4}-\d\d-\d\d[T ][\d:.]+(?:Z|[+-][\d:]+)?"
)


def looks_made_up(value: str) -> bool:
    """Whether a value looks random: letters and digits among each other, no words and no path."""
    if len(value) < LENGTH_MIN + 2 or _ORDINARY.fullmatch(value):
        return False
    return any(c.isdigit() for c in value) and any(c.isalpha() for c in value)


def is_ordinary_path(value: str) -> bool:
    """Whether a value names a file, as /run/secrets/db does; a password may begin with a slash too."""
    return value.startswith(("/", "~/", "./", "../")) and _ORDINARY.fullmatch(value) is not None
