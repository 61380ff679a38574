"""What of a folder is stored with a run, and that it is laid out again as it was."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tracks_dagster.attempts.effects.local import code_archive
from tracks_dagster.attempts.effects.local.checkout import read_code_diff, read_code_version
from tracks_dagster.attempts.effects.local.code_archive import pack_folder, pack_script
from tracks_dagster.track.errors import InvalidInput
from tracks_dagster.training.projects.code import CodeUnusable, lay_out


def test_folders_deeper_than_a_name_may_be_long_are_refused_in_words(tmp_path: Path) -> None:
    place = os.open(tmp_path, os.O_RDONLY)
    for _ in range(100):
        os.mkdir("y" * 60, dir_fd=place)
        inner = os.open("y" * 60, os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(os.open("z", os.O_CREAT, dir_fd=place))
    os.close(place)
    with pytest.raises(InvalidInput, match="cannot be read to be stored"):
        pack_folder(tmp_path)


def test_no_program_that_a_repository_names_is_started(tmp_path: Path) -> None:
    folder = write(tmp_path / "mine", train_DOT_py="a = 1\n")
    git(folder, "init", "-q")
    mark = tmp_path / "started"
    git(folder, "config", "core.fsmonitor", f"touch {mark}; false")
    assert pack_folder(folder).names == ("train.py",)
    assert not mark.exists()


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def laid(data: bytes, folder: Path, **files: str) -> None:
    lay_out(folder, code=data, key="runs/r-1/trainer/0a.tar", files=files)


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.org")
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = write(tmp_path / "mine", train_DOT_py="import model\n", pkg__model_DOT_py="a = 1\n")
    write(made, _DOT_env="KEY=secret", venv__x_DOT_py="", pkg____pycache____m_DOT_pyc="")
    (made / "pkg" / "__pycache__").mkdir(exist_ok=True)
    (made / "pkg" / "__pycache__" / "m.pyc").write_text("")
    return made


def test_without_git_all_files_are_stored_but_the_usual_ignores(folder: Path) -> None:
    assert pack_folder(folder).names == ("pkg/model.py", "train.py")


def test_a_project_of_an_installed_package_is_stored_whole_though_git_ignores_its_venv(
    folder: Path,
) -> None:
    write(folder, _DOT_gitignore=".venv/\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "mine")
    installed = write(folder / ".venv" / "examples" / "gpt", train_DOT_py="a = 1\n")
    assert pack_folder(installed).names == ("train.py",)
    assert read_code_version(installed).git_commit is None  # the user's own code is not in it
    assert read_code_diff(installed, str) is None


def test_with_git_what_it_ignores_is_left_out_and_what_it_tracks_is_stored(folder: Path) -> None:
    write(folder, _DOT_gitignore="*.bin\n", data_DOT_bin="x", new_DOT_py="", wandb__kept_DOT_py="")
    git(folder, "init", "-q")
    git(folder, "add", "train.py", "wandb/kept.py", "pkg")
    git(folder, "commit", "-qm", "first")
    names = set(pack_folder(folder).names)
    assert {"train.py", "new.py", "pkg/model.py", "wandb/kept.py", ".gitignore"} <= names
    assert not {".env", "data.bin", "venv/x.py"} & names
    (folder / "train.py").unlink()  # tracked, and gone from the disk
    assert "train.py" not in pack_folder(folder).names


def test_of_a_folder_in_a_repository_only_the_folder_is_stored(folder: Path) -> None:
    git(folder.parent, "init", "-q")
    write(folder.parent, other_DOT_py="")
    assert pack_folder(folder).names == ("pkg/model.py", "train.py")


def test_the_same_files_are_the_same_bytes_no_matter_who_wrote_them_when(
    folder: Path, tmp_path: Path
) -> None:
    first = pack_folder(folder)
    os.utime(folder / "train.py", (1, 1))
    (folder / "train.py").chmod(0o600)
    assert pack_folder(folder).sha256 == first.sha256
    (folder / "train.py").chmod(0o755)
    assert pack_folder(folder).sha256 != first.sha256


def test_what_is_stored_is_laid_out_read_only_with_its_links_and_modes(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "link.py").symlink_to(folder / "pkg" / "model.py")  # absolute, and inside
    (folder / "linked").symlink_to("pkg")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    code = tmp_path / "work" / "code"
    laid(pack_folder(folder).data, code)
    assert (code / "link.py").read_text() == (code / "linked" / "model.py").read_text() == "a = 1\n"
    assert (code / "link.py").resolve().is_relative_to(code)
    assert (code / "run.sh").stat().st_mode & 0o777 == 0o555
    assert (code / "train.py").stat().st_mode & 0o777 == 0o444
    laid(b"no archive", code)  # it is there: a second start changes nothing
    assert [path.name for path in code.parent.iterdir()] == ["code"]


def test_a_script_alone_is_stored_alone(folder: Path) -> None:
    assert pack_script(folder / "train.py").names == ("train.py",)
    with pytest.raises(InvalidInput, match=r"absent\.py cannot be read .* No such file"):
        pack_script(folder / "absent.py")


@pytest.mark.parametrize("name", ["{}.py", "{}.pyc", "{}/"])
def test_a_folder_with_millions_of_names_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(code_archive, "FILES_MAX", 5)
    monkeypatch.setattr(code_archive, "LOOKED_MAX", 50)
    for number in range(100):
        path = tmp_path / name.format(number)
        path.mkdir() if name.endswith("/") else path.touch()
    looked: list[str] = []

    class Counted:
        def __init__(self, folder: Path) -> None:
            self._entries = os.scandir(folder)

        def __enter__(self) -> Counted:
            return self

        def __exit__(self, *error: object) -> None:
            self._entries.close()

        def __iter__(self) -> Iterator[os.DirEntry[str]]:
            for entry in self._entries:
                looked.append(entry.name)
                yield entry

    monkeypatch.setattr(code_archive, "scandir", Counted)
    with pytest.raises(InvalidInput, match="keep the project in a folder of its own"):
        pack_folder(tmp_path)
    assert len(looked) <= (2 * 5 + 1 if name == "{}.py" else 50 + 1)


def test_what_git_does_not_list_in_time_is_not_left_out_silently(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(folder, "init", "-q")
    git(folder, "add", "train.py")
    ask = code_archive.git

    def late(*given: Any) -> bytes | None:
        return None if "--others" in given else ask(*given)

    monkeypatch.setattr(code_archive, "git", late)
    with pytest.raises(InvalidInput, match=r"did not list .* has 10 s for that"):
        pack_folder(folder)


def test_what_cannot_be_stored_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInput, match=r"config\.yaml is not stored with the run: git ignores"):
        pack_folder(folder, needed=("train.py", "config.yaml"))
    monkeypatch.setattr(code_archive, "CODE_BYTES_MAX", 15)
    with pytest.raises(
        InvalidInput, match=r"19 bytes to store; at most 15 .*train\.py \(13 bytes\)"
    ):
        pack_folder(folder)
    monkeypatch.setattr(code_archive, "FILES_MAX", 1)
    with pytest.raises(InvalidInput, match="more than 1 files to store"):
        pack_folder(folder)


@pytest.mark.parametrize("links", [{"loop": "loop"}, {"one": "other", "other": "one"}])
def test_a_link_that_leads_to_itself_is_refused_by_name(
    links: dict[str, str], folder: Path
) -> None:
    for link, target in links.items():
        (folder / link).symlink_to(target)
    with pytest.raises(InvalidInput, match=r"leads to itself, over .*; remove it"):
        pack_folder(folder)


def test_a_link_out_of_the_folder_and_what_is_not_a_file_are_refused(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "out").symlink_to(tmp_path)
    with pytest.raises(InvalidInput, match="out leads out of the project"):
        pack_folder(folder)
    (folder / "out").unlink()
    os.mkfifo(folder / "pipe")
    with pytest.raises(InvalidInput, match="pipe is not a file, folder or link"):
        pack_folder(folder)


@pytest.mark.parametrize(
    ("name", "link"), [("../x", None), ("/x", None), ("a", "../b"), ("a/b", "/etc"), ("d", "")]
)
def test_an_archive_of_somebody_else_with_one_wrong_member_is_refused(
    tmp_path: Path, name: str, link: str | None
) -> None:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        member = tarfile.TarInfo(name)
        if link is not None:
            member.type, member.linkname = (
                (tarfile.SYMTYPE, link) if link else (tarfile.DIRTYPE, "")
            )
        tar.addfile(member)
    with pytest.raises(CodeUnusable, match="stored code has "):
        laid(written.getvalue(), tmp_path / "w" / "code")
    assert not (tmp_path / "w" / "code").exists()
    with pytest.raises(CodeUnusable, match="cannot be unpacked"):
        laid(b"no archive", tmp_path / "w" / "code")


Member = tuple[str, str | None]  # its name, and where it leads to: None for a file


@pytest.mark.parametrize(
    "members",
    [
        [("x", "."), ("y", "x/.."), ("y/evil", None)],
        [("x", "."), ("y", "x/.."), ("z", "y/x/.."), ("z/evil", None)],
        [("a/b/f", None), ("s", "a"), ("q", "s/b/../../.."), ("q/evil", None)],
        [("d/f", None), ("d/up", ".."), ("out", "d/up/.."), ("out/evil", None)],
        [("later", "deep/in/../../.."), ("deep/in", "."), ("later/evil", None)],
        [("y", "x/../.."), ("x/f", None)],  # a link alone: the ranks would write through it
        [("y", "x/.."), ("x", ".")],
        [("x", "/"), ("x/evil", None)],
        [("x", None), ("x", "y")],
        [("x", "sub/evil"), ("x", None)],
        [("x", "../evil"), ("x", None)],
        [("x", None), ("x", None)],
        [("x", None), ("x/evil", None)],
        [("d", "gone"), ("d/evil", None)],
        [("a/../evil", None)],
        [(".", None)],
        [("n" * 300, None)],
        [("x", "")],
    ],
)
def test_no_chain_of_links_and_names_writes_outside(tmp_path: Path, members: list[Member]) -> None:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, target in members:
            member = tarfile.TarInfo(name)
            if target is None:
                member.size = 4
            else:
                member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member, io.BytesIO(b"EVIL"))
    code = tmp_path / "deep" / "work" / "code"
    code.parent.mkdir(parents=True)
    with pytest.raises(CodeUnusable, match="stored code "):
        laid(written.getvalue(), code)
    assert [path.name for path in tmp_path.rglob("*")] == ["deep", "work"]


def test_a_config_is_written_through_no_link_of_the_archive(folder: Path, tmp_path: Path) -> None:
    (folder / "linked").symlink_to("pkg")
    data = pack_folder(folder).data
    with pytest.raises(CodeUnusable, match=r"'linked/config\.json' below a link"):
        lay_out(tmp_path / "code", code=data, key="k.tar", files={"linked/config.json": "{}"})
    with pytest.raises(CodeUnusable, match="'pkg', where a file has to go"):
        lay_out(tmp_path / "code", code=data, key="k.tar", files={"pkg": "{}"})
