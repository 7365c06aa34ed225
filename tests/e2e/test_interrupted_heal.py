"""Healing that other work interrupts at random points: whatever comes later is right."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from support.engine import Context, Maps, Model
from support.families import FAMILIES
from support.options import ContextOptions
from support.tokens import tokens

N_SEQ, N_MAX, N_STEPS = 3, 260, 30
LIVE = FAMILIES["llama"].n_layer - 1
TOLERANCE = 2e-3


class Slots:
    """Sequences of a context as a server uses them, with the tokens that each one holds."""

    def __init__(self, ctx: Context, reference: Context, rng: random.Random, poison: bool) -> None:
        self.ctx, self.reference, self.rng, self.poison = ctx, reference, rng, poison
        self.held: list[list[int]] = [[] for _ in range(N_SEQ)]

    def step(self) -> None:
        seq = self.rng.randrange(N_SEQ)
        actions = [self.heal, self.heal, self.heal, self.ask, self.replace, self.cut, self.select, self.copy, self.save]
        self.rng.choice(actions)(seq)

    def heal(self, seq: int) -> None:
        self.ctx.heal(self.rng.choice([seq, seq, -1]), self.rng.choice([1, 7, 32, 50]))

    def replace(self, seq: int) -> None:
        """Another prompt in the slot, of which a part is filled."""
        prompt = tokens(self.rng.randint(40, N_MAX - 30), self.rng.randrange(1000))
        keep = self.rng.choice([0, 0, self.ctx.reusable(seq, len(self.held[seq]), (0, N_MAX))])
        assert self.ctx.seq_rm(seq, keep, -1)
        prompt = self.held[seq][:keep] + prompt[: N_MAX - 30 - keep]
        borders = sorted(self.rng.sample(range(len(prompt)), 2))
        self.ctx.mark(seq, (borders[0], borders[1]))
        self.ctx.decode({seq: prompt[keep:]}, 0, {seq: keep})
        self.ctx.mark(seq)
        self.held[seq] = prompt

    def select(self, seq: int) -> None:
        """A prompt with selected rows."""
        n = self.rng.randint(80, N_MAX - 30)
        prompt = tokens(n, self.rng.randrange(1000))
        assert self.ctx.seq_rm(seq, -1, -1)
        self.ctx.mark(seq, (4, n - 40))
        self.ctx.select(seq, "stride", n, 40, self.rng.choice([0, 10, n]), pool=(2, 2))
        self.ctx.decode({seq: prompt}, 0)
        self.ctx.mark(seq)
        self.held[seq] = prompt

    def cut(self, seq: int) -> None:
        keep = self.rng.randint(0, len(self.held[seq]))
        assert self.ctx.seq_rm(seq, keep, -1)
        del self.held[seq][keep:]

    def copy(self, seq: int) -> None:
        other = (seq + 1) % N_SEQ
        assert self.ctx.seq_rm(other, -1, -1)
        self.ctx.seq_cp(seq, other)
        self.held[other] = list(self.held[seq])

    def save(self, seq: int) -> None:
        other = (seq + 1) % N_SEQ
        if self.held[seq]:
            self.ctx.decode({seq: tokens(1, 5)}, 0, {seq: len(self.held[seq])})  # applies pending copies
            assert self.ctx.seq_rm(seq, len(self.held[seq]), -1)
            self.ctx.set_state(other, self.ctx.state(seq))
            self.held[other] = list(self.held[seq])

    def ask(self, seq: int) -> None:
        """An exact request that continues what the slot holds; on an ORACLE model filled cells are right too."""
        request = (self.held[seq] + tokens(20, self.rng.randrange(1000)))[: N_MAX - 10]
        keep = min(len(self.held[seq]), len(request) - 1)
        if self.poison:
            keep = self.ctx.reusable(seq, keep)
        assert self.ctx.seq_rm(seq, keep, -1)
        got = self.ctx.decode({seq: request[keep:]}, 1, {seq: keep})[seq]
        self.reference.clear()
        want = self.reference.decode({0: request}, 1)[0]
        assert np.abs(got - want).max() < TOLERANCE * np.ptp(want)
        self.held[seq] = request


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("unified", [False, True], ids=["split", "unified"])
@pytest.mark.parametrize("poison", [True, False], ids=["poison", "oracle"])
def test_interrupted(workshop: Any, poison: bool, unified: bool, seed: int) -> None:
    path = workshop.model("llama") if poison else workshop.oracle("llama", LIVE)
    options = ContextOptions(n_ctx=1024, n_seq_max=N_SEQ, kv_unified=unified)
    with (
        Model(path) as model,
        Maps(model, workshop.maps("llama", "poison" if poison else "identity")) as maps,
        Context(model, options) as ctx,
        Context(model) as reference,
    ):
        ctx.set_maps(maps, states="f32")
        slots = Slots(ctx, reference, random.Random(seed), poison)
        for _ in range(N_STEPS):
            slots.step()
        for seq in range(N_SEQ):
            slots.ask(seq)
        while ctx.heal(-1, 100):
            pass
        for seq in range(N_SEQ):
            assert ctx.reusable(seq, len(slots.held[seq])) == len(slots.held[seq])
            slots.poison = True
            slots.ask(seq)
