"""Text snapshots, made for real by DuckDB, polars and pandera from small sources."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tracks_dagster.data.effects.datasets import aws_docs, text
from tracks_dagster.data.effects.datasets.catalog import ShippedDatasets
from tracks_dagster.data.effects.datasets.text import Document
from tracks_dagster.track.errors import DataRejected, InvalidInput, UnknownRun
from tracks_dagster.track.states.dataset_state import PreparedSnapshot, manifest, snapshot_id


def prepared(folder: Path, documents: dict[str, str]) -> PreparedSnapshot:
    folder.mkdir(parents=True)
    rows = [Document(name=name, text=text) for name, text in documents.items()]
    return text.prepare_text(folder, "aws-docs", rows, "tests")


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def test_a_snapshot_holds_its_documents_in_order(tmp_path: Path) -> None:
    found = prepared(tmp_path / "a", {"b": "Second come first.", "a": "Then this: ä."})
    assert found.kind == "text"
    assert [c.name for c in found.columns] == ["document", "text"]
    assert found.row_count == 2
    rows = pl.read_parquet(found.shards[0].path)
    assert rows.rows() == [("b", "Second come first."), ("a", "Then this: ä.")]


def test_the_same_text_gives_the_same_id_in_another_folder(tmp_path: Path) -> None:
    one, two = (prepared(tmp_path / name, {"a": "text", "b": "more"}) for name in "xy")
    assert manifest("aws-docs", one) == manifest("aws-docs", two)


def test_one_changed_byte_changes_the_id_and_the_logical_hash(tmp_path: Path) -> None:
    one = prepared(tmp_path / "x", {"a": "text", "b": "more"})
    two = prepared(tmp_path / "y", {"a": "text", "b": "mora"})
    assert snapshot_id(manifest("aws-docs", one)) != snapshot_id(manifest("aws-docs", two))
    assert one.logical_sha256 != two.logical_sha256


def test_text_that_moves_from_one_document_to_the_next_changes_the_logical_hash(
    tmp_path: Path,
) -> None:
    one = prepared(tmp_path / "x", {"a": "onetwo", "b": "three"})
    two = prepared(tmp_path / "y", {"a": "one", "b": "twothree"})
    assert one.logical_sha256 != two.logical_sha256


def test_the_logical_hash_does_not_depend_on_how_rows_are_cut_into_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = {f"d{n}": f"text {n}" for n in range(10)}
    whole = prepared(tmp_path / "x", documents)
    monkeypatch.setattr(text, "SHARD_BYTES_MIN", 20)
    cut = prepared(tmp_path / "y", documents)
    assert [s.row_count for s in whole.shards] == [10]
    assert [s.row_count for s in cut.shards] == [4, 4, 2]  # 6 bytes a text, 20 or more a shard
    assert whole.logical_sha256 == cut.logical_sha256


def test_bad_documents_are_named_with_row_and_column(tmp_path: Path) -> None:
    with pytest.raises(DataRejected) as caught:
        prepared(tmp_path / "x", {"good": "text", "binary": "a\x00b", "blank": " \n "})
    assert caught.value.bad_row_count == 2
    assert [(b.row, b.column) for b in caught.value.bad_rows] == [(2, "text"), (3, "text")]
    assert "row 2, text: 'binary: a\\x00b' is not free of control characters" in str(caught.value)


def test_a_text_file_that_is_not_utf8_is_refused_with_file_and_offset(tmp_path: Path) -> None:
    path = write(tmp_path, {"latin1.txt": b"caf\xe9 au lait"}) / "latin1.txt"
    with pytest.raises(InvalidInput, match=r"latin1\.txt is not UTF-8: byte 3 is 0xe9"):
        list(text.read_documents(path))


def test_an_empty_text_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, {"empty.txt": b" \n"}) / "empty.txt"
    with pytest.raises(InvalidInput, match=r"empty\.txt holds no text"):
        list(text.read_documents(path))


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"holds no \.txt file"):
        text.read_documents(write(tmp_path, {"table.csv": b"a,b"}))


def test_a_source_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="There is no file or folder"):
        text.read_documents(tmp_path / "nowhere")


def test_a_document_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "DOCUMENT_BYTES_MAX", 3)
    path = write(tmp_path, {"large.txt": b"four"}) / "large.txt"
    with pytest.raises(InvalidInput, match="a document at most 3"):
        list(text.read_documents(path))


def test_a_folder_of_text_is_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", {"b.txt": b"B", "a/z.txt": b"A", "skipped.md": b"no"})
    with ShippedDatasets(tmp_path / "work").prepare("aws-docs", folder) as found:
        rows = pl.read_parquet(found.shards[0].path)
    assert rows["document"].to_list() == ["a/z.txt", "b.txt"]
    assert found.source == "own text"


def test_an_unknown_dataset_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(UnknownRun, match="aws-docs, aws-docs-heldout, flights, flights-heldout"):
        ShippedDatasets(tmp_path).describe("imagenet")


def test_no_folder_is_left_behind_after_a_snapshot_was_prepared(tmp_path: Path) -> None:
    with ShippedDatasets(tmp_path).prepare("aws-docs", write(tmp_path / "in", {"a.txt": b"A"})):
        assert list(tmp_path.glob("snapshot-*"))
    assert not list(tmp_path.glob("snapshot-*"))


def test_the_shipped_texts_share_no_service_and_stay_within_their_bounds() -> None:
    heldout = list(aws_docs.heldout_documents())
    training = list(aws_docs.training_documents())
    assert not {d.name for d in heldout} & {d.name for d in training}
    assert [d.name for d in training] == sorted(d.name for d in training)
    sizes = [sum(len(d.text.encode()) for d in documents) for documents in (training, heldout)]
    assert 5_000_000 < sizes[0] <= aws_docs.TRAINING_BYTES_MAX
    assert 100_000 < sizes[1] <= aws_docs.HELDOUT_BYTES_MAX


def test_documentation_is_read_without_its_html() -> None:
    assert aws_docs._plain("<p>A &amp; <b>B</b>\n of\n<i>C</i>.</p>") == "A & B of C ."
