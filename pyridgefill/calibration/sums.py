"""The pieces that calibration statistics are made of: sums over rows, norms of rows, rows that were left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pyridgefill import defaults
from pyridgefill.maps.model import FeatureNorm, Site

Array = npt.NDArray[np.float64]

_BINS_PER_OCTAVE = 64
_BINS = 128 * _BINS_PER_OCTAVE
_CHUNKS_LISTED = 16


@dataclass(frozen=True)
class Settings:
    """How rows become features; runs with different settings cannot be merged.

    Attributes
    ----------
    feature_norm, feature_norm_eps
        `rms`: x and the targets of `input` sites are divided by sqrt(mean(x²) + eps); `none`: raw values.
    skip_first
        Rows at the start of each chunk that are left out: they run exact anyway and carry massive activations.
    massive_ratio
        Rows whose norm is more than this many times the running median norm are left out.
    held_out
        Share of documents whose rows choose λ and measure R² instead of being fitted.
    """

    feature_norm: FeatureNorm = "rms"
    feature_norm_eps: float = 1e-6
    skip_first: int = defaults.SKIP_FIRST
    massive_ratio: float = defaults.MASSIVE_RATIO
    held_out: float = defaults.HELD_OUT


@dataclass
class Sums:
    """Sums over rows at one split; `yx` holds one row per target value, `xx` only its lower triangle.

    `xx` is `[d, d]` in Fortran order and `yx` is `[m, d]` in C order, so that BLAS adds to them in place.
    """

    rows: int
    xx: Array
    yx: Array
    x: Array
    y: Array
    yy: Array

    @classmethod
    def zeros(cls, n_features: int, n_targets: int) -> Sums:
        return cls(
            rows=0,
            xx=np.zeros((n_features, n_features), order="F"),
            yx=np.zeros((n_targets, n_features)),
            x=np.zeros(n_features),
            y=np.zeros(n_targets),
            yy=np.zeros(n_targets),
        )

    def add(self, other: Sums) -> None:
        """Add the sums of other rows."""
        self.rows += other.rows
        for name in ("xx", "yx", "x", "y", "yy"):
            getattr(self, name).__iadd__(getattr(other, name))


@dataclass
class LeftOut:
    """Rows that were left out, and the first chunks in which that happened."""

    rows: int = 0
    chunks: list[int] = field(default_factory=list)

    def add(self, rows: int, chunks: Sequence[int]) -> None:
        if rows:
            self.rows += rows
            self.chunks = sorted({*self.chunks, *chunks})[:_CHUNKS_LISTED]


@dataclass
class NormHistogram:
    """Counts of row norms in bins of 1.1 %: a running median that adds up and survives a checkpoint."""

    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(_BINS, dtype=np.int64))

    def add(self, norms: Array) -> None:
        logs = np.log2(np.maximum(norms, np.finfo(np.float64).tiny))
        bins = np.clip(np.floor(logs * _BINS_PER_OCTAVE).astype(np.int64) + _BINS // 2, 0, _BINS - 1)
        self.counts += np.bincount(bins, minlength=_BINS)

    def median(self) -> float:
        middle = int(np.searchsorted(np.cumsum(self.counts), (int(self.counts.sum()) + 1) // 2))
        return float(2.0 ** ((middle - _BINS // 2 + 0.5) / _BINS_PER_OCTAVE))


@dataclass
class SplitStatistics:
    """Sums for one split. `sites` are in the order of the rows of `yx`: projections by layer, then layer inputs."""

    split: int
    sites: tuple[Site, ...]
    fit: Sums
    held: Sums
    norms: NormHistogram = field(default_factory=NormHistogram)
    massive: LeftOut = field(default_factory=LeftOut)

    @classmethod
    def empty(cls, split: int, sites: Sequence[Site], n_features: int) -> SplitStatistics:
        proj = [site for site in sites if site.layer > split and site.name != "input"]
        inputs = [site for site in sites if site.layer > split and site.name == "input"]
        ordered = (*sorted(proj, key=lambda site: site.layer), *sorted(inputs, key=lambda site: site.layer))
        width = sum(site.width for site in ordered)
        return cls(split, ordered, Sums.zeros(n_features, width), Sums.zeros(n_features, width))

    @property
    def n_proj(self) -> int:
        return sum(site.width for site in self.sites if site.name != "input")

    def columns(self, site: Site) -> slice:
        """The rows of `yx` that belong to a site."""
        start = 0
        for other in self.sites:
            if other == site:
                return slice(start, start + site.width)
            start += other.width
        raise KeyError(site)
