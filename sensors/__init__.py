"""Which sensors this repository's deployment has: all, and one more where its home has trackers.

How each sensor is made is written once for every deployment, in `tracks_dagster/defs/sensors/`.
"""

EXPORTS_CURVES = None  # where its home has a file of trackers
RUN = True  # until somebody switches one off
