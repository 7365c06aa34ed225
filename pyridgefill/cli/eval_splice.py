"""The `eval splice` command: which parts of a fill carry the error."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from pyridgefill.cli import common
from pyridgefill.cli.eval_options import (
    EvalOptions,
    Evaluation,
    NearOption,
    TextsOption,
    ThresholdOption,
    run_tasks,
    with_options,
)
from pyridgefill.errors import UsageError

if TYPE_CHECKING:
    from pyridgefill.evaluation.run.found import FarLosses
    from pyridgefill.evaluation.run.session import Session
    from pyridgefill.evaluation.run.spliced import Spliced


@with_options
def splice(
    options: EvalOptions,
    texts: TextsOption = 8,
    needles: Annotated[int, typer.Option("--needles", min=0, help="Needles of digits of each length.")] = 8,
    layer_groups: Annotated[
        int, typer.Option("--layer-groups", min=0, help="Groups of layers above the split; 0: each on its own.")
    ] = 4,
    into: Annotated[
        str, typer.Option("--into", help="fill: what exact parts recover; exact: what filled ones harm.")
    ] = "fill,exact",
    near: NearOption = None,
    threshold: ThresholdOption = 0.6931,
) -> None:
    """Exact K, V, states or layers in the filled memory, and the reverse: what do loss and retrieval recover?"""
    from pyridgefill.evaluation.run.spliced import DIRECTIONS, Spliced, States
    from pyridgefill.evaluation.run.ways import WAYS
    from pyridgefill.evaluation.tasks.far_loss import FarLossParams
    from pyridgefill.evaluation.tasks.needle import NeedleParams, SpliceNeedles
    from pyridgefill.evaluation.tasks.splice import SpliceLoss

    if options.select not in ("", "none"):
        raise UsageError(
            f"--select {options.select}: splice tests change filled rows, and selected rows are not filled",
            "leave out --select",
        )
    for name in options.baselines.split(","):
        if name in WAYS and (reason := WAYS[name].way.no_splice):
            raise UsageError(f"--baselines {name}", reason)
    directions = common.parse_names("--into", into, DIRECTIONS)
    evaluation = Evaluation(replace(options, select="none"))
    losses = [SpliceLoss(FarLossParams.of(shape, texts, near, threshold)) for shape in evaluation.shapes]
    hidden = [SpliceNeedles(NeedleParams.at(shape, needles=needles)) for shape in evaluation.shapes if needles]
    with evaluation.lab(n_sequences=Spliced.n_sequences) as (lab, made, folder):
        states = States(folder, sink=evaluation.shapes[0].sink, tail=evaluation.shapes[0].tail)
        exact, *filled = (Spliced(way, None, states) for way in made)
        ways = [exact]
        for way in filled:
            ways += [way, *_with_splices(lab.session, way, layer_groups, directions)]
        found = run_tasks(lab, losses, ways)
        scores = {(row.task.params.ctx, row.way): row.found for row in run_tasks(lab, hidden, ways)}
    table = Table("tokens", "memory", "loss", "share, %", "far", "share, %", "found")
    for row in found:
        ctx = row.task.params.ctx
        score = scores.get((ctx, row.way))
        shown = "" if score is None else f"{score.hits} of {score.prompts}"
        if row.way is exact:
            # the exact losses of the tokens that a filled result is about
            groups = next(other.found.groups for other in found if other.task is row.task and other.way is filled[0])
            numbers = [f"{groups[name].exact:.3f}" if groups and name in groups else "" for name in SpliceLoss.groups]
            table.add_row(str(ctx), "exact", numbers[0], "", numbers[1], "", shown)
        else:
            assert isinstance(row.way, Spliced)
            table.add_row(str(ctx), _memory(row.way), *_numbers(row.found), shown)
    evaluation.report(table)


def _with_splices(session: Session, way: Spliced, groups: int, directions: tuple[str, ...]) -> list[Spliced]:
    from pyridgefill.evaluation.run.spliced import make_splices

    assert way.config is not None
    assert way.config.split is not None
    return [way.of(item) for item in make_splices(session.components(), way.config.split, groups, directions)]


def _memory(way: Spliced) -> str:
    if way.splice is None:
        return way.name
    names = [way.name, "exact"] if way.splice.into == "fill" else ["exact", way.name]
    return f"{' + '.join(names)} {way.splice.part} {way.splice.layers}"


def _numbers(found: FarLosses) -> list[str]:
    numbers = []
    for name in ("all", "far"):
        group, part = (found.groups or {}).get(name), (found.share or {}).get(name)
        numbers += ["" if group is None else f"{group.fill:.3f}", "" if part is None else part.percent()]
    return numbers
