"""What differs in the stored code of two attempts: files, lines, and what cannot be shown so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes import FakeObjectStore
from tests.histories import History
from tracks_dagster.attempts.effects.local.code_archive import pack_folder
from tracks_dagster.review.effects import code_diff
from tracks_dagster.review.effects.code_diff import Attempt, CodeDiff, diff_code
from tracks_dagster.track.addressed import write_addressed
from tracks_dagster.track.errors import InvalidInput, ObjectLost
from tracks_dagster.track.records import sha256_hex

OLD = {
    "train.py": b"import torch\nlr = 0.1\n",
    "same.py": b"x = 1\n",
    "gone.py": b"y = 2\n",
    "data.bin": b"\0\1",
    "ends.py": b"a\r\n",
}
NEW = {
    "train.py": b"import torch\nlr = 0.2\n",
    "same.py": b"x = 1\n",
    "new/__init__.py": b"",
    "data.bin": b"\0\1\2",
    "ends.py": b"a\n",
}


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two folders of code."""
    folders = [tmp_path / "old", tmp_path / "new"]
    for folder, texts in zip(folders, (OLD, NEW), strict=True):
        for name, data in texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
    return folders


def attempt(store: FakeObjectStore, name: str, data: bytes, ending: str = "tar") -> Attempt:
    """Return an attempt that was started with that code."""
    key = f"runs/{name}/trainer/{sha256_hex(data)}.{ending}"
    write_addressed(store, key, data)
    history = History(name).declare(trainer=key).open()
    return history.state, history.state.attempts[0]


def compared(store: FakeObjectStore, files: list[Path]) -> CodeDiff:
    a, b = (pack_folder(folder).data for folder in files)
    return diff_code(store, attempt(store, "a", a), attempt(store, "b", b))


def test_each_file_that_differs_is_shown_as_far_as_it_can_be(
    store: FakeObjectStore, files: list[Path]
) -> None:
    found = compared(store, files)
    assert (found.a, found.b, found.equal_count) == ("a/a01", "b/a01", 1)
    assert {each.path: (each.what, each.words) for each in found.files} == {
        "data.bin": ("changed", "not a text, or a long one: 2 bytes → 3 bytes"),
        "ends.py": ("changed", "only the ends of its lines differ"),
        "gone.py": ("removed", ""),
        "new/__init__.py": ("added", "it is empty"),
        "train.py": ("changed", ""),
    }
    changed = "--- a/train.py\n+++ b/train.py\n@@ -1,2 +1,2 @@\n import torch\n-lr = 0.1\n+lr = 0.2"
    assert changed in found.text
    assert "--- a/gone.py\n+++ /dev/null" in found.text


def test_a_large_diff_ends_and_says_so(
    store: FakeObjectStore, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_diff, "FILES_MAX", 4)
    monkeypatch.setattr(code_diff, "LINES_MAX", 3)
    (files[0] / "gone.py").write_text("\n".join(map(str, range(9))))
    found = {each.path: each for each in compared(store, files).files}
    assert len(found["gone.py"].lines) == 3
    assert found["gone.py"].words == "9 more lines of the diff are left out"
    assert found["train.py"].words == "only the first 4 files are shown"


def test_a_script_alone_is_one_file(store: FakeObjectStore) -> None:
    a, b = (attempt(store, name, name.encode(), "py") for name in "ab")
    assert diff_code(store, a, b).text.endswith("-a\n+b")
    assert diff_code(store, a, a).files == ()


def test_code_that_is_not_there_is_an_error(store: FakeObjectStore) -> None:
    whole = attempt(store, "a", b"print()", "py")
    family = History("f").declare(trainer="family").open().state
    with pytest.raises(InvalidInput, match="stored no code"):
        diff_code(store, whole, (family, family.attempts[0]))
    with pytest.raises(InvalidInput, match="cannot be read"):
        diff_code(store, whole, attempt(store, "b", b"not an archive"))
    store.put(whole[0].declared.trainer, b"other")
    with pytest.raises(ObjectLost, match="has sha256"):
        diff_code(store, whole, whole)
