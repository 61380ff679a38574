"""What this repository's deployment trains: the examples, and the projects of its home.

How each asset is made is written once for every deployment, in `tracks_dagster/defs/assets/`.
"""

from tracks_dagster.settings import usable_projects

EXAMPLES = True
PROJECTS = usable_projects()
