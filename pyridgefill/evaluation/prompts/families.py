"""The table of RULER's task families: a new one is a function and a row here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from pyridgefill.evaluation.prompts.layout import Shape
from pyridgefill.evaluation.prompts.prompt import Prompt
from pyridgefill.evaluation.prompts.ruler import retrieval, variable_tracking
from pyridgefill.evaluation.prompts.ruler_words import common_words, frequent_words

# makes so many prompts; the same arguments give the same prompts
Family = Callable[[Shape, int], Iterator[Prompt]]

# those that need no data of the user
FAMILIES: dict[str, Family] = {
    "single-noise": partial(retrieval, hay="noise"),
    "single-prose": partial(retrieval, hay="prose"),
    "single-words": partial(retrieval, kind="words"),
    "single-uuids": partial(retrieval, kind="uuids"),
    "multi-key": partial(retrieval, keys=4),
    "multi-key-needles": partial(retrieval, hay="needles"),
    "multi-value": partial(retrieval, values=4),
    "multi-query": partial(retrieval, keys=4, asked=4),
    "variable-tracking": variable_tracking,
    "common-words": common_words,
    "frequent-words": frequent_words,
}
