"""Question answering over data in the format of SQuAD: the paragraph with the answer among others."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyridgefill.errors import CorpusError
from pyridgefill.evaluation.prompts.layout import Shape, even_depths, lay_out
from pyridgefill.evaluation.prompts.prompt import Prompt

_HINT = (
    'expected {"data": [{"paragraphs": [{"context": ..., "qas": [{"question": ..., "answers": [{"text": ...}]}]}]}]}'
)


@dataclass(frozen=True)
class Question:
    """A question, the paragraph that answers it, and the answers that count."""

    paragraph: str
    question: str
    answers: tuple[str, ...]


def read_squad(path: Path) -> list[Question]:
    """All questions that have an answer.

    Raises
    ------
    CorpusError
        If the file cannot be read, has another format, or no question with an answer.
    """
    questions = []
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        for article in data["data"]:
            for paragraph in article["paragraphs"]:
                for item in paragraph["qas"]:
                    answers = tuple(dict.fromkeys(str(answer["text"]) for answer in item["answers"]))
                    if answers and not item.get("is_impossible"):
                        questions.append(Question(str(paragraph["context"]), str(item["question"]), answers))
    except OSError as error:
        raise CorpusError(f"{path}: cannot read: {error.strerror or error}", "give a file in SQuAD's format") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorpusError(f"{path}: not in SQuAD's format: {type(error).__name__}: {error}", _HINT) from error
    if not questions:
        raise CorpusError(f"{path}: no question has an answer", _HINT)
    return questions


class SquadTask:
    """Prompts whose text is made of the file's paragraphs, the one that answers at a depth of its own.

    Parameters
    ----------
    path
        A file in SQuAD's format (1.1 or 2.0).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._questions = read_squad(path)

    def __call__(self, shape: Shape, count: int) -> Iterator[Prompt]:
        """Draw questions; the text repeats paragraphs if the file has too few."""
        if count > len(self._questions):
            raise CorpusError(
                f"{self._path}: {len(self._questions)} questions, {count} wanted", "ask for fewer prompts"
            )
        draw = random.Random(f"{shape.seed} squad")
        paragraphs = list(dict.fromkeys(item.paragraph for item in self._questions))
        for index, item in enumerate(draw.sample(self._questions, count)):
            others = [text for text in paragraphs if text != item.paragraph]
            if not others:
                raise CorpusError(f"{self._path}: only one paragraph", "give a file with several")
            hay: list[int] = []
            while len(hay) < shape.n_prompt:
                for text in draw.sample(others, len(others)):
                    hay += shape.tokens(f"{text}\n\n")
            yield lay_out(
                shape,
                request="Answer the question at the end from the documents that follow, in as few words as possible.",
                question=f"Question: {item.question}",
                answer="The answer is:",
                pieces=[shape.tokens(f"\n\n{item.paragraph}\n\n")],
                depths=even_depths(1, (index + 0.5) / count),
                needed=[0],
                hay=hay,
                values=item.answers,
                any_of=True,
            )
