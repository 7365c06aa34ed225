"""From statistics to a map set: λ per map on held-out text, the final solve, R² and condition numbers."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pyridgefill import defaults
from pyridgefill.calibration.ridge import RidgeProblem, r_squared
from pyridgefill.calibration.statistics import Statistics
from pyridgefill.calibration.sums import SplitStatistics
from pyridgefill.errors import StatisticsError
from pyridgefill.maps.model import Calibration, MapSet, Recommended, Site, SiteMap, Split, Target

_log = logging.getLogger(__name__)

DEFAULT_RECOMMENDED = Recommended(sink=defaults.SINK, tail=defaults.TAIL, min_prompt=defaults.MIN_PROMPT)


@dataclass(frozen=True)
class FitOptions:
    """How maps are fitted.

    Attributes
    ----------
    target
        `proj` or `input`.
    rank
        0 for full rank.
    bias
        Whether maps have a bias.
    damping
        λ in units of the mean eigenvalue of the features' Gram matrix; None chooses it per map on held-out rows.
    """

    target: Target = "proj"
    rank: int = 0
    bias: bool = True
    damping: float | None = None


def fit_maps(
    statistics: Statistics,
    options: FitOptions | None = None,
    *,
    splits: Sequence[int] | None = None,
    recommended: Recommended = DEFAULT_RECOMMENDED,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> MapSet:
    """Fit the maps of some splits.

    Parameters
    ----------
    statistics
        From `collect` or `merge`.
    options
        Target, rank, bias, damping.
    splits
        Which splits; all of the statistics if None.
    recommended
        Settings to store in the file; fitting alone recommends no split.
    progress
        Called with the number of finished maps and of all maps.

    Returns
    -------
    MapSet
        With float32 weights.

    Raises
    ------
    StatisticsError
        If a split or target was not collected, or there are too few rows to fit or none to choose λ with.
    """
    options = options or FitOptions()
    chosen = sorted(statistics.splits) if splits is None else sorted(set(splits))
    work = [(_split(statistics, split, options), _sites(statistics, split, options.target)) for split in chosen]
    for item, sites in work:
        for site in sites:
            check_rank(options.rank, item.split, site, statistics.base.embedding_length)
    total = sum(len(sites) for _, sites in work)
    maps: list[SiteMap] = []
    for item, sites in work:
        problem = RidgeProblem(item.fit, item.held, bias=options.bias)
        if not problem.mean_eigenvalue > 0:
            raise StatisticsError(
                f"split {item.split}: the input of layer {item.split} is the same in all {item.fit.rows} rows to fit",
                "check the model and the text, and collect again",
            )
        for site in sites:
            maps.append(_fit_site(problem, item, site, options))
            progress(len(maps), total)
    provenance = statistics.provenance
    return MapSet(
        base=statistics.base,
        splits=tuple(Split(split, options.target, options.rank) for split in chosen),
        maps=tuple(maps),
        feature_norm=statistics.settings.feature_norm,
        feature_norm_eps=statistics.settings.feature_norm_eps,
        recommended=recommended,
        calibration=Calibration(
            tokens=min(item.fit.rows for item, _ in work),
            corpora=tuple(provenance.get("corpora", ())),
            rows_massive=max(item.massive.rows for item, _ in work),
            rows_nonfinite=max((left_out.rows for left_out in statistics.nonfinite.values()), default=0),
        ),
    )


def warn_unmeasured(maps: MapSet, path: str | os.PathLike[str], model: str | os.PathLike[str] = "MODEL") -> None:
    """Say that the default settings of a file were not measured, and what measures them."""
    _log.warning(
        "no setting was measured: the default is split %d, without selection; "
        "pyridgefill heads %s %s -o FILE measures which is as good as the exact model",
        maps.defaults().split,
        os.fspath(model),
        os.fspath(path),
    )


def check_rank(rank: int, split: int, site: Site, n_features: int) -> None:
    """Raise a StatisticsError if the map of a site cannot have this rank."""
    if rank >= min(site.width, n_features):
        raise StatisticsError(
            f"{split}.blk.{site.layer}.{site.name}: rank {rank}, expected less than {min(site.width, n_features)}",
            "choose a smaller --rank or 0 for full rank",
        )


def _split(statistics: Statistics, split: int, options: FitOptions) -> SplitStatistics:
    if split not in statistics.splits:
        raise StatisticsError(f"split {split} was not collected, the file has {sorted(statistics.splits)}")
    item = statistics.splits[split]
    needed = max(1, statistics.base.embedding_length // 4)
    if item.fit.rows < needed:
        left_out = ", ".join(f"{bad.rows} not finite in layer {layer}" for layer, bad in statistics.nonfinite.items())
        raise StatisticsError(
            f"split {split}, layers {split + 1} to {statistics.base.block_count - 1}: {item.fit.rows} rows to fit, "
            f"at least {needed} are needed; left out: {item.massive.rows} massive{', ' if left_out else ''}{left_out}",
            "collect more text",
        )
    if item.held.rows == 0 and options.damping is None:
        raise StatisticsError(
            f"split {split}: no held-out rows to choose the damping with",
            "collect more text, or give pyridgefill fit a --damping",
        )
    return item


def _sites(statistics: Statistics, split: int, target: Target) -> list[Site]:
    sites = [site for site in statistics.splits[split].sites if (site.name == "input") == (target == "input")]
    if not sites:
        raise StatisticsError(f"split {split}: target {target!r} was not collected", "collect with that target")
    return sites


def _fit_site(problem: RidgeProblem, item: SplitStatistics, site: Site, options: FitOptions) -> SiteMap:
    columns = item.columns(site)
    damping = problem.choose(columns) if options.damping is None else options.damping * problem.mean_eigenvalue
    solution = problem.solve(columns, damping, options.rank)

    def narrow(array: np.ndarray | None) -> np.ndarray | None:
        return None if array is None else np.ascontiguousarray(array, dtype=np.float32)

    return SiteMap(
        item.split,
        site.layer,
        site.name,
        weight=narrow(solution.weight),
        weight_a=narrow(solution.weight_a),
        weight_b=narrow(solution.weight_b),
        bias=narrow(solution.bias),
        damping=damping,
        r2=r_squared(item.held, columns, solution.dense(), solution.bias),
        condition=solution.condition,
        solver="eigh",
    )
