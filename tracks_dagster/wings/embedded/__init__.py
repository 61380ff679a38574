"""Makes Dagster cheap on one machine: forked run workers, one code server, ticks when there is news.

`TRACKS_DAGSTER=stock` leaves it out: everything is the same, later and for more processor time.
"""

from tracks_dagster.wing import Wing

WING = Wing(home="edge.programs")
