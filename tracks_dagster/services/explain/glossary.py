"""The words of explanations, a sentence each: nobody needs to know the project to read one.

Design section 3 says which words are used. A word is told where the text uses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tracks_dagster.services.explain.bucket_words import BUCKET_WORDS, bucket_label

GLOSSARY: dict[str, str] = {
    "training run": "one intent (a config, a snapshot, a number of steps), however often it starts",
    "attempt": "one launch of a training run, a01 the first; it ends once, for one reason",
    "record": "one entry of the run's track, which is only ever appended to; numbered from 0",
    "launch": "the processes of one attempt that were started together",
    "rank": "one of these processes, with one device; rank 0 speaks for all",
    "evidence": "all that was seen of the attempt's end, stored before anybody judged it",
    "rule": "which of the classifier's rules read the reason from the evidence",
    "confidence": "how much the kind of evidence that the rule found is worth, not a probability",
    "against it": "what the same evidence says for another reason, by a weaker kind of signal",
    "fingerprint": "a hash of reason, root message, config, snapshot and nodes: the same failure",
    "device-hours": "devices times hours, of all attempts; the run may take so many in all",
    "budget": "how often a failure for one reason is retried without a person; `tracks policy`",
    "counted record": "an earlier record that the decision weighed against the budget",
    "snapshot": "one frozen state of a dataset, named by the sha256 of its manifest",
    "samples": "places in the order of samples: all before the first were consumed earlier",
    "skip window": "steps whose samples are passed over, because the numbers went wrong there",
    "checkpoint": "the whole state of training at a step; it exists once its commit is recorded",
    "manifest": "the list of everything in a checkpoint; its sha256 names the checkpoint",
    "committed": "whole, and one that a run may go on from",
    "superseded": "still whole, but newer ones took its place; its bytes may be removed later",
    "quarantined": "nobody may start from it any more; a record says why",
    "interval": "saved because so many steps had passed; time: so many seconds; final: the last",
    "continuity": "steps run again after a resume have to give the very same losses as before",
    "kept": "steps that the run still rests on; lost: those that a later attempt ran again",
    "device seconds": "devices times seconds, whether they did useful work or not",
    **{bucket_label(bucket): words for bucket, words in BUCKET_WORDS.items()},
    "eval": "a measurement of a checkpoint on data apart; it fails without harm to the training",
    "stage": "how serious the run is: smoke, canary or full",
    "detached HEAD": "the code stood at a commit and on no branch",
    "first": "how an attempt came about: first; retry (a sensor's); manual_retry (a person's)",
    "Dagster run": "the supervisor of an attempt in Dagster, which shows it and can be replaced",
    "retry_preempted": "a sensor: a part of the daemon that decides what follows on its reasons",
}

_NEEDS = {  # what shows that a word is used, where it is not the word itself
    **{bucket_label(bucket): rf"{bucket_label(bucket)} [0-9]" for bucket in BUCKET_WORDS},
    "training run": r"[Tt]raining run|\brun\b",
    "interval": r"\((interval|time|final|sigterm|demand)\)",
    "first": r"\((first|retry|manual_retry)\)",
    "kept": r"steps kept",
    "retry_preempted": r"\b(retry_\w+|watch_attempts|launch_attempts|run_evals)\b",
    "eval": r"\bevals?\b",
    "confidence": r"confidence \d",
    "rule": r"rule \w",
    "samples": r"samples? \d",
    "committed": r": committed",
    "superseded": r": superseded",
    "stage": r"stage \w",
}
_FOUND = {word: re.compile(_NEEDS.get(word, rf"\b{re.escape(word)}s?\b")) for word in GLOSSARY}


def used_words(text: str) -> Iterator[tuple[str, str]]:
    """Yield (word, meaning) of the words of the glossary that `text` uses."""
    for word, meaning in GLOSSARY.items():
        if _FOUND[word].search(text):
            yield word, meaning
