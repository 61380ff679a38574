"""Shows runs that train, and tells of them: the board, alerts and who is sent them, trackers."""

from tracks_dagster.wing import Command, Wing

_GROUP = "While it trains"

WING = Wing(
    commands={
        "board": Command(
            module="edge.board",
            summary="Runs in a browser, live: curves, lights, ranks, alerts.",
            group=_GROUP,
        ),
        "health": Command(
            module="edge.health",
            summary="Healthy? Improving? Resources well used? Of runs that train.",
            group=_GROUP,
            after="board",
        ),
        "alerts": Command(
            module="edge.alerts",
            summary="Open alerts and what to do; past ones; mute a rule.",
            group=_GROUP,
            after="health",
        ),
        "curves": Command(
            module="edge.curves",
            summary="Its metrics, over all attempts: a table, points or CSV.",
            group=_GROUP,
            after="alerts",
        ),
    },
    definitions=("edge.watch_health", "edge.notifications", "edge.export_curves"),
    watching="edge.watching",
    settings={"TRACKS_NOTIFY": "notify.yaml", "TRACKS_TRACKERS": "trackers.yaml"},
)
