"""The jobs of each evaluation: every task in every variant, the exact one first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np

from pyridgefill.calibration.builtin_corpora import BUILTIN
from pyridgefill.calibration.chunks import ChatFormatter
from pyridgefill.errors import ModelError, RidgeFillError
from pyridgefill.evaluation.prompts.layout import GROUPS, check_rows
from pyridgefill.evaluation.prompts.needle import KINDS, make_keyed_texts
from pyridgefill.evaluation.prompts.needle_absent import ABSENT, make_absent
from pyridgefill.evaluation.prompts.ruler import Shape, Task, check_tasks, make_prompts
from pyridgefill.evaluation.prompts.squad import SquadTask
from pyridgefill.evaluation.prompts.text import text_windows
from pyridgefill.evaluation.run.lab import Advance, Compute, Job, Result
from pyridgefill.evaluation.run.session import Session
from pyridgefill.evaluation.run.way import Way
from pyridgefill.evaluation.tasks.divergence import Reference
from pyridgefill.evaluation.tasks.far_loss import FarText, compare, exact_losses, measured_losses, repeated_tokens
from pyridgefill.evaluation.tasks.longbench import make_choice, read_longbench, run_choices, summarise_choices
from pyridgefill.evaluation.tasks.prompts import Prompt, run_prompts, summarise
from pyridgefill.files import file_name

MULTI_KEY = "multi-key"


@dataclass(frozen=True)
class Setting:
    """What all jobs share.

    Attributes
    ----------
    session, chat
        The model, and its chat template or None.
    variants
        The exact one first.
    sink, tail
        Exact rows at both ends.
    seed, corpus
        Of generated prompts, and the text around them.
    """

    session: Session
    chat: ChatFormatter | None
    variants: Sequence[Way]
    sink: int
    tail: int
    seed: int
    corpus: str

    def params(self, ctx: int, **more: Any) -> dict[str, Any]:
        """What results depend on, for prompts of `ctx` tokens."""
        check_rows(ctx, self.sink, self.tail)
        corpus = self.corpus if self.corpus in BUILTIN else file_name(Path(self.corpus))
        return {"ctx": ctx, "sink": self.sink, "tail": self.tail, "seed": self.seed, "corpus": corpus, **more}

    def jobs(self, task: str, params: dict[str, Any], size: int, compute: Callable[[Way], Compute]) -> list[Job]:
        """One job for each variant."""
        return [Job(task, params, variant, size, compute(variant)) for variant in self.variants]


def _scored(
    setting: Setting, task: str, params: dict[str, Any], size: int, make: Callable[[], list[Prompt]]
) -> list[Job]:
    prompts = cache(make)

    def compute(session: Session, variant: Way, advance: Advance, exact: Result | None) -> Result:
        return summarise(run_prompts(session, prompts(), advance, variant), exact, setting.seed)

    return setting.jobs(task, params, size, lambda _variant: compute)


def needle_jobs(
    setting: Setting,
    *,
    lengths: Sequence[int],
    kinds: Sequence[str],
    needles: int,
    keys: int = 4,
    groups: Sequence[str] = ("filled",),
    task: str = "needle",
) -> list[Job]:
    """Needles of each kind, length and group; kind `multi-key` has `keys` needles of digits in each text.

    The group `absent` asks for what is in no text; where kind `multi-key` does, the text has `keys` other needles.
    """
    for kind in kinds:
        if kind not in (*KINDS, MULTI_KEY):
            raise ModelError(f"needles of kind {kind!r} are not known", f"choose {', '.join([*KINDS, MULTI_KEY])}")
    for group in groups:
        if group not in (*GROUPS, ABSENT):
            raise ModelError(f"needles of group {group!r} are not known", f"choose {', '.join([*GROUPS, ABSENT])}")
    jobs = []
    for ctx, kind, group in product(lengths, kinds, groups):
        more: dict[str, Any] = {"keys": keys} if kind == MULTI_KEY else {}
        # not in lines that were written before there were groups
        more |= {} if group == "filled" else {"group": group}
        params = setting.params(ctx, kind=kind, needles=needles, **more)

        def make(ctx: int = ctx, kind: str = kind, group: str = group) -> list[Prompt]:
            shape: dict[str, Any] = {"n_prompt": ctx, "sink": setting.sink, "tail": setting.tail}
            shape |= {"seed": setting.seed, "corpus": setting.corpus}
            session, chat = setting.session, setting.chat
            per_text = keys if kind == MULTI_KEY else 1
            shape["kind"] = "digits" if kind == MULTI_KEY else kind
            if group == ABSENT:
                others = keys if kind == MULTI_KEY else 0
                return list(make_absent(session, chat, count=needles, others=others, **shape))
            texts = make_keyed_texts(session, chat, count=-(-needles // per_text), keys=per_text, group=group, **shape)
            return [Prompt.of(item) for text in texts for item in text.needles][:needles]

        jobs += _scored(setting, task, params, needles, make)
    return jobs


def ruler_jobs(
    setting: Setting, *, lengths: Sequence[int], tasks: Sequence[str], prompts: int, squad: Path | None = None
) -> list[Job]:
    """Prompts of each task and length; the task `qa` needs a file in SQuAD's format."""
    extra: dict[str, Task] = {} if squad is None else {"qa": SquadTask(squad)}
    check_tasks(tasks, extra)
    jobs = []
    for ctx in lengths:
        for task in tasks:

            def make(ctx: int = ctx, task: str = task) -> list[Prompt]:
                shape = Shape(
                    setting.session, setting.chat, ctx, setting.sink, setting.tail, setting.seed, setting.corpus
                )
                return make_prompts(shape, task, prompts, extra)

            data = {"data": file_name(squad)} if squad is not None and task in extra else {}
            params = setting.params(ctx, kind=task, prompts=prompts, **data)
            jobs += _scored(setting, "ruler", params, prompts, make)
    return jobs


def far_loss_jobs(setting: Setting, *, lengths: Sequence[int], texts: int, near: int, threshold: float) -> list[Job]:
    """Loss on tokens that depend on distant context, for texts of each length."""
    jobs = []
    for ctx in lengths:
        params = setting.params(ctx, texts=texts, near=near, threshold=threshold)
        windows = cache(lambda ctx=ctx: text_list(setting, ctx, texts))

        def compute(variant: Way, windows: Callable[[], list[list[int]]] = windows) -> Compute:
            def run_exact(session: Session, way: Way, advance: Advance, _exact: Result | None) -> Result:
                return exact_far_losses(setting, session, way, windows(), near, advance)

            def run_fill(session: Session, way: Way, advance: Advance, exact: Result | None) -> Result:
                found = stored_far_texts(setting, windows(), near, exact)
                losses = measured_losses(session, found, way, on_progress=advance)
                groups = compare(found, losses, threshold=threshold, seed=setting.seed)
                return {"groups": {group.group: asdict(group) for group in groups}}

            return run_exact if variant.name == "exact" else run_fill

        jobs += setting.jobs("far-loss", params, texts, compute)
    return jobs


def exact_far_losses(
    setting: Setting, session: Session, way: Way, texts: Sequence[Sequence[int]], near: int, advance: Advance
) -> Result:
    """The exact model's losses with and without far context, as results hold them."""
    found = exact_losses(session, texts, tail=setting.tail, sink=setting.sink, near=near, way=way, on_progress=advance)
    return {"exact": [text.exact.tolist() for text in found], "removed": [text.removed.tolist() for text in found]}


def stored_far_texts(
    setting: Setting, texts: Sequence[Sequence[int]], near: int, exact: Result | None
) -> list[FarText]:
    """Texts with what `exact_far_losses` found."""
    assert exact is not None
    return [
        FarText(
            tuple(text), setting.tail, near, np.asarray(kept), np.asarray(removed),
            repeated_tokens(text, setting.sink, setting.tail, near),
        )
        for text, kept, removed in zip(texts, exact["exact"], exact["removed"], strict=True)
    ]  # fmt: skip


def kld_jobs(setting: Setting, *, lengths: Sequence[int], texts: int, generated: int, folder: Path) -> list[Job]:
    """Divergence from the exact model on tails and on its own continuation."""
    if setting.tail < 2 and not generated:
        raise RidgeFillError("a tail of 1 row and no generated tokens leave nothing to compare", "give a longer --tail")
    jobs = []
    for ctx in lengths:
        params = setting.params(ctx, texts=texts, generated=generated)
        place = folder / f"logits-{ctx}"
        place.mkdir()
        reference = cache(
            lambda ctx=ctx, place=place: Reference(text_list(setting, ctx, texts), setting.tail, generated, place)
        )

        def compute(variant: Way, reference: Callable[[], Reference] = reference) -> Compute:
            def run(session: Session, way: Way, advance: Advance, _exact: Result | None) -> Result:
                if variant.name == "exact":
                    reference().record(session, advance)
                    return reference().loss()
                reference().record(session)
                way.start(session)
                return reference().compare(session, way, seed=setting.seed, advance=advance)

            return run

        jobs += setting.jobs("kld", params, texts, compute)
    return jobs


def longbench_jobs(setting: Setting, *, lengths: Sequence[int], path: Path, limit: int) -> list[Job]:
    """Multiple choice over the records of a file, cut to each length; `limit` 0 takes all."""
    records = read_longbench(path)[: limit or None]
    jobs = []
    for ctx in lengths:
        params = setting.params(ctx, file=file_name(path), records=len(records))
        del params["corpus"]
        choices = cache(
            lambda ctx=ctx: [
                make_choice(setting.session, setting.chat, record, n_prompt=ctx, tail=setting.tail)
                for record in records
            ]
        )

        def run(
            session: Session, way: Way, advance: Advance, exact: Result | None, choices: Callable[[], Any] = choices
        ) -> Result:
            return summarise_choices(run_choices(session, choices(), advance, way), exact, choices(), setting.seed)

        jobs += setting.jobs("longbench", params, len(records), lambda _variant, run=run: run)  # type: ignore[misc]
    return jobs


def text_list(setting: Setting, length: int, count: int) -> list[list[int]]:
    """Texts of the setting's corpus, of `length` tokens each."""
    return list(islice(text_windows(setting.session, length, corpus=setting.corpus), count))
