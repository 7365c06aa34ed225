"""Sums that ridge maps are fitted from: additive over rows, runs and machines; no activations are kept.

For features x and targets y of each row the sums are Σ x xᵀ, Σ y xᵀ, Σ x, Σ y, Σ y² and the number of rows, in float64,
apart for rows that the fit uses and for rows of held-out documents. Everything that the module `ridge` computes,
the held-out residual of any map included, is a closed form of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.linalg.blas import dgemm, dsyrk

from pyridgefill.calibration.sums import Array, LeftOut, Settings, SplitStatistics, Sums
from pyridgefill.errors import StatisticsError
from pyridgefill.maps.base import BaseModel
from pyridgefill.maps.model import Site


@dataclass
class Statistics:
    """All sums of a calibration run.

    Attributes
    ----------
    base
        Fingerprint of the model.
    splits
        Sums by split.
    nonfinite
        Rows with a value that is not finite, by the layer in which it was found.
    provenance
        What a reader wants to know about the run: corpora, tokens, documents; must be JSON.
    progress
        State that `pyridgefill.calibration.collect` resumes from; None after a merge.
    """

    base: BaseModel
    settings: Settings
    splits: dict[int, SplitStatistics]
    nonfinite: dict[int, LeftOut] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    progress: dict[str, Any] | None = None

    @classmethod
    def empty(cls, base: BaseModel, settings: Settings, splits: Sequence[int], sites: Sequence[Site]) -> Statistics:
        """Zero sums for the sites above each split."""
        made = {split: SplitStatistics.empty(split, sites, base.embedding_length) for split in sorted(set(splits))}
        for split, item in made.items():
            if not item.sites:
                raise StatisticsError(f"split {split}: no sites above it, the model has {base.block_count} layers")
        return cls(base=base, settings=settings, splits=made)

    def add_block(
        self,
        values: Mapping[Site, npt.NDArray[np.float32]],
        *,
        position: int = 0,
        held_out: bool = False,
        chunk: int = 0,
        nonfinite: Literal["skip", "error"] = "skip",
    ) -> None:
        """Add the rows of one batch.

        Parameters
        ----------
        values
            For each site `[rows, width]`; must hold the `input` site of each split and all sites above it.
        position
            Position of the first row in its chunk.
        held_out
            Whether the document belongs to the held-out set.
        chunk
            Number of the chunk, for reports.
        nonfinite
            `skip` leaves rows with values that are not finite out and counts them, `error` raises.

        Raises
        ------
        StatisticsError
            With `nonfinite="error"`, naming site and chunk.
        """
        inputs = {site.layer: array for site, array in values.items() if site.name == "input"}
        features = {split: inputs[split].astype(np.float64) for split in self.splits}
        lowest = self.splits[min(self.splits)]
        n_rows = len(features[lowest.split])
        # one cast for all splits; a row per target value, so that the sites above each split are contiguous
        targets = np.empty((lowest.fit.y.size, n_rows))
        for site in lowest.sites:
            targets[lowest.columns(site)] = values[site].T
        finite = self._find_nonfinite(features, targets, chunk, nonfinite)
        usable = finite & (np.arange(position, position + n_rows) >= self.settings.skip_first)
        for split, item in self.splits.items():
            keep = self._without_massive(item, features[split], usable, chunk)
            sums = item.held if held_out else item.fit
            n_inputs = item.fit.y.size - item.n_proj
            # sites above this split: the end of the projections, and the end of the inputs
            proj = targets[lowest.n_proj - item.n_proj : lowest.n_proj]
            self._accumulate(sums, item.n_proj, features[split], proj, targets[targets.shape[0] - n_inputs :], keep)

    def _find_nonfinite(
        self, features: dict[int, Array], targets: Array, chunk: int, nonfinite: Literal["skip", "error"]
    ) -> npt.NDArray[np.bool_]:
        """Mask of finite rows; the others are counted by layer and zeroed."""
        finite = np.ones(targets.shape[1], dtype=bool)
        if np.isfinite(targets.sum()) and all(np.isfinite(array.sum()) for array in features.values()):
            return finite
        lowest = self.splits[min(self.splits)]
        found = [
            (Site(split, "input", array.shape[1]), ~np.isfinite(array).all(1)) for split, array in features.items()
        ]
        found += [(site, ~np.isfinite(targets[lowest.columns(site)]).all(0)) for site in lowest.sites]
        by_layer: dict[int, npt.NDArray[np.bool_]] = {}
        for site, bad in found:
            if bad.any() and nonfinite == "error":
                raise StatisticsError(
                    f"blk.{site.layer}.{site.name}: {int(bad.sum())} rows not finite in chunk {chunk}",
                    "use --nonfinite skip to leave such rows out",
                )
            by_layer[site.layer] = by_layer.get(site.layer, np.zeros_like(finite)) | bad
            finite &= ~bad
        for layer, bad in by_layer.items():
            if bad.any():
                self.nonfinite.setdefault(layer, LeftOut()).add(int(bad.sum()), [chunk])
        targets[:, ~finite] = 0.0
        for array in features.values():
            array[~finite] = 0.0
        return finite

    def _without_massive(
        self, item: SplitStatistics, features: Array, usable: npt.NDArray[np.bool_], chunk: int
    ) -> npt.NDArray[np.bool_]:
        norms = np.sqrt(np.einsum("ij,ij->i", features, features))
        # rows without a norm would pull the median to zero, and all others would be massive
        item.norms.add(norms[usable & (norms > 0)])
        if not item.norms.counts.any():
            return usable
        massive: npt.NDArray[np.bool_] = usable & (norms > self.settings.massive_ratio * item.norms.median())
        item.massive.add(int(massive.sum()), [chunk])
        return usable & ~massive

    def _accumulate(
        self, sums: Sums, n_proj: int, x: Array, proj: Array, inputs: Array, keep: npt.NDArray[np.bool_]
    ) -> None:
        # rows that are left out get the weight 0, which is cheaper than taking them out of the targets
        inverse = np.where(keep, 1.0, 0.0)
        if self.settings.feature_norm == "rms":
            inverse /= np.sqrt(np.einsum("ij,ij->i", x, x) / x.shape[1] + self.settings.feature_norm_eps)
        ones = keep.astype(np.float64)
        scaled = x * inverse[:, None]
        sums.rows += int(keep.sum())
        sums.x += scaled.sum(axis=0)
        dsyrk(1.0, scaled.T, beta=1.0, c=sums.xx, lower=True, overwrite_c=True)
        for block, weight, into in ((proj, ones, slice(0, n_proj)), (inputs, inverse, slice(n_proj, None))):
            if block.shape[0]:
                # both factors of an input site are divided by the row's RMS
                left = scaled if weight is ones else scaled * inverse[:, None]
                dgemm(1.0, left.T, block.T, beta=1.0, c=sums.yx[into].T, overwrite_c=True)
                sums.y[into] += block @ weight
                sums.yy[into] += np.einsum("ij,ij,j->i", block, block, weight * weight)


def merge(parts: Sequence[Statistics]) -> Statistics:
    """Add up runs over different text; the first one is changed and returned.

    Raises
    ------
    StatisticsError
        If the runs differ in model, settings, splits or sites.
    """
    if not parts:
        raise StatisticsError("nothing to merge", "give at least one statistics file")
    total = parts[0]
    for other in parts[1:]:
        sites = {split: item.sites for split, item in total.splits.items()}
        for what, mine, theirs in (
            ("models", total.base, other.base),
            ("settings", total.settings, other.settings),
            ("splits or sites", sites, {split: item.sites for split, item in other.splits.items()}),
        ):
            if mine != theirs:
                raise StatisticsError(f"cannot merge runs with different {what}", "collect them with the same options")
        for split, item in total.splits.items():
            item.fit.add(other.splits[split].fit)
            item.held.add(other.splits[split].held)
            item.norms.counts += other.splits[split].norms.counts
            item.massive.add(other.splits[split].massive.rows, other.splits[split].massive.chunks)
        for layer, left_out in other.nonfinite.items():
            total.nonfinite.setdefault(layer, LeftOut()).add(left_out.rows, left_out.chunks)
        for key in ("tokens", "documents", "documents_held_out"):
            total.provenance[key] = total.provenance.get(key, 0) + other.provenance.get(key, 0)
        names = [*total.provenance.get("corpora", []), *other.provenance.get("corpora", [])]
        total.provenance["corpora"] = list(dict.fromkeys(names))
    if len(parts) > 1:
        total.progress = None
    return total


def estimate_bytes(sites: Sequence[Site], splits: Sequence[int], n_features: int, n_rows: int) -> int:
    """Bytes that collection holds at its peak: the sums of all splits and the block buffers of one batch."""
    sums, widest = 0, 0
    for split in splits:
        width = sum(site.width for site in sites if site.layer > split)
        widest = max(widest, width)
        sums += 2 * 8 * (n_features * n_features + width * n_features + n_features + 2 * width)
    # the float64 targets, the features of all splits and their two scaled copies, the engine's float32 values
    buffers = n_rows * (8 * widest + 8 * n_features * (len(splits) + 3) + 4 * sum(site.width for site in sites))
    return sums + buffers
