"""What the double answers instead of an object: the API server's `Status`, by its real words.

Messages follow Kubernetes 1.34, because people and products read them: a refusal names the verb, the
resource and the account.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


class ApiError(Exception):
    """An answer that is not 2xx. code: HTTP status; reason: the machine's word for it."""

    def __init__(
        self, code: int, reason: str, message: str, *, details: Json | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.details = code, reason, message, details

    def status(self) -> Json:
        """Return the body, a `Status` object."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            **({"details": self.details} if self.details else {}),
            "code": self.code,
        }


def success(resource: str, name: str, uid: str) -> Json:
    """Return what a deletion that left nothing answers."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {"name": name, "kind": resource.partition(".")[0], "uid": uid},
    }


def unknown_path(path: str) -> ApiError:
    """The double has no such path; nor may the product rely on it without a test."""
    return ApiError(404, "NotFound", f"the server could not find the requested resource ({path})")


def not_found(resource: str, name: str) -> ApiError:
    """No such object."""
    return ApiError(
        404, "NotFound", f'{resource} "{name}" not found', details=_details(resource, name)
    )


def already_exists(resource: str, name: str) -> ApiError:
    """An object of that name is there, perhaps one that is being deleted."""
    return ApiError(
        409,
        "AlreadyExists",
        f'{resource} "{name}" already exists',
        details=_details(resource, name),
    )


def conflict(resource: str, name: str, why: str) -> ApiError:
    """The caller's precondition does not hold."""
    return ApiError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {resource} "{name}": {why}',
        details=_details(resource, name),
    )


def forbidden(resource: str, name: str, why: str) -> ApiError:
    """Not allowed: by role (see `cannot`), or by quota."""
    subject = f'{resource} "{name}"' if name else resource
    return ApiError(
        403, "Forbidden", f"{subject} is forbidden: {why}", details=_details(resource, name)
    )


def cannot(user: str, verb: str, resource: str, namespace: str) -> str:
    """Return the words of RBAC. resource: with its group, as in jobs.batch or pods/log."""
    whole, _, part = resource.partition("/")
    plain, _, group = whole.partition(".")
    plain = f"{plain}/{part}" if part else plain
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    return f'User "{user}" cannot {verb} resource "{plain}" in API group "{group}" {where}'


def invalid(kind: str, name: str, why: str) -> ApiError:
    """The manifest breaks a rule of the API."""
    return ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {why}', details={"name": name})


def expired(version: int, oldest: int) -> ApiError:
    """The changes after that version are forgotten."""
    return ApiError(410, "Expired", f"too old resource version: {version} ({oldest})")


def _details(resource: str, name: str) -> Json:
    plain, _, group = resource.partition(".")
    return {"name": name, "kind": plain, **({"group": group} if group else {})}
