"""How frameworks that run their own loop join an attempt: one module for each, imported by the script.

Each has `follow`, over `a.folder`, `a.ends`, `a.report` and `a.commit_folder`. None of the frameworks
is a dependency: a script that names one has it.
"""

SUMS_DIFFER = (
    "On three or more ranks DDP sums gradients in another order in the first step after a resume: the "
    "last bits differ."
)
