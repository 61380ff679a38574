"""The code location of this repository, composed of its three folders: workspace.yaml loads it."""

from assets import EXAMPLES, PROJECTS
from resources import PREFIX
from sensors import EXPORTS_CURVES, RUN
from tracks_dagster.factory import build_defs

defs = build_defs(
    PROJECTS,
    prefix=PREFIX,
    examples=EXAMPLES,
    sensors_run=RUN,
    exports_curves=EXPORTS_CURVES,
)
