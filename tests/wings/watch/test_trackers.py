"""One suite over every tracker: each kept step once, whatever happens to the run or to the export.

TensorBoard's files are read by protobuf here, and by TensorBoard itself where it is installed; MLflow
and W&B by their own clients (`./run test --full` installs them).
"""

from __future__ import annotations

import html
import importlib.util
import itertools
import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.stories import RUN_ID, Story
from tracks_dagster.curves.effects.rows import Row
from tracks_dagster.ledger.effects.tracks import Tracks
from tracks_dagster.track.crc32c import crc32c
from tracks_dagster.track.errors import InvalidInput, TrackerError
from tracks_dagster.track.media import Logged, index_bytes, index_key, part_key
from tracks_dagster.track.names import AttemptRef
from tracks_dagster.track.records import Kind, sha256_hex
from tracks_dagster.training.media import Audio, png
from tracks_dagster.wings.watch.effects.trackers import tensorboard
from tracks_dagster.wings.watch.effects.trackers.exporting import Exported, Tracker, export_run
from tracks_dagster.wings.watch.effects.trackers.mlflow import Mlflow
from tracks_dagster.wings.watch.effects.trackers.tensorboard import TensorBoard
from tracks_dagster.wings.watch.effects.trackers.wandb import WandbFolder
from tracks_dagster.wings.watch.exports import safe_key

Points = list[tuple[int, float]]
Shown = list[tuple[int, str]]


@dataclass(frozen=True)
class Target:
    """A tracker, and how a person reads what it has of a metric: (step, value) in its order.

    logged: what it has of that was logged beside numbers: (step, name), sorted.
    """

    tracker: Tracker
    read: Callable[[str], Points]
    logged: Callable[[], Shown] = list


@pytest.fixture(params=["tensorboard", "mlflow", "wandb"])
def target(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Target]:
    """Each tracker, empty; those whose client is not installed are skipped."""
    kind = request.param
    monkeypatch.chdir(tmp_path)  # where MLflow's store in SQLite leaves files
    if kind != "tensorboard" and importlib.util.find_spec(kind) is None:
        pytest.skip(f"{kind} is not installed: ./run test --full installs it")
    folder = tmp_path / kind
    match kind:
        case "tensorboard":
            yield Target(
                TensorBoard(folder),
                lambda metric: scalars(folder / RUN_ID, metric),
                lambda: tensorboard_logged(folder / RUN_ID),
            )
        case "mlflow":
            uri = f"sqlite:///{tmp_path}/mlflow.db"
            yield Target(
                Mlflow(uri),
                lambda metric: mlflow_points(uri, metric),
                lambda: sorted((step, name) for step, name, _ in mlflow_logged(uri)),
            )
        case _:
            yield Target(
                WandbFolder(folder),
                lambda metric: wandb_points(folder, metric),
                lambda: sorted((step, name) for step, name, _ in wandb_logged(folder)),
            )


def export(tracks: Tracks, target: Target) -> Exported:
    return export_run(tracks, RUN_ID, target.tracker, cache=None)


def losses(steps: range) -> Points:
    return [(step, pytest.approx(5 / step, rel=1e-6)) for step in steps]  # type: ignore[misc]


def test_three_exports_while_a_run_goes_on_leave_each_kept_step_once(
    target: Target, story: Story, tracks: Tracks
) -> None:
    """As mlflow#10510 and wandb#7951 want it: one run, three attempts, no step twice."""
    story.begin()
    story.ship(range(1, 24))
    story.commit(10)
    story.write_tracks()
    assert export(tracks, target).to_step == 9  # an evaluation of step 10 may still come
    assert target.read("loss") == losses(range(1, 10))
    story.commit(20)
    story.end("preempted", last_step=23)
    story.attempt("gpu_oom", last_step=30, commits=(30,))
    story.write_tracks()
    assert export(tracks, target).steps == 21
    story.attempt("completed", last_step=40, commits=(40,))
    story.history.finish()
    story.write_tracks()
    assert export(tracks, target).steps == 10
    assert target.read("loss") == losses(range(1, 41))
    assert [step for step, _ in target.read("step_s")] == list(range(1, 41))


def test_exporting_again_sends_nothing(target: Target, story: Story, tracks: Tracks) -> None:
    story.whole()
    assert export(tracks, target).steps == 40
    again = export(tracks, target)
    assert (again.steps, again.to_step, again.rolled_back) == (0, 40, None)
    assert target.read("loss") == losses(range(1, 41))


def test_a_run_without_a_commit_has_nothing_to_show_and_is_not_an_error(
    target: Target, story: Story, tracks: Tracks
) -> None:
    story.refused()
    assert export(tracks, target).steps == 0


def test_an_export_that_is_cut_short_goes_on_where_it_was(
    target: Target, story: Story, tracks: Tracks
) -> None:
    story.whole()
    seconds = iter(range(100))
    cut = export_run(
        tracks,
        RUN_ID,
        target.tracker,
        cache=None,
        seconds_max=15,
        seconds=lambda: float(next(seconds)),
    )
    assert not cut.is_whole
    assert 0 < cut.steps < 40
    assert export(tracks, target).is_whole
    assert target.read("loss") == losses(range(1, 41))


def test_what_was_logged_is_cut_by_the_time_too_and_each_is_sent_once(
    target: Target, story: Story, tracks: Tracks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 rows and some things fit into the first export, three things into each other one."""
    monkeypatch.setattr(tensorboard, "BLOCK_BYTES", 4000)
    story.whole()
    things = [(step, f"{n}/text", b"hello" * 300) for step in (0, 3, 10) for n in range(6)]
    log_things(tracks, things)
    exports = list[Exported]()
    while not exports or not exports[-1].is_whole:
        seconds, seconds_max = itertools.count(), 3.0 if exports else 45.0
        exports.append(
            export_run(
                tracks,
                RUN_ID,
                target.tracker,
                cache=None,
                seconds_max=seconds_max,
                seconds=lambda seconds=seconds: float(next(seconds)),
            )
        )
        if len(exports) == 2:  # two more come, one of a step that was sent
            things += [(3, "late/text", b"late"), (1, "late/text", b"late")]
            log_things(tracks, things)
    exports.append(export(tracks, target))
    assert target.logged() == sorted((step, name) for step, name, _ in things)
    assert target.read("loss") == losses(range(1, 41))
    assert [each.steps for each in exports] == [40] + [0] * (len(exports) - 1)
    assert sum(each.logged for each in exports) == len(things)
    if not isinstance(target.tracker, WandbFolder):  # which writes everything again
        assert len(exports) > 5
        assert max(each.logged for each in exports) <= 6
        assert [each.is_whole for each in exports] == [False] * (len(exports) - 2) + [True] * 2


def log_things(
    tracks: Tracks,
    items: Sequence[tuple[int, str, bytes] | tuple[int, str, bytes, str]],
    attempt_id: int = 1,
) -> None:
    """Store what an attempt logged, as its rank 0 does: (step, name, bytes), and the kind where the
    name does not end with it."""
    types = {"text": "text/plain", "image": "image/png", "audio": "audio/wav"}
    stored = []
    for step, name, data, *given in items:
        (kind,), sha256 = given or [name.rpartition("/")[2]], sha256_hex(data)
        tracks.store.put(part_key(RUN_ID, sha256), data)
        stored.append(
            Logged(
                step=step,
                name=name,
                kind=kind,
                sha256=sha256,
                size_bytes=len(data),
                media_type=types.get(kind, "application/json"),
            )
        )
    placed = tracks.run(RUN_ID).attempts[attempt_id - 1].placed
    assert placed is not None
    key = index_key(AttemptRef(RUN_ID, attempt_id), placed.launch_id)
    tracks.store.put(key, index_bytes(stored, []))


def test_what_was_logged_is_sent_in_every_kind_and_counted_once(
    target: Target, story: Story, tracks: Tracks
) -> None:
    story.whole()
    data = log_one_of_each(tracks)
    exported = export(tracks, target)
    assert (exported.logged, exported.left_out) == (2 * len(data), ())
    assert target.logged() == sorted((step, f"x/{kind}") for kind in data for step in (0, 10))
    assert not export(tracks, target).is_news


def test_what_is_gone_or_not_what_it_says_is_named_and_costs_itself_alone(
    target: Target, story: Story, tracks: Tracks
) -> None:
    story.whole()
    good, lost = (3, "x/text", b"good"), (4, "a\nb/text", b"lost")
    log_things(tracks, [good, lost])
    tracks.store.delete(part_key(RUN_ID, sha256_hex(b"lost")))
    exported = export(tracks, target)
    assert (exported.steps, exported.logged) == (40, 1)
    (words,) = exported.left_out
    assert words.startswith("a")
    assert "\n" not in words
    assert words.endswith("b/text of step 4: its bytes are gone from the store")
    assert exported.without == f"; not sent: {words}"
    assert target.logged() == [(3, "x/text")]
    assert target.read("loss") == losses(range(1, 41))


def test_a_step_below_0_that_a_list_has_costs_that_thing_at_most(
    target: Target, story: Story, tracks: Tracks
) -> None:
    """It is refused now; a run of before may have one."""
    story.whole()
    log_things(tracks, [(-1, "before/text", b"hello"), (3, "x/text", b"good")])
    exported = export(tracks, target)
    found = target.logged()
    assert exported.logged == len(found)
    assert (3, "x/text") in found
    assert exported.left_out in ((), ("before/text of step -1: a step below 0 cannot be shown",))
    assert len(exported.left_out) + len(found) == 2
    assert target.read("loss") == losses(range(1, 41))
    assert not export(tracks, target).is_news


def test_what_is_stored_after_its_step_was_sent_is_sent_next_time_and_once(
    target: Target, story: Story, tracks: Tracks
) -> None:
    """The list of what was logged is written some seconds after the numbers of its step."""
    first, late, last = ((step, f"{step}/text", b"hello") for step in (12, 5, 19))
    story.begin()
    story.ship(range(1, 24))
    story.commit(10)
    story.write_tracks()
    log_things(tracks, [first])  # its step is not committed
    export(tracks, target)
    assert target.logged() == []
    story.commit(20)
    story.write_tracks()
    log_things(tracks, [first, late])
    export(tracks, target)
    assert target.logged() == [(5, "5/text"), (12, "12/text")]
    story.end("preempted", last_step=23)
    story.write_tracks()
    export(tracks, target)
    log_things(tracks, [first, late, last])
    assert export(tracks, target).steps == 0
    export(tracks, target)
    assert target.logged() == [(5, "5/text"), (12, "12/text"), (19, "19/text")]


def roll_back(story: Story) -> None:
    """Attempt 1 committed 10 and 20; attempt 2 resumes from 10, runs them again and comes to 30."""
    story.attempt("loss_divergence", last_step=23, commits=(10, 20))
    first, second = (each.ref for each in story.history.state.checkpoints)
    story.history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, second, is_passed_over=True)
    story.attempt("completed", last_step=30, commits=(30,), resume=first)
    story.write_tracks()


def test_a_rollback_is_tagged_and_what_follows_it_is_added(
    target: Target, story: Story, tracks: Tracks
) -> None:
    story.attempt("loss_divergence", last_step=23, commits=(10, 20))
    story.write_tracks()
    export(tracks, target)
    assert len(target.read("loss")) == 20
    first, second = (each.ref for each in story.history.state.checkpoints)
    story.history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, second, is_passed_over=True)
    story.attempt("completed", last_step=30, commits=(30,), resume=first)
    story.write_tracks()
    exported = export(tracks, target)
    assert exported.steps == 20
    assert "steps 11 to 20 of attempt 1" in (exported.rolled_back or "")
    again = export(tracks, target)
    assert (again.steps, again.rolled_back) == (0, None)
    newest = dict(target.read("loss"))  # the later one of a step counts
    assert sorted(newest.items()) == losses(range(1, 31))


# --- TensorBoard ----------------------------------------------------------------------------------


def event_class() -> Any:
    """Return the message class of the events, of what of tensorflow/core/util/event.proto we write."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="event.proto", package="t", syntax="proto3")
    double, float_, int64, enum, string, message = 1, 2, 3, 5, 9, 11
    repeated = 3
    for name, fields in {
        "Value": [("tag", 1, string, 1, None), ("simple_value", 2, float_, 1, None)],
        "Summary": [("value", 1, message, repeated, ".t.Value")],
        "SessionLog": [("status", 1, enum, 1, None)],
        "Event": [
            ("wall_time", 1, double, 1, None),
            ("step", 2, int64, 1, None),
            ("file_version", 3, string, 1, None),
            ("summary", 5, message, 1, ".t.Summary"),
            ("session_log", 7, message, 1, ".t.SessionLog"),
        ],
    }.items():
        made = file.message_type.add(name=name)
        for field, number, kind, label, type_name in fields:
            made.field.add(name=field, number=number, type=kind, label=label, type_name=type_name)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Event"))


def events(path: Path) -> Iterator[Any]:
    """Yield the events of a file, all of it, each of whose checksums is right."""
    event, data = event_class(), path.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert masked(data[:8]) == data[8:12]
        assert masked(data[12 : 12 + length]) == data[12 + length : 16 + length]
        yield event.FromString(data[12 : 12 + length])
        data = data[16 + length :]


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def event_file(folder: Path) -> Path:
    (path,) = folder.glob("events.out.tfevents.*")
    return path


def tensorboard_logged(folder: Path) -> Shown:
    found = events(event_file(folder))
    return sorted(
        (each.step, value.tag.removeprefix("media/"))
        for each in found
        for value in each.summary.value
        if value.tag.startswith("media/")
    )


def scalars(folder: Path, metric: str) -> Points:
    """Return what TensorBoard shows: a restart takes back what has its step or a later one."""
    found: Points = []
    for event in events(event_file(folder)):
        if event.session_log.status:
            found = [(step, value) for step, value in found if step < event.step]
        found += [
            (event.step, value.simple_value) for value in event.summary.value if value.tag == metric
        ]
    return found


@pytest.mark.parametrize(
    ("data", "crc"),  # RFC 3720, appendix B.4, and the check value of CRC-32C
    [
        (b"\0" * 32, 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"123456789", 0xE3069283),
    ],
)
def test_the_checksum_is_castagnolis(data: bytes, crc: int) -> None:
    assert crc32c(data) == crc


def test_an_event_is_protobuf_as_event_proto_has_it() -> None:
    # wall_time 1.0 (field 1), step 3 (2), summary (5) of one value (1): tag (1), simple_value (2)
    row = Row(step=3, attempt_id=1, at=1.0, values={"loss": 0.5})
    body = tensorboard._scalars(row)
    assert body.hex() == "09000000000000f03f10032a0d0a0b0a046c6f7373150000003f"


def test_an_export_killed_between_any_two_writes_leaves_the_file_of_one_that_was_not(
    story: Story, tracks: Tracks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.whole()
    whole = TensorBoard(tmp_path / "whole")
    monkeypatch.setattr(tensorboard, "BLOCK_BYTES", 400)
    export_run(tracks, RUN_ID, whole, cache=None)
    expected = event_file(tmp_path / "whole" / RUN_ID).read_bytes()
    fsync, calls = tensorboard.os.fsync, 0

    def dies(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == dies_at:
            raise KeyboardInterrupt
        fsync(descriptor)

    monkeypatch.setattr(tensorboard.os, "fsync", dies)
    killed = 0
    for dies_at in range(1, 40):
        calls, folder = 0, tmp_path / f"killed-{dies_at}"
        try:
            export_run(tracks, RUN_ID, TensorBoard(folder), cache=None)
        except KeyboardInterrupt:
            killed += 1
            calls = 1000
            export_run(tracks, RUN_ID, TensorBoard(folder), cache=None)
        assert event_file(folder / RUN_ID).read_bytes() == expected
    assert killed > 5


def test_what_was_logged_is_in_tensorboards_file_once_wherever_an_export_was_killed(
    story: Story, tracks: Tracks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.whole()
    things = [(step, f"{n}/text", b"hello" * 50) for step in (0, 3, 10) for n in range(3)]
    log_things(tracks, things)
    monkeypatch.setattr(tensorboard, "BLOCK_BYTES", 400)
    fsync, left = tensorboard.os.fsync, itertools.count()

    def dies(descriptor: int) -> None:
        if not next(left):
            raise KeyboardInterrupt
        fsync(descriptor)

    monkeypatch.setattr(tensorboard.os, "fsync", dies)
    killed = 0
    for dies_at in range(1, 30, 2):
        left, folder = itertools.count(-dies_at), tmp_path / f"{dies_at}"
        with suppress(KeyboardInterrupt):
            export_run(tracks, RUN_ID, TensorBoard(folder), cache=None)
        killed += next(left) == 1
        export_run(tracks, RUN_ID, TensorBoard(folder), cache=None)
        found = tensorboard_logged(folder / RUN_ID)
        assert found == sorted((step, name) for step, name, _ in things)
        assert scalars(folder / RUN_ID, "loss") == losses(range(1, 41))
    assert killed > 5


def test_of_two_exports_into_one_folder_at_once_each_names_the_other(
    story: Story, tracks: Tracks, tmp_path: Path
) -> None:
    story.whole()
    tracker = TensorBoard(tmp_path)
    from tracks_dagster.wings.watch.exports import describe_run

    with (
        tracker.open(describe_run(tracks.run(RUN_ID))),
        pytest.raises(TrackerError, match="Another export writes to"),
    ):
        export_run(tracks, RUN_ID, tracker, cache=None)


def test_a_folder_without_its_events_is_filled_again_and_a_broken_cursor_is_refused(
    story: Story, tracks: Tracks, tmp_path: Path
) -> None:
    story.whole()
    folder = tmp_path / RUN_ID
    export_run(tracks, RUN_ID, TensorBoard(tmp_path), cache=None)
    event_file(folder).unlink()
    assert export_run(tracks, RUN_ID, TensorBoard(tmp_path), cache=None).steps == 40
    (folder / tensorboard.CURSOR_FILE).write_text("[]")
    with pytest.raises(TrackerError, match="Remove its folder to export the run again"):
        export_run(tracks, RUN_ID, TensorBoard(tmp_path), cache=None)


def test_a_run_of_the_same_name_of_another_home_is_not_mixed_with_this_one(
    story: Story, tracks: Tracks, tmp_path: Path
) -> None:
    story.whole()
    export_run(tracks, RUN_ID, TensorBoard(tmp_path), cache=None)
    before = event_file(tmp_path / RUN_ID).read_bytes()
    state = tracks.run(RUN_ID)
    other = replace(state, declared=replace(state.declared, owner="somebody else"))
    with pytest.raises(TrackerError, match=f"holds another run of the name {RUN_ID}"):
        export_run(tracks, other, TensorBoard(tmp_path), cache=None)
    assert event_file(tmp_path / RUN_ID).read_bytes() == before


def test_a_folder_that_cannot_be_written_is_reported_and_nothing_is_lost(
    story: Story, tracks: Tracks, tmp_path: Path
) -> None:
    story.whole()
    (tmp_path / "file").touch()
    with pytest.raises(TrackerError, match="cannot be exported to"):
        export_run(tracks, RUN_ID, TensorBoard(tmp_path / "file"), cache=None)


HOSTILE_ROWS = [[1, "a|b\n<script>alert(1)</script>"], [None, "**x** `y` [z](http://z) &amp;"]]


def log_one_of_each(tracks: Tracks) -> dict[str, bytes]:
    """Log things at steps 0, 10 and 22, which attempt 1 lost; return the bytes of each kind."""
    data = {
        "text": b"hello",
        "image": png(np.zeros((2, 3, 3), np.uint8)),
        "audio": Audio(np.zeros(8), rate=8000).taken(str)[1]().data,
        "histogram": b'{"counts":[1,3],"edges":[0,1,2]}',
        "table": json.dumps({"columns": ["a", "a"], "rows": HOSTILE_ROWS}).encode(),
        "confusion_matrix": b'{"labels":["cat","<b>"],"counts":[[2,0],[1,3]]}',
    }
    steps = (0, 10, 22)
    log_things(tracks, [(step, f"x/{kind}", each) for kind, each in data.items() for step in steps])
    return data


def test_what_was_logged_reaches_tensorboard_once_with_its_step(
    story: Story, tracks: Tracks, tmp_path: Path
) -> None:
    story.whole()
    data = log_one_of_each(tracks)
    for _ in range(2):
        export_run(tracks, RUN_ID, TensorBoard(tmp_path), cache=None)
    found = [
        (event.step, value.tag, value)
        for event in events(event_file(tmp_path / RUN_ID))
        for value in event.summary.value
        if "/" in value.tag
    ]
    assert sorted((step, tag) for step, tag, _ in found) == [
        (step, f"media/x/{kind}") for step in (0, 10) for kind in sorted(data)
    ]
    by_tag = {tag: value.SerializeToString() for _, tag, value in found}
    assert b"hello" in by_tag["media/x/text"]
    assert data["image"] in by_tag["media/x/image"]


def test_what_has_a_metrics_name_takes_nothing_from_that_metrics_chart(
    target: Target, story: Story, tracks: Tracks
) -> None:
    """TensorBoard shows a tag as the kind that it had first, and nothing of it as another."""
    story.whole()
    log_things(tracks, [(0, "loss", b'{"counts":[1,3],"edges":[0,1,2]}', "histogram")])
    assert export(tracks, target).left_out == ()
    assert target.logged() == [(0, "loss")]
    assert target.read("loss") == losses(range(1, 41))


@pytest.mark.filterwarnings("ignore:html5lib")
def test_tensorboards_own_reader_and_its_text_page_show_what_was_logged(
    story: Story, tracks: Tracks, tmp_path: Path
) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="TensorBoard is not installed: ./run test --full installs it",
    )
    from tensorboard import plugin_util

    story.whole()
    data = log_one_of_each(tracks)
    log_things(tracks, [(0, "loss", data["histogram"], "histogram")], attempt_id=2)
    export_run(tracks, RUN_ID, TensorBoard(tmp_path), cache=None)
    reader = accumulator.EventAccumulator(str(tmp_path / RUN_ID))
    reader.Reload()
    (image, _), (sound, _) = reader.Images("media/x/image"), reader.Audio("media/x/audio")
    assert (image.encoded_image_string, image.width) == (data["image"], 3)
    assert sound.encoded_audio_string == data["audio"]
    assert reader.Histograms("media/x/histogram")[0].histogram_value.num == 4
    assert len(reader.Scalars("loss")) == 40

    def page(name: str) -> str:
        found = reader.Tensors(f"media/x/{name}")[0].tensor_proto.string_val[0]
        return str(plugin_util.markdown_to_safe_html(found))

    table = page("table")
    assert table.count("<tr>") == 3
    assert [each for each in ("<script", "<strong", "<code", "<a ") if each in table] == []
    shown = html.unescape(table)
    assert "<td>a|b ⏎ <script>alert(1)</script></td>" in shown
    assert "<td>**x** `y` [z](http://z) &amp;</td>" in shown
    assert re.findall(r"<td>(\d)</td>", page("confusion_matrix")) == ["2", "0", "1", "3"]


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        ("table", b'{"columns":["a"],"rows":[[1,2]]}', "its bytes are not those of a table"),
        ("table", b"[", "its bytes are not those of a table"),
        ("confusion_matrix", b'{"labels":["a"],"counts":7}', "its bytes are not those of a table"),
        ("histogram", b'{"counts":[],"edges":[]}', "no number of it is finite"),
        (
            "histogram",
            b'{"counts":[1],"edges":[0,1%s]}' % (b"0" * 400),  # no float is so large
            "its bytes are not those of a histogram",
        ),
        ("histogram", b"7", "its bytes are not those of a histogram"),
        ("text", b"a" * (5 << 20), "at most 4194304 are sent"),
    ],
)
def test_what_tensorboard_cannot_have_is_named(
    kind: str, data: bytes, words: str, story: Story, tracks: Tracks, tmp_path: Path
) -> None:
    story.whole()
    log_things(tracks, [(3, f"x/{kind}", data), (4, "y/text", b"good")])
    exported = export_run(tracks, RUN_ID, TensorBoard(tmp_path), cache=None)
    (left_out,) = exported.left_out
    assert left_out.startswith(f"x/{kind} of step 3: ")
    assert words in left_out
    assert tensorboard_logged(tmp_path / RUN_ID) == [(4, "y/text")]


def test_numbers_that_are_not_valid_and_too_large_ones_reach_tensorboard_as_they_are_shown() -> (
    None
):
    values = {"nan": math.nan, "inf": math.inf, "large": 1e300, "small": -1e300, "ü/x y": 1.0}
    body = tensorboard._scalars(Row(step=300, attempt_id=1, at=2.5, values=values))
    event = event_class().FromString(body)
    found = {value.tag: value.simple_value for value in event.summary.value}
    assert (event.step, event.wall_time) == (300, 2.5)
    assert math.isnan(found.pop("nan"))
    assert found == {"inf": math.inf, "large": math.inf, "small": -math.inf, "ü/x y": 1.0}


def test_tensorboards_own_reader_finds_every_step_and_forgets_what_was_rolled_back(
    story: Story, tracks: Tracks, tmp_path: Path
) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="TensorBoard is not installed: ./run test --full installs it",
    )
    story.attempt("loss_divergence", last_step=23, commits=(10, 20))
    story.write_tracks()
    export_run(tracks, RUN_ID, TensorBoard(tmp_path), cache=None)
    reader = accumulator.EventAccumulator(
        str(tmp_path / RUN_ID), size_guidance={accumulator.SCALARS: 0}
    )
    reader.Reload()
    assert [each.step for each in reader.Scalars("loss")] == list(range(1, 21))
    first, second = (each.ref for each in story.history.state.checkpoints)
    story.history.decide_checkpoint(Kind.CHECKPOINT_QUARANTINED, second, is_passed_over=True)
    story.attempt("completed", last_step=120, commits=(120,), resume=first)
    story.write_tracks()
    export_run(tracks, RUN_ID, TensorBoard(tmp_path), cache=None)
    reader.Reload()
    shown = [(each.step, each.value) for each in reader.Scalars("loss")]
    assert shown == losses(range(1, 121))


# --- MLflow ---------------------------------------------------------------------------------------


def mlflow_points(uri: str, metric: str) -> Points:
    found = mlflow_run(uri)
    history = found.client.get_metric_history(found.run.info.run_id, metric)
    return [
        (each.step, each.value) for each in sorted(history, key=lambda m: (m.step, m.timestamp))
    ]


def mlflow_logged(uri: str) -> list[tuple[int, str, bytes]]:
    """Return the step, name and bytes of each file below media/, downloaded by MLflow's client."""
    found = mlflow_run(uri)
    run_id = found.run.info.run_id

    def files(folder: str) -> Iterator[str]:
        for each in found.client.list_artifacts(run_id, folder):
            yield from files(each.path) if each.is_dir else (each.path,)

    return [
        (
            int(Path(path).stem.removeprefix("step-")),
            str(Path(path).parent.relative_to("media")),
            Path(found.client.download_artifacts(run_id, path)).read_bytes(),
        )
        for path in files("media")
    ]


@dataclass(frozen=True)
class FoundRun:
    client: Any
    run: Any

    @property
    def tags(self) -> Mapping[str, str]:
        tags: Mapping[str, str] = self.run.data.tags
        return tags


def mlflow_run(uri: str) -> FoundRun:
    """Return the one run that MLflow has."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    return FoundRun(client, client.get_run(run.info.run_id))


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)  # where MLflow's store in SQLite leaves files
    pytest.importorskip("mlflow", reason="mlflow is not installed: ./run test --full installs it")
    return f"sqlite:///{tmp_path}/mlflow.db"


def test_mlflow_has_one_run_with_config_attempts_and_status(
    uri: str, story: Story, tracks: Tracks
) -> None:
    story.begin()
    story.ship(range(1, 24))
    story.commit(10)
    story.write_tracks()
    export_run(tracks, RUN_ID, Mlflow(uri), cache=None)
    assert mlflow_run(uri).run.info.status == "RUNNING"
    story.end("gpu_oom", last_step=23)
    story.attempt("completed", last_step=40, commits=(40,))
    story.history.finish()
    story.write_tracks()
    export_run(tracks, RUN_ID, Mlflow(uri), cache=None)
    found = mlflow_run(uri)
    assert found.run.info.status == "FINISHED"
    assert found.run.info.run_name == RUN_ID
    assert found.run.data.params["micro_batch"] == "4"
    assert found.tags["tracks.a01"] == "from step 0: gpu_oom"
    assert found.tags["tracks.state"] == "succeeded"
    assert "tracks.exporting" not in found.tags


def test_what_was_logged_is_downloaded_from_mlflow_as_it_was(
    uri: str, story: Story, tracks: Tracks
) -> None:
    story.whole()
    data = log_one_of_each(tracks)
    hostile = (10, "../../a b/ü/text", b"<script>")
    log_things(tracks, [hostile], attempt_id=2)
    for _ in range(2):
        export_run(tracks, RUN_ID, Mlflow(uri), cache=None)
    found = mlflow_logged(uri)
    named = [each for each in found if each[1].startswith("x/")]
    assert sorted(named) == sorted(
        (step, f"x/{kind}", each) for kind, each in data.items() for step in (0, 10)
    )
    (other,) = (each for each in found if each not in named)
    assert (other[0], other[2]) == (hostile[0], hostile[2])


def test_a_file_that_mlflow_refuses_as_too_large_is_named_and_one_that_it_cannot_take_now_waits(
    uri: str, story: Story, tracks: Tracks, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient
    from requests import HTTPError, Response

    story.whole()
    log_things(tracks, [(3, "large/text", b"large"), (4, "x/text", b"good")])
    log_artifact, answer = MlflowClient.log_artifact, Response()

    def refuses(self: MlflowClient, run_id: str, path: str, folder: str) -> None:
        if "large" in folder:
            raise HTTPError(response=answer)
        log_artifact(self, run_id, path, folder)

    monkeypatch.setattr(MlflowClient, "log_artifact", refuses)
    answer.status_code = 503
    with pytest.raises(TrackerError, match="The next export goes on"):
        export_run(tracks, RUN_ID, Mlflow(uri), cache=None)
    answer.status_code = 413
    exported = export_run(tracks, RUN_ID, Mlflow(uri), cache=None)
    assert exported.left_out == ("large/text of step 3: MLflow refuses its 5 bytes as too large",)
    assert [name for _, name, _ in mlflow_logged(uri)] == ["x/text"]
    assert mlflow_points(uri, "loss") == losses(range(1, 41))


def test_a_server_that_goes_away_after_some_files_gets_those_behind_its_tag(
    uri: str, story: Story, tracks: Tracks, monkeypatch: pytest.MonkeyPatch
) -> None:
    import requests
    from mlflow import MlflowClient

    story.whole()
    things = [(step, f"{step}/text", b"hello") for step in range(18)]
    log_things(tracks, things)  # attempt 1 has those up to step 20
    log_artifact, calls = MlflowClient.log_artifact, itertools.count(1)

    def fails(*given: Any) -> None:
        if next(calls) == 15:
            raise requests.ConnectionError
        log_artifact(*given)

    monkeypatch.setattr(MlflowClient, "log_artifact", fails)
    with pytest.raises(TrackerError, match="The next export goes on"):
        export_run(tracks, RUN_ID, Mlflow(uri), cache=None)
    exported = export_run(tracks, RUN_ID, Mlflow(uri), cache=None)
    assert (exported.logged, next(calls)) == (8, 15 + 8 + 1)
    assert sorted(step for step, *_ in mlflow_logged(uri)) == list(range(18))
    assert mlflow_points(uri, "loss") == losses(range(1, 41))


@pytest.mark.parametrize("dies_at", [1, 2, 3, 4, 5])
def test_an_export_killed_before_or_after_any_request_leaves_no_row_twice_in_mlflow(
    uri: str,
    story: Story,
    tracks: Tracks,
    monkeypatch: pytest.MonkeyPatch,
    dies_at: int,
) -> None:
    from mlflow import MlflowClient

    story.whole()
    monkeypatch.setattr("tracks_dagster.wings.watch.effects.trackers.mlflow.METRICS_A_CALL", 20)
    log_batch, calls = MlflowClient.log_batch, 0

    def dies(*args: Any, **named: Any) -> None:
        nonlocal calls
        log_batch(*args, **named)
        calls += 1
        if calls == dies_at:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_batch", dies)
        with pytest.raises(KeyboardInterrupt):
            export_run(tracks, RUN_ID, Mlflow(uri), cache=None)
    export_run(tracks, RUN_ID, Mlflow(uri), cache=None)
    assert mlflow_points(uri, "loss") == losses(range(1, 41))
    assert "tracks.exporting" not in mlflow_run(uri).tags


def test_a_server_that_is_away_is_reported_without_its_password(
    story: Story, tracks: Tracks, unused_tcp: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed: ./run test --full installs it")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    story.whole()
    tracker = Mlflow(f"http://ann:Very5ecretWord@127.0.0.1:{unused_tcp}")
    with pytest.raises(TrackerError, match="cannot be exported to MLflow at") as caught:
        export_run(tracks, RUN_ID, tracker, cache=None)
    assert "Very5ecretWord" not in str(caught.value)
    assert "Very5ecretWord" not in repr(tracker)


@pytest.fixture
def unused_tcp() -> int:
    from tests.ports import free_port

    return free_port()


@pytest.mark.parametrize("name", ["loss", "device/power_w", "a b-c.d:e"])
def test_a_name_that_mlflow_takes_stays(name: str) -> None:
    assert safe_key(name) == name


@pytest.mark.parametrize("name", ["f1@10", "/loss", "a/../b", "ü" * 400, "a//b", "loss."])
def test_a_name_that_mlflow_refuses_becomes_one_that_it_takes_and_no_two_the_same(
    name: str,
) -> None:
    assert safe_key(name) != safe_key(name + "!") != name
    if importlib.util.find_spec("mlflow") is None:
        pytest.skip("mlflow is not installed: ./run test --full installs it")
    from mlflow.utils.validation import _validate_metric_name

    _validate_metric_name(safe_key(name))


# --- W&B ---------------------------------------------------------------------------------------


def leveldb_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log in LevelDB's format: blocks of 32 KiB, a record in pieces of at most
    one; after a head of 7 bytes that is W&B's own."""
    head, block, place = 7, 32 * 1024, 7
    whole = b""
    while place + head <= len(data):
        if block - place % block < head:
            place += block - place % block
        length, kind = struct.unpack("<HB", data[place + 4 : place + head])
        whole += data[place + head : place + head + length]
        place += head + length
        if kind in (1, 4):  # full, or the last piece
            yield whole
            whole = b""


def wandb_rows(folder: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield step and values of the one offline run, as W&B's own reader has them."""
    from wandb.proto import wandb_internal_pb2

    paths = list(folder.glob("offline-run-*/run-*.wandb"))
    for data in leveldb_records(paths[0].read_bytes()) if paths else ():
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        row: dict[str, Any] = {}
        for item in record.history.item:
            name, *inner = item.nested_key or [item.key]
            value = json.loads(item.value_json)
            if inner:  # of a thing: path, size and so on
                row.setdefault(name, {})[inner[0]] = value
            else:
                row[name] = value
        yield record.history.step.num, row


def wandb_points(folder: Path, metric: str) -> Points:
    return [(step, row[metric]) for step, row in wandb_rows(folder) if metric in row]


def wandb_logged(folder: Path) -> list[tuple[int, str, Any]]:
    """Return the step, name and value of each thing; of one with a file its bytes."""
    (files,) = folder.glob("offline-run-*/files") if folder.exists() else [folder]
    return [
        (
            step,
            name.removeprefix("media/"),
            (files / value["path"]).read_bytes() if "path" in value else value,
        )
        for step, row in wandb_rows(folder)
        for name, value in row.items()
        if name.startswith("media/")
    ]


def test_what_was_logged_is_in_wandbs_folder_as_its_client_reads_it(
    story: Story, tracks: Tracks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed: ./run test --full installs it")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "elsewhere"))
    story.whole()
    data = log_one_of_each(tracks)
    hostile = [
        (10, "../../../a b/ü/text", b"<script>alert(1)</script>"),
        (11, "x" * 200 + "/text", b"long"),
        (12, "loss/image", b"\x89PNG\r\n\x1a\n, but no picture"),
    ]
    log_things(tracks, hostile, attempt_id=2)
    folder = tmp_path / "w"
    exported = export_run(tracks, RUN_ID, WandbFolder(folder), cache=None)
    (words,) = exported.left_out
    assert words.startswith("loss/image of step 12: cannot identify image file")
    assert str(tmp_path) not in words
    found = {(step, name): value for step, name, value in wandb_logged(folder)}
    assert found[0, "x/image"] == data["image"]
    assert found[10, "x/audio"] == data["audio"]
    assert found[0, "x/histogram"]["values"] == [1, 3]
    tables = {
        name: (table["columns"], table["data"])
        for (_, name), value in found.items()
        if isinstance(value, bytes) and value.startswith(b"{")
        for table in [json.loads(value)]
    }
    assert tables.pop("x/table") == (["a", "a"], HOSTILE_ROWS)
    assert tables.pop("x/confusion_matrix") == (
        ["is ↓ taken for →", "cat", "<b>"],
        [["cat", 2, 0], ["<b>", 1, 3]],
    )
    assert tables.pop("x/text") == (["text"], [["hello"]])
    assert sorted(rows[0][0] for _, rows in tables.values()) == [
        "<script>alert(1)</script>",
        "long",
    ]
    assert wandb_points(folder, "loss") == losses(range(1, 41))
    assert not (tmp_path / "elsewhere").exists()  # a table as an artifact would be there
    assert [each.name for each in folder.iterdir()] == [f"offline-run-{RUN_ID}"]


@pytest.mark.parametrize(
    "tracker", [Mlflow("http://localhost:5000"), WandbFolder(Path("/nowhere"))]
)
def test_a_client_that_is_not_installed_is_named_with_what_installs_it(
    tracker: Tracker, story: Story, tracks: Tracks, monkeypatch: pytest.MonkeyPatch
) -> None:
    story.whole()
    for name in ("mlflow", "wandb"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(InvalidInput, match=r"pip install 'tracks-dagster\[(mlflow|wandb)\]'"):
        export_run(tracks, RUN_ID, tracker, cache=None)
