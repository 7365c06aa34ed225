"""Retrieval and variable tracking, after the RULER benchmark (Hsieh et al. 2024), written anew for filled prompts.

Whatever an answer needs lies in the rows between sink and tail, the question in the tail, lengths are exact numbers of
tokens, and answers are scored by the values in them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from pyridgefill.evaluation.prompts.haystacks import haystacks, numbered_key
from pyridgefill.evaluation.prompts.kinds import KINDS
from pyridgefill.evaluation.prompts.layout import Shape, even_depths, lay_out
from pyridgefill.evaluation.prompts.prompt import Prompt


def retrieval(
    shape: Shape,
    count: int,
    *,
    kind: str = "digits",
    hay: str = "prose",
    keys: int = 1,
    values: int = 1,
    asked: int = 1,
) -> Iterator[Prompt]:
    """Needles: `keys` keys with `values` values each, `asked` of the keys are asked for."""
    made = KINDS[kind]
    draw = random.Random(f"{shape.seed} {kind} {hay} {keys} {values} {asked}")
    streams = haystacks(shape.tokenizer, hay, shape.n_prompt, made, seed=shape.seed, corpus=shape.corpus)
    plural = "s" if values > 1 or asked > 1 else ""
    for index in range(count):
        names: dict[str, None] = {}
        while len(names) < keys:
            name = numbered_key(draw, made, asked=True) if hay == "needles" else draw.choice(made.wording.keys)
            names[name] = None
        drawn: dict[str, str] = {}
        for name in names:
            for _ in range(values):
                while (value := made.draw(draw)) in drawn:
                    pass
                drawn[value] = name
        order = draw.sample(list(drawn), len(drawn))
        wanted = draw.sample(list(names), asked)
        lead, stop = made.wording.lead, made.wording.stop
        pieces = [
            shape.tokens(f"\n\n{lead.format(key=drawn[value], noun=made.noun)} {value}{stop}\n\n") for value in order
        ]
        needed = [i for i, value in enumerate(order) if drawn[value] in wanted]
        listed = " and ".join([", ".join(wanted[:-1]), wanted[-1]] if asked > 1 else wanted)
        what = f"the special magic {made.noun}{plural} for {listed}"
        yield lay_out(
            shape,
            request=f"Read the text and remember each special magic {made.noun} in it.",
            question=f"What {'are all' if plural else 'is'} {what} that the text above mentions?",
            answer=f"{what[0].upper()}{what[1:]} {'are' if plural else 'is'}:",
            pieces=pieces,
            depths=even_depths(len(pieces), (index + 0.5) / count),
            needed=needed,
            hay=next(streams),
            values=[order[i] for i in needed],
        )


def variable_tracking(shape: Shape, count: int, *, hops: int = 4) -> Iterator[Prompt]:
    """A value goes from variable to variable; all variables that hold it are asked for."""
    draw = random.Random(f"{shape.seed} variables")
    streams = haystacks(shape.tokenizer, "noise", shape.n_prompt, KINDS["digits"], seed=shape.seed)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    for index in range(count):
        names: dict[str, None] = {}
        while len(names) <= hops:
            names["".join(draw.choices(letters, k=5))] = None
        chain, value = list(names), str(draw.randrange(10**4, 10**5))
        sources = [value, *(f"the value of {name}" for name in chain[:-1])]
        pieces = [
            shape.tokens(f"\n\n{name} is set to {source}.\n\n") for name, source in zip(chain, sources, strict=True)
        ]
        yield lay_out(
            shape,
            request="Read the text and keep track of the variables that are set in it.",
            question=f"Name all {len(chain)} variables that hold the value {value}, directly or through others.",
            answer=f"The variables that hold the value {value} are:",
            pieces=pieces,
            depths=even_depths(len(pieces), (index + 0.5) / count),
            needed=range(len(pieces)),
            hay=next(streams),
            values=chain,
        )
