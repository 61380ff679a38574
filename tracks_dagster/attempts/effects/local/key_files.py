"""Files that hold keys and passwords, by their names; no run's stored code has them.

A name is compared without regard to case. Git is no excuse: what a person committed by mistake would be
copied into the store and onto every machine that trains.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from tracks_dagster.track.text.redact import redact

_DATA = (
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
)
FOLDERS = (".env", ".aws", ".ssh", ".gnupg", ".kube", ".azure", ".gcloud", ".oci")
KEYS = (
    *(".env", ".env.*", "*.env", ".envrc", ".netrc", "_netrc", ".pgpass", "pgpass.conf", ".my.cnf"),
    *(".mylogin.cnf", ".npmrc", ".pypirc", ".git-credentials", ".dockercfg", ".dockerconfigjson"),
    *(".htpasswd", "htpasswd", ".vault-token", ".vault_pass*", ".boto", ".s3cfg", "rclone.conf"),
    *(".databrickscfg", ".terraformrc", "*.tfstate", "*.tfstate.*", "*.tfvars", "*.tfvars.json"),
    *("kubeconfig", "*.kubeconfig", "kaggle.json", "credentials", ".credentials", ".credentials.*"),
    *(
        "*.pem",
        "*.key",
        "*.p8",
        "*.p12",
        "*.pfx",
        "*.ppk",
        "*.jks",
        "*.keystore",
        "*.kdb",
        "*.kdbx",
    ),
    *("*.asc", "*.gpg", "*.pgp", "*.agekey", "*.keytab", "*.ovpn", "*.mobileprovision"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "ssh_host_*_key", "*_rsa", "*_dsa"),
    *("*_ecdsa", "*_ed25519", "*service-account*.json", "*service_account*.json"),
    *("*serviceaccount*.json", "application_default_credentials.json", "client_secret*.json"),
    *("*-credentials.json", "*_credentials.json", "gcp-key*.json", "*adminsdk*.json"),
    *(".bash_history", ".zsh_history", ".python_history", ".psql_history", ".mysql_history"),
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
SEARCHED_BYTES_MAX = 256 * 1024  # of a file, for what looks like a secret in it


def key_part(name: str) -> str | None:
    """Return a file's name, or the folder on its way, that is called like a key; None where none is."""
    parts, lower = name.split("/"), name.lower()
    *folders, last = lower.split("/")
    for number, folder in enumerate(folders):
        if folder in FOLDERS:
            return "/".join(parts[: number + 1])
    is_key = any(fnmatchcase(last, pattern) for pattern in KEYS)
    return name if is_key or f"/{lower}".endswith(tuple(f"/{path}" for path in PATHS)) else None


def may_hold_secret(name: str, data: bytes) -> bool:
    """Whether a file that is stored is called like a secret, or holds what looks like one."""
    last = name.lower().rpartition("/")[2]
    if any(fnmatchcase(last, pattern) for pattern in PERHAPS):
        return True
    if len(data) > SEARCHED_BYTES_MAX:
        return False
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return redact(text) != text
