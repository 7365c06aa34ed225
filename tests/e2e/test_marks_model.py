"""Random work on the memory, compared step by step with a model of the marks that is a few dictionaries."""

from __future__ import annotations

import random

import pytest
from support.engine import Context, Maps, Model
from support.options import ContextOptions
from support.tokens import tokens

N_SEQ, N_MAX = 3, 200

Ranges = tuple[tuple[int, int], ...]


class Mirror:
    """Per sequence: whether the cell of each position was filled, and which rows are filled from now on."""

    def __init__(self) -> None:
        self.cells: list[list[bool]] = [[] for _ in range(N_SEQ)]
        self.marks: list[Ranges] = [() for _ in range(N_SEQ)]

    def will_fill(self, seq: int, pos: int) -> bool:
        return any(p0 <= pos < p1 for p0, p1 in self.marks[seq])

    def n_filled(self, seq: int, p0: int, p1: int) -> int:
        return sum(self.cells[seq][p0 : p1 if p1 >= 0 else None])

    def reusable(self, seq: int, ranges: Ranges, n_past: int) -> int:
        for pos, filled in enumerate(self.cells[seq][:n_past]):
            if filled and not any(p0 <= pos < p1 for p0, p1 in ranges):
                return pos
        return min(n_past, len(self.cells[seq]))


def random_ranges(rng: random.Random) -> Ranges:
    borders = sorted(rng.sample(range(N_MAX + 20), 2 * rng.randint(0, 3)))
    return tuple(zip(borders[::2], borders[1::2], strict=True))


def step(rng: random.Random, context: Context, mirror: Mirror) -> None:
    seq = rng.randrange(N_SEQ)
    match rng.choice(["mark", "decode", "decode", "decode together", "rm", "cp", "state", "clear"]):
        case "mark":
            mirror.marks[seq] = random_ranges(rng)
            context.mark(seq, *mirror.marks[seq])
        case "decode":
            decode(rng, context, mirror, [seq])
        case "decode together":
            decode(rng, context, mirror, list(range(N_SEQ)))
        case "rm":
            keep = rng.randint(0, len(mirror.cells[seq]))
            assert context.seq_rm(seq, keep, -1)
            del mirror.cells[seq][keep:]
        case "cp":
            other = (seq + 1) % N_SEQ
            assert context.seq_rm(other, -1, -1)
            context.seq_cp(seq, other)
            mirror.cells[other] = list(mirror.cells[seq])
        case "state":
            if mirror.cells[seq]:
                other = (seq + 1) % N_SEQ
                context.set_state(other, context.state(seq))
                mirror.cells[other] = list(mirror.cells[seq])
        case "clear":
            if rng.random() < 0.2:
                context.clear()
                mirror.cells = [[] for _ in range(N_SEQ)]


def decode(rng: random.Random, context: Context, mirror: Mirror, sequences: list[int]) -> None:
    prompts, start = {}, {}
    for seq in sequences:
        start[seq] = len(mirror.cells[seq])
        n = min(rng.choice([1, 5, 31, 32, 33, 70]), N_MAX - start[seq])
        if n > 0:
            prompts[seq] = tokens(n, seed=rng.randrange(1000))
    if prompts:
        context.decode(prompts, 0, start)
    for seq, prompt in prompts.items():
        mirror.cells[seq] += [mirror.will_fill(seq, start[seq] + i) for i in range(len(prompt))]


@pytest.mark.parametrize("unified", [False, True], ids=["split", "unified"])
@pytest.mark.parametrize("seed", range(10))
def test_marks_follow_random_operations(workshop, seed, unified):
    rng, mirror = random.Random(seed), Mirror()
    options = ContextOptions(n_ctx=1024, n_seq_max=N_SEQ, kv_unified=unified)
    with (
        Model(workshop.model("llama")) as model,
        Maps(model, workshop.maps("llama", "identity")) as loaded,
        Context(model, options) as context,
    ):
        context.set_maps(loaded)
        for _ in range(40):
            step(rng, context, mirror)
            for seq in range(N_SEQ):
                n = len(mirror.cells[seq])
                assert context.seq_pos_max(seq) == n - 1
                p0 = rng.randint(0, N_MAX)
                p1 = rng.choice([-1, rng.randint(p0, N_MAX)])
                assert context.n_filled(seq, p0, p1) == mirror.n_filled(seq, p0, p1)
                ranges, n_past = random_ranges(rng), rng.randint(0, n)
                assert context.reusable(seq, n_past, *ranges) == mirror.reusable(seq, ranges, n_past)
