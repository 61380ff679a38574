"""The connection to a cluster's API server, and its errors in words.

The client never repeats a request by itself: a creation that was sent twice would answer about the
second sending, and callers that wait decide how often. Every request is bounded in time. Every error
that leaves the client is one of CLIENT_ERRORS; `explain` describes it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import urllib3
import yaml
from kubernetes import config
from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException
from kubernetes.config import ConfigException
from kubernetes.config.kube_config import KubeConfigMerger

from tracks_dagster.track.errors import GangError, GangUnreachable, SettingsError
from tracks_dagster.track.json_text import parse_json
from tracks_dagster.track.records import Json
from tracks_dagster.wings.kubernetes.settings import ClusterSettings

CONNECT_S_MAX = 10.0
READ_S_MAX = 30.0  # between two bytes of a reply; the API server's own limit for a request is 60 s
# Of a watch or a followed log whose caller named none: both may be silent.
STREAM_READ_S_MAX = 600.0
CONNECTIONS_MAX = 64  # kept open for the threads of one process
WORDS_CHARACTERS_MAX = 2000  # of what the API server answers

ANSWER_CHARACTERS_MAX = 80  # of an answer that is not one, in words
CLIENT_ERRORS = (ApiException, urllib3.exceptions.HTTPError, ConfigException, OSError)
_DENIED = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]*)" '
    r'in API group "(?P<group>[^"]*)"(?: in the namespace "(?P<namespace>[^"]*)")?'
)
_QUOTA = re.compile(r"exceeded quota: (?P<name>[^,]+), (?P<numbers>.*)", re.DOTALL)
_ANONYMOUS = "system:anonymous"
_TROUBLE = frozenset({429, 500, 502, 503, 504, None})


class NoObject(urllib3.exceptions.HTTPError):
    """The answer was 200, and its body is not an object of the API."""


def connect(cluster: ClusterSettings) -> ApiClient:
    """Return a client; asks the API server nothing.

    A kubeconfig or a context that the settings name is taken as it is; without them a pod takes
    its own account, anything else the user's default kubeconfig. Raises SettingsError for one that
    cannot be used.
    """
    settings = Configuration()
    settings.retries = False
    settings.connection_pool_maxsize = CONNECTIONS_MAX
    if cluster.kubeconfig is not None or cluster.context is not None or not _join_pod(settings):
        _load_kubeconfig(cluster, settings)
    return BoundedClient(settings)


class BoundedClient(ApiClient):  # type: ignore[misc]  # the library ships no types
    """The library's client, with limits of time, and without the errors that hide its errors."""

    def request(self, method: str, url: str, **options: Any) -> Any:
        """Send one request; a caller's own `_request_timeout` overrides the limits here."""
        if not options.get("_request_timeout"):
            streams = options.get("_preload_content") is False
            options["_request_timeout"] = (
                CONNECT_S_MAX,
                STREAM_READ_S_MAX if streams else READ_S_MAX,
            )
        try:
            return super().request(method, url, **options)
        except AttributeError as error:  # a refused log: newer urllib3 has no `getheaders`
            if not isinstance(error.obj, urllib3.BaseHTTPResponse):
                raise
            refused = ApiException(status=error.obj.status, reason=error.obj.reason)
            refused.body = error.obj.data
            raise refused from error
        except ApiException as error:
            if error.body is None:  # TLS failed: the library would stumble over the missing body
                error.body = b""
            raise


def as_object(answer: Json) -> dict[str, Json]:
    """Return an answer's body as the object that it is; raises NoObject."""
    if isinstance(answer, dict) and isinstance(answer.get("kind"), str):
        return answer
    words = " ".join(str(answer).split())[:ANSWER_CHARACTERS_MAX]
    raise NoObject(f"{words!r}, which is not an object of its API")


def status_of(error: BaseException) -> Json:
    """Return the API server's `Status` object; an empty one where the answer was none."""
    body = getattr(error, "body", None)
    try:
        found = parse_json(body, foreign=True) if body else {}
    except ValueError:
        found = {}
    return found if isinstance(found, dict) else {}


def explain(error: Exception, doing: str, cluster: ClusterSettings) -> GangError:
    """Return what went wrong, why, and what to do about it.

    doing: what was asked, after "Cannot", for example "create the Job r-1-a01".
    """
    kind = GangUnreachable if is_passing(error) else GangError
    return kind(f"Cannot {doing}: {_why(error, cluster)}")


def is_passing(error: Exception) -> bool:
    """Whether the API server is in trouble or gave no answer, so that another try may succeed."""
    status = error.status if isinstance(error, ApiException) else None
    return status in _TROUBLE


def where(cluster: ClusterSettings) -> str:
    """Return in words which credentials are used."""
    context = f"context {cluster.context}" if cluster.context else "its current context"
    if cluster.kubeconfig is not None:
        return f"kubeconfig {cluster.kubeconfig}, {context}"
    if cluster.context is not None:
        return f"the default kubeconfig, {context}"
    return "the pod's own account, or the default kubeconfig outside of a pod"


def _join_pod(settings: Configuration) -> bool:
    """Take the account of the pod that this runs in; False outside of one."""
    try:
        config.load_incluster_config(client_configuration=settings)
    except ConfigException:
        return False
    return True


def _load_kubeconfig(cluster: ClusterSettings, settings: Configuration) -> None:
    path = cluster.kubeconfig or config.KUBE_CONFIG_DEFAULT_LOCATION
    paths = [str(Path(each).expanduser()) for each in path.split(":") if each]
    if not any(Path(each).is_file() for each in paths):
        raise SettingsError(
            f"There is no kubeconfig {' or '.join(paths)}; name one in the cluster's settings "
            "(`kubeconfig: /path`), or fetch one as your cluster's provider describes."
        )
    try:
        _check_context(":".join(paths), cluster.context)
        config.load_kube_config(
            ":".join(paths), cluster.context, client_configuration=settings, persist_config=False
        )
    except OSError as error:
        raise SettingsError(f"A file of kubeconfig {path} cannot be read: {error}.") from error
    except (ConfigException, yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError):
        # Without the original: its words may repeat a part of the file that holds a token.
        raise SettingsError(
            f"The kubeconfig {path} is not one: its context, or the cluster and user that this "
            "names, cannot be read. `kubectl config view` shows what is in it."
        ) from None


def _check_context(path: str, wanted: str | None) -> None:
    merged = KubeConfigMerger(path).config
    known = [each["name"] for each in merged.value["contexts"]]
    name = wanted or merged.value.get("current-context")
    if name in known:
        return
    there = ", ".join(known) or "none"
    if name:
        raise SettingsError(f"The kubeconfig {path} has no context {name}; there are: {there}.")
    raise SettingsError(
        f"The kubeconfig {path} has no current context; name one in the cluster's settings "
        f"(`context: …`). There are: {there}."
    )


def _why(error: Exception, cluster: ClusterSettings) -> str:
    found = _root(error)
    if isinstance(found, ApiException) and found.status:
        return _refused(found, cluster)
    words = " ".join(str(getattr(found, "reason", None) or found).split())[:WORDS_CHARACTERS_MAX]
    at = f"the API server of {where(cluster)}"
    match found:
        case ApiException():  # status 0: the library's sign of a TLS error
            why = f"{at} cannot be trusted ({words}); check certificate-authority and server there."
        case urllib3.exceptions.NameResolutionError():
            why = f"{at} has a name that cannot be resolved ({words})."
        case urllib3.exceptions.NewConnectionError():
            why = f"{at} cannot be reached ({words}); is the address right, and the cluster up?"
        case urllib3.exceptions.ConnectTimeoutError():
            why = f"{at} did not answer within {CONNECT_S_MAX:g} s; is a VPN or a tunnel missing?"
        case urllib3.exceptions.TimeoutError():
            why = f"{at} took the request and did not reply in time; it may have been done."
        case NoObject():
            why = f"{at} answered 200 with {words}; is a proxy or a page to log in before it?"
        case urllib3.exceptions.ProtocolError():
            why = f"{at} cut the connection ({words}); the request may have been done."
        case _:
            why = f"{at} could not be asked ({type(found).__name__}: {words})."
    return why


def _root(error: BaseException) -> BaseException:
    """Return what happened, below what the libraries wrapped around it."""
    below = error
    if isinstance(error, urllib3.exceptions.MaxRetryError) and error.reason is not None:
        below = error.reason
    elif isinstance(error, AttributeError) and isinstance(error.__context__, ApiException):
        below = error.__context__
    return below


def _refused(error: ApiException, cluster: ClusterSettings) -> str:
    """Return the words for an answer of the API server that is not 2xx."""
    status_body = status_of(error)
    reason = str(status_body.get("message") or error.reason or "it gave no reason")
    reason = " ".join(reason.split())[:WORDS_CHARACTERS_MAX]
    match error.status:
        case 401:
            return (
                f"the API server does not accept the credentials of {where(cluster)}; they are wrong "
                "or have expired. Log in again."
            )
        case 403:
            return _forbidden(reason, cluster)
        case 404:
            return _not_found(status_body, reason, cluster)
        case 409:
            what = (
                "it is there already"
                if status_body.get("reason") == "AlreadyExists"
                else "it changed"
            )
            return f"{what} ({reason})."
        case 413 | 422 | 400:
            return f"the API server refuses what was sent: {reason}. Check the cluster's settings."
        case 410:
            return f"what was seen last is too old to resume from ({reason}); list again."
        case 429:
            return f"the API server has too much to do ({reason}); it is asked again later."
    return f"the API server is in trouble ({error.status}: {reason}); it is asked again later."


def _forbidden(reason: str, cluster: ClusterSettings) -> str:
    quota = _QUOTA.search(reason)
    if quota is not None:
        return (
            f"it exceeds the quota {quota['name']} of namespace {cluster.namespace} "
            f"({quota['numbers']}). Ask for less, wait until others end, or have the quota raised."
        )
    denied = _DENIED.search(reason)
    if denied is None:
        return f"the cluster forbids it: {reason}."
    if denied["user"] == _ANONYMOUS:
        return (
            f"the API server saw no credentials ({reason}); {where(cluster)} gives none that it knows. "
            "Log in again."
        )
    at, kind = "at the cluster's scope", "ClusterRole"
    if denied["namespace"]:
        at, kind = f"in namespace {denied['namespace']}", "Role"
    group = denied["group"] or "core"
    rule = (
        f'{{apiGroups: ["{denied["group"]}"], resources: ["{denied["resource"]}"], '
        f'verbs: ["{denied["verb"]}"]}}'
    )
    return (
        f"account {denied['user']} may not {denied['verb']} {denied['resource']} (API group {group}) "
        f"{at}. Add the rule {rule} to a {kind} that is bound to it; `tracks doctor --kubernetes` "
        "lists all that are missing. (A namespace that does not exist gives the same answer.)"
    )


def _not_found(status_body: Json, reason: str, cluster: ClusterSettings) -> str:
    details = status_body.get("details") or {}
    if details.get("kind") == "namespaces":
        return (
            f"there is no namespace {details.get('name')}. Create it (`kubectl create namespace "
            f"{details.get('name')}`), or name another one in the cluster's settings."
        )
    if details.get("name"):
        kind = str(details.get("kind") or "object")
        return f"there is no {kind} {details['name']} in namespace {cluster.namespace} ({reason})."
    return (
        f"the API server does not know what was asked for ({reason}); a CRD is missing, or its "
        "version is not one that this works with."
    )
