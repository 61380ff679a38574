"""Files that hold keys and passwords, by their names; no run's stored code has them.

A name is compared without regard to case. Git is not an excuse: what a person committed by mistake
would be copied into the store and onto every machine that trains.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from tracks_dagster.track.text.redact import redact

_DATA = [
    "json",
    "yaml",
    "yml",
    "toml",
    "ini",
    "cfg",
    "conf",
    "txt",
    "csv",
    "xml",
    "env",
    "enc",
    "db",
]
FOLDERS = (".env", ".aws", ".ssh", ".gnupg", ".kube", ".azure", ".gcloud", ".oci")
KEYS = (
    *(".env", ".env.*", "*.env", ".envrc", ".netrc", "_netrc", ".pgpass", "pgpass.conf", ".my.cnf"),
    *(".mylogin.cnf", ".npmrc", ".pypirc", ".git-credentials", ".dockercfg", ".dockerconfigjson"),
    *(".htpasswd", "htpasswd", ".vault-token", ".vault_pass*", ".boto", ".s3cfg", "rclone.conf"),
    *(".databrickscfg", ".terraformrc", "*.tfstate", "*.tfstate.*", "*.tfvars", "*.tfvars.json"),
    *("kubeconfig", "*.kubeconfig", "kaggle.json", "credentials", ".credentials", ".credentials.*"),
    *("*.pem", "*.key", "*.p8", "*.p12", "*.pk8", "*.pfx", "*.ppk", "*.jks", "*.jceks", "*.bks"),
    *("*.keystore", "*.keychain", "*.keychain-db", "*.kwallet", "*.kdb", "*.kdbx", "*.1pux"),
    *("*.asc", "*.gpg", "*.pgp", "*.agekey", "*.keytab", "*.ovpn", "*.mobileprovision"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "ssh_host_*_key", "deploy_key", "*_rsa"),
    *("*_dsa", "*_ecdsa", "*_ed25519", "*service-account*.json", "*service_account*.json"),
    *("*serviceaccount*.json", "application_default_credentials.json", "client_secret*.json"),
    *("*-credentials.json", "*_credentials.json", "gcp-key*.json", "*adminsdk*.json"),
    *("*accesskeys*.csv", "rootkey.csv", "stored_tokens", ".modal.toml", "wallet.dat", "pgpass"),
    *("cookies.txt", "cookies.sqlite", "logins.json", "key4.db"),
    *(".bash_history", ".zsh_history", ".python_history", ".psql_history", ".mysql_history"),
    *(".sqlite_history", ".node_repl_history"),
    *(
        f"{stem}.{end}"
        for stem in ("secret", "secrets", "credentials", "kubeconfig")
        for end in _DATA
    ),
    *(f"{stem}.*.{end}" for stem in ("secret", "secrets", "credentials") for end in _DATA),
    *(f"*.{stem}.{end}" for stem in ("secret", "secrets", "credentials") for end in _DATA),
)
PATHS = (  # names that say nothing by themselves
    *(".docker/config.json", ".huggingface/token", "huggingface/token", ".config/gh/hosts.yml"),
    *(".m2/settings.xml", ".config/gcloud/credentials.db", ".config/hub"),
)
PERHAPS = (  # stored, since code is called so too, and named
    *("*secret*", "*credential*", "*passwd*", "*password*", "*apikey*", "*api_key*", "*api-key*"),
    *("*private_key*", "*private-key*", "token", "token.*", "*_token", "*_token.*", "*-token.*"),
    *("auth.json", "settings.local.*", "local_settings.*"),
)
PERHAPS_FOLDERS = ("secret", "secrets", ".secrets")
SEARCHED_BYTES_MAX = 256 * 1024  # of a file, for what looks like a secret in it

# What editors and people add to the name of a copy: .env~, server.key.bak, #.env#
_OF_A_COPY = re.compile(r"^#|#$|(?:~|\.(?:bak|backup|old|orig|save|sw[a-p]|copy|tmp|\d{1,3}))+$")


def key_part(name: str) -> str | None:
    """Return a file's name, or the folder on its way, that is called like a key; None where none is."""
    parts, lower = name.split("/"), name.lower()
    *folders, last = lower.split("/")
    for number, folder in enumerate(folders):
        if folder in FOLDERS:
            return "/".join(parts[: number + 1])
    last = _OF_A_COPY.sub("", last)
    is_key = any(fnmatchcase(last, pattern) for pattern in KEYS)
    return name if is_key or f"/{lower}".endswith(tuple(f"/{path}" for path in PATHS)) else None


def may_hold_secret(name: str, data: bytes) -> bool:
    """Whether a file that is stored is called like a secret, or holds what looks like one."""
    *folders, last = name.lower().split("/")
    is_code = last.endswith(".py")
    if any(folder in PERHAPS_FOLDERS for folder in folders) and not is_code:
        return True
    if any(fnmatchcase(last, pattern) for pattern in PERHAPS):
        return True
    if len(data) > SEARCHED_BYTES_MAX:
        return False
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return redact(text) != text
