"""Commands on maps files: pack, repack and inspect."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from pyridgefill.calibration.fit import DEFAULT_RECOMMENDED
from pyridgefill.calibration.means import mean_maps
from pyridgefill.calibration.statistics_file import read_statistics
from pyridgefill.cli import common
from pyridgefill.cli.common import (
    BudgetOption,
    JsonOption,
    MapsArgument,
    OutputOption,
    SameTypeOption,
    TargetOption,
    WeightTypeOption,
)
from pyridgefill.errors import RidgeFillError, UsageError
from pyridgefill.files import check_output
from pyridgefill.maps import MapSet, identity_maps, read_base_model, read_maps, write_maps, zero_maps
from pyridgefill.maps.arrays import open_arrays
from pyridgefill.maps.base import candidate_splits
from pyridgefill.maps.model import FEATURE_NORMS, TARGETS
from pyridgefill.maps.pack import maps_from_arrays
from pyridgefill.words import size

BASELINES = ("identity", "mean", "zero")


def pack(
    source: Annotated[str, typer.Argument(help=f"An .npz or .safetensors file, or {', '.join(BASELINES)}.")],
    output: OutputOption,
    model: Annotated[Path | None, typer.Option("--model", help="The model's GGUF, for arrays and identity.")] = None,
    statistics: Annotated[Path | None, typer.Option("--statistics", help="Collected sums, for mean and zero.")] = None,
    splits: Annotated[str, typer.Option("--splits", help="Of a baseline: auto, or a list like 12,16.")] = "auto",
    target: TargetOption = "input",
    feature_norm: Annotated[str, typer.Option("--feature-norm", help="That the arrays expect: rms or none.")] = "none",
    weight_type: WeightTypeOption = "f16",
    json_file: JsonOption = None,
) -> None:
    """Write a maps file from arrays, or a baseline to compare maps with."""
    check_output(output, json_file, inputs=(source, model, statistics))
    common.choice("--target", target, TARGETS)
    common.choice("--feature-norm", feature_norm, FEATURE_NORMS)
    given = () if splits == "auto" else common.parse_splits(splits, 0)
    if source in ("mean", "zero"):
        if statistics is None:
            raise UsageError(f"{source}: the sites are not known", "give --statistics, made by collect")
        sums = read_statistics(statistics)
        maps = mean_maps(sums, target, given or tuple(sums.splits), DEFAULT_RECOMMENDED)  # type: ignore[arg-type]  # checked by choice
        maps = zero_maps(maps) if source == "zero" else maps
    else:
        if source != "identity" and not Path(source).is_file():
            raise RidgeFillError(f"{source}: no such file", f"give arrays, or one of {', '.join(BASELINES)}")
        if model is None:
            raise UsageError(f"{source}: the model is not known", "give --model")
        base = read_base_model(model)
        if source == "identity":
            maps = identity_maps(base, given or candidate_splits(base.block_count), recommended=DEFAULT_RECOMMENDED)
        else:
            maps = maps_from_arrays(base, open_arrays(Path(source)), feature_norm=feature_norm)  # type: ignore[arg-type]
    write_maps(output, maps, weight_type=weight_type)
    _show(output, maps, json_file=json_file)


def repack(
    maps: MapsArgument,
    output: OutputOption,
    splits: Annotated[str, typer.Option("--splits", help="Splits that stay: all, recommended, or 12,16.")] = "all",
    split: Annotated[int | None, typer.Option("--split", help="Recommended split.")] = None,
    select: Annotated[str | None, typer.Option("--select", help="Recommended selection: none or attention.")] = None,
    budget: BudgetOption = None,
    sink: Annotated[int | None, typer.Option("--sink", min=0, help="Recommended number of exact first rows.")] = None,
    tail: Annotated[int | None, typer.Option("--tail", min=1, help="Recommended number of exact last rows.")] = None,
    min_prompt: Annotated[
        int | None, typer.Option("--min-prompt", min=0, help="Recommended shortest prompt to fill.")
    ] = None,
    weight_type: SameTypeOption = None,
    json_file: JsonOption = None,
) -> None:
    """Write maps again, with fewer splits, another weight type, or other recommended settings."""
    check_output(output, json_file, inputs=[maps])
    if select is not None:
        common.choice("--select", select, ("none", "attention"))
    if budget is not None and select == "none":
        raise UsageError("--budget does not go with --select none", "leave out one of them")
    named: tuple[int, ...] = ()
    if splits not in ("all", "recommended"):
        named = tuple(sorted(common.parse_list("--splits", splits, int, "all, recommended, or a list like 12,16")))
    stored = read_maps(maps)
    given: dict[str, Any] = {
        "split": split,
        "select": select,
        "budget": budget,
        "sink": sink,
        "tail": tail,
        "min_prompt": min_prompt,
    }
    best = replace(stored.recommended, **{key: value for key, value in given.items() if value is not None})
    default = stored.defaults(best.split).split
    assert default is not None
    if select is not None or budget is not None:
        best = replace(best, split=default)
    chosen = named or ((default,) if splits == "recommended" else tuple(item.layer for item in stored.splits))
    kept = stored.keep(chosen, best.complete())
    write_maps(output, kept, weight_type=weight_type)
    _show(output, read_maps(output), json_file=json_file)


def inspect(
    maps: MapsArgument,
    values: Annotated[
        bool, typer.Option("--values", help="Look at all weights, too: is each a finite number?")
    ] = False,
    json_file: JsonOption = None,
) -> None:
    """Check a maps file and show what is in it."""
    check_output(json_file, inputs=[maps])
    _show(maps, read_maps(maps, check_values=values), json_file=json_file)


def _show(path: Path, maps: MapSet, *, json_file: Path | None) -> None:
    description = describe(maps) | {"path": str(path)}
    common.report(json_file, description, lambda: print_description(description))


def describe(maps: MapSet) -> dict[str, Any]:
    """All numbers of a map set, for JSON."""
    return {
        "base": asdict(maps.base),
        "splits": [asdict(split) for split in maps.splits],
        "feature_norm": maps.feature_norm,
        "feature_norm_eps": maps.feature_norm_eps if maps.feature_norm == "rms" else None,
        "recommended": {key: value for key, value in asdict(maps.recommended).items() if value is not None},
        "calibration": asdict(maps.calibration),
        "heads": [asdict(item) for item in maps.heads],
        "parameters": sum(_size(source) for item in maps.maps for source in item.tensors().values()),
        "maps": [
            {
                "name": item.name,
                "r2": item.r2,
                "lambda": item.damping,
                "condition": item.condition,
                "solver": item.solver,
                "bias": item.bias is not None,
                "shapes": {name.rsplit(".", 1)[1]: list(source.shape) for name, source in item.tensors().items()},
                "type": item.weight_type,
            }
            for item in maps.maps
        ],
    }


def print_description(description: dict[str, Any]) -> None:
    """Print a map set as a table."""
    base = description["base"]
    out = common.stdout
    out.print(f"{description['path']}: maps for {base['architecture']}, {base['block_count']} layers", highlight=False)
    out.print(f"fingerprint: vocabulary {base['vocab_hash']}, weights {base['weights_hash']}", highlight=False)
    for split in description["splits"]:
        out.print(f"split {split['layer']}: target {split['target']}, rank {split['rank'] or 'full'}", highlight=False)
    calibration = description["calibration"]
    out.print(
        f"calibration: {calibration['tokens']} rows of {', '.join(calibration['corpora']) or 'no text'}; left out: "
        f"{calibration['rows_massive']} massive, {calibration['rows_nonfinite']} not finite",
        highlight=False,
    )
    types = sorted({str(item["type"]) for item in description["maps"] if item["type"]})
    if types:
        stored = size(Path(description["path"]).stat().st_size)
        out.print(f"file: {stored}, weights {', '.join(types)}", highlight=False)
    settings = ", ".join(f"{key} {value}" for key, value in description["recommended"].items())
    if "split" not in description["recommended"]:
        highest = max(split["layer"] for split in description["splits"])
        settings = f"{settings}; no setting is known to be as good as exact: used at split {highest}, without selection"
    out.print(f"recommended: {settings.lstrip('; ')}; features: {description['feature_norm']}", highlight=False)
    for head in description["heads"]:
        name = f"retrieval head {head['layer']}.{head['head']}"
        out.print(f"split {head['split']}: {name}, recall {common.format_recall(head['recall'])}", highlight=False)
    table = Table("map", "shape", "R²", "λ", "condition", "solver")
    for item in description["maps"]:
        shape = " · ".join(
            "x".join(map(str, size)) for name, size in reversed(item["shapes"].items()) if name != "bias"
        )
        table.add_row(
            item["name"],
            shape + (" + bias" if item["bias"] else ""),
            _number(item["r2"], ".4f"),
            _number(item["lambda"], ".3g"),
            _number(item["condition"], ".2g"),
            item["solver"],
        )
    out.print(table)


def _number(value: float, form: str) -> str:
    return "" if np.isnan(value) else format(value, form)


def _size(source: Any) -> int:
    return int(np.prod(source.shape, dtype=np.int64))
