"""What needles say: kinds of values, and the sentences around them in three languages."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_WORDS = _list(
    "amber basket copper dragon ember falcon garnet harbor island jasmine kettle lantern meadow nickel orchid "
    "pebble quartz ribbon saddle timber umbrella velvet walnut yellow zephyr"
)


@dataclass(frozen=True)
class Wording:
    """The sentences of a language; `{key}` is what a value belongs to, `{noun}` what the value is called.

    Attributes
    ----------
    keys
        Names, one for each value of a text.
    request, question
        Before and after the text.
    lead, gap, stop
        A needle is lead, gap, value, stop.
    answer
        How the answer starts.
    label
        Stands before the answer in a prompt without chat template.
    """

    keys: tuple[str, ...]
    request: str
    lead: str
    gap: str
    stop: str
    question: str
    answer: str
    label: str


ENGLISH = Wording(
    keys=_list(
        "Amsterdam Bergen Cairo Dublin Florence Geneva Istanbul Kyoto Lisbon Nairobi Oslo Prague Quito Rome Seoul "
        "Toronto Utrecht Vienna Warsaw Zagreb Athens Boston Chicago Denver"
    ),
    request="Read the text and remember each special magic {noun} in it.",
    lead="The special magic {noun} for {key} is:",
    gap=" ",
    stop=".",
    question="What is the special magic {noun} for {key} that the text above mentions?",
    answer="The special magic {noun} for {key} is:",
    label="Answer: ",
)

GERMAN = Wording(
    keys=_list(
        "Augsburg Bremen Celle Dresden Erfurt Flensburg Göttingen Hannover Ilmenau Jena Köln Lübeck München Nürnberg "
        "Oldenburg Passau Quedlinburg Rostock Stuttgart Trier Ulm Vechta Würzburg Zwickau"
    ),
    request="Lies den Text und merke dir jede besondere magische {noun}, die darin steht.",
    lead="Die besondere magische {noun} für {key} lautet:",
    gap=" ",
    stop=".",
    question="Wie lautet die besondere magische {noun} für {key}, die im Text oben steht?",
    answer="Die besondere magische {noun} für {key} lautet:",
    label="Antwort: ",
)

CHINESE = Wording(
    keys=_list(
        "北京 上海 广州 深圳 成都 重庆 天津 武汉 西安 南京 杭州 苏州 青岛 大连 厦门 长沙 昆明 福州 济南 郑州 "
        "合肥 太原 兰州 贵阳"
    ),
    request="请阅读下文，并记住其中的每个特殊魔法{noun}。",
    lead="{key}的特殊魔法{noun}是：",
    gap="",
    stop="。",
    question="上文提到的{key}的特殊魔法{noun}是多少？",
    answer="{key}的特殊魔法{noun}是：",
    label="答案：",
)


@dataclass(frozen=True)
class Kind:
    """Values of one kind, the word for them, the form that all have, and the language of the sentences around them.

    `form` is a regular expression in lower case, see `pyridgefill.evaluation.prompts.score.gives_value`.
    """

    draw: Callable[[random.Random], str]
    noun: str
    form: str
    wording: Wording = ENGLISH


def _digits(draw: random.Random) -> str:
    return str(draw.randrange(10**6, 10**7))


_SEVEN_DIGITS = r"\d{7}"

# the last one is for checks: `pyridgefill heads` ranks on the others
KINDS: dict[str, Kind] = {
    "digits": Kind(_digits, "number", _SEVEN_DIGITS),
    "words": Kind(lambda draw: "-".join(draw.sample(_WORDS, 3)), "word", r"[a-z]+-[a-z]+-[a-z]+"),
    "identifiers": Kind(
        lambda draw: "_".join([*draw.sample(_WORDS, 2), str(draw.randrange(10, 100))]),
        "variable name",
        r"[a-z]+_[a-z]+_\d+",
    ),
    "german": Kind(_digits, "Zahl", _SEVEN_DIGITS, GERMAN),
    "chinese": Kind(_digits, "数字", _SEVEN_DIGITS, CHINESE),
    "uuids": Kind(
        lambda draw: str(uuid.UUID(int=draw.getrandbits(128), version=4)),
        "UUID",
        r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    ),
}
