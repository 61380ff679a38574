"""Lists in pages: every page of one list shows the state of its first, until that is forgotten."""

from __future__ import annotations

import base64
import json
import threading
from collections import OrderedDict

from tests.wings.kubernetes.double.answers import ApiError, Json

KEPT_MAX = 32  # lists that are being read


class Pages:
    """Safe from many threads."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[int, list[Json]]] = OrderedDict()
        self._lock, self._number = threading.Lock(), 0

    def first(self, items: list[Json], version: int, limit: int) -> Json:
        """Return the first page of what was found."""
        if not limit or len(items) <= limit:
            return {"metadata": {"resourceVersion": str(version)}, "items": items}
        with self._lock:
            self._number += 1
            number = self._number
            self._kept[number] = (version, items)
            if len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        return self._page(number, 0, limit)

    def next(self, token: str, limit: int) -> Json:
        """Return the page of a token; 410 when its list is forgotten."""
        try:
            asked = json.loads(base64.b64decode(token, validate=True))
            number, begin = int(asked["list"]), int(asked["begin"])
        except (ValueError, KeyError, TypeError) as error:
            raise ApiError(400, "BadRequest", "continue key is not valid") from error
        return self._page(number, begin, limit)

    def forget(self) -> None:
        """Forget every list: its next page is a 410."""
        with self._lock:
            self._kept.clear()

    def _page(self, number: int, begin: int, limit: int) -> Json:
        with self._lock:
            if number not in self._kept:
                why = (
                    "The provided continue parameter is too old to display a consistent list "
                    "result. You can start a new list without the continue parameter."
                )
                raise ApiError(410, "Expired", why)
            version, items = self._kept[number]
        end = begin + limit if limit else len(items)
        meta: Json = {"resourceVersion": str(version)}
        if end < len(items):
            token = json.dumps({"list": number, "begin": end}).encode()
            meta["continue"] = base64.b64encode(token).decode()
            meta["remainingItemCount"] = len(items) - end
        return {"metadata": meta, "items": items[begin:end]}
