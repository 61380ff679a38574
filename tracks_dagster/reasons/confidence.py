"""How sure a verdict is: a short scale, so that 0.85 means the same wherever it is written.

A confidence is the share of such verdicts that we expect the diagnosis to bear out. It is a property of
the kind of signal and never of one message. People read it as: from LIKELY on act on it; LEANING
names the best single guess, and somebody should look; below that the reason is `unknown`, and the
number says only how much was seen at all. No budget depends on it.
"""

from __future__ import annotations

CERTAIN = 1.0  # recorded intent, or every rank says that it has all its steps
STATED = 0.95  # a control plane states it about this very attempt
MEASURED = 0.9  # a counter of the kernel or the device, or the trainer's typed last word
NAMED = 0.85  # words that name the cause itself
LIKELY = 0.7  # words that are mostly heard for that cause, now and then for another
LEANING = 0.5  # heard for several causes; this one most often
SEEN = 0.3  # `unknown`, with an exit code or signal
SILENT = 0.2  # `unknown`, and hardly anything was left
NOTHING = 0.0  # `unknown`, and no evidence at all
