from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import BASE, SITES, SPLITS, WIDTH, activations, collected, part

from pyridgefill.calibration.statistics import Statistics, estimate_bytes, merge
from pyridgefill.calibration.statistics_file import read_statistics, read_summary, write_statistics
from pyridgefill.calibration.sums import NormHistogram, Settings, Sums
from pyridgefill.errors import StatisticsError
from pyridgefill.maps import Site

ARRAYS = ("xx", "yx", "x", "y", "yy")


def assert_equal(a: Statistics, b: Statistics, *, exactly: bool = False) -> None:
    for split in a.splits:
        for mine, theirs in ((a.splits[split].fit, b.splits[split].fit), (a.splits[split].held, b.splits[split].held)):
            assert mine.rows == theirs.rows
            for name in ARRAYS:
                x, y = getattr(mine, name), getattr(theirs, name)
                if exactly:
                    assert np.array_equal(x, y), name
                else:
                    np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("feature_norm", ["none", "rms"])
def test_sums_are_those_of_the_rows(feature_norm: str) -> None:
    values = activations(50, seed=1)
    statistics = collected(values, feature_norm=feature_norm, feature_norm_eps=1e-3)
    for split in SPLITS:
        x = values[Site(split, "input", WIDTH)].astype(np.float64)
        r = np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-3) if feature_norm == "rms" else np.ones((50, 1))
        item = statistics.splits[split]
        assert [site.name for site in item.sites][-1] == "input"
        assert {site.layer for site in item.sites} == set(range(split + 1, BASE.block_count))
        np.testing.assert_allclose(np.tril(item.fit.xx), np.tril((x / r).T @ (x / r)), rtol=1e-12)
        np.testing.assert_allclose(item.fit.x, (x / r).sum(axis=0), rtol=1e-10, atol=1e-10)
        for site in item.sites:
            # the value of an input site is divided by the row's RMS as the features are
            y = values[site].astype(np.float64) / (r if site.name == "input" else 1.0)
            columns = item.columns(site)
            np.testing.assert_allclose(item.fit.yx[columns], y.T @ (x / r), rtol=1e-10, atol=1e-10)
            np.testing.assert_allclose(item.fit.y[columns], y.sum(axis=0), rtol=1e-10, atol=1e-10)
            np.testing.assert_allclose(item.fit.yy[columns], (y**2).sum(axis=0), rtol=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    borders=st.lists(st.integers(1, 59), max_size=6, unique=True),
    order=st.randoms(use_true_random=False),
    feature_norm=st.sampled_from(["none", "rms"]),
)
def test_block_size_order_and_merge_do_not_matter(borders: list[int], order: object, feature_norm: str) -> None:
    values = activations(60, seed=2)
    values[Site(2, "input", WIDTH)][17] *= 500  # a massive row is left out in every order
    whole = collected(values, feature_norm=feature_norm)
    assert whole.splits[2].massive.rows == 1
    edges = [0, *sorted(borders), 60]
    blocks = list(pairwise(edges))
    order.shuffle(blocks)  # type: ignore[attr-defined]
    # the massive row needs a median to be compared with, so the first block must have others
    blocks.sort(key=lambda block: block[0] <= 17 < block[1])
    parts = []
    for start, stop in blocks:
        if not parts or stop % 2:
            parts.append(Statistics.empty(BASE, whole.settings, SPLITS, SITES))
        target = parts[0] if start <= 17 < stop else parts[-1]
        target.add_block(part(values, start, stop), position=start)
    assert_equal(whole, merge(parts))


def test_first_rows_of_a_chunk_are_left_out() -> None:
    values = activations(20, seed=3)
    values[Site(2, "input", WIDTH)][0] = 1e6
    skipped = collected(values, skip_first=3)
    assert skipped.splits[2].fit.rows == 17
    assert skipped.splits[2].massive.rows == 0
    assert_equal(skipped, collected(part(values, 3, 20)))
    later = Statistics.empty(BASE, Settings("none", skip_first=3), SPLITS, SITES)
    later.add_block(part(values, 1, 20), position=1)
    assert_equal(skipped, later)


def test_massive_rows_are_left_out_of_their_split_only() -> None:
    values = activations(200, seed=4)
    values[Site(3, "input", WIDTH)][[5, 9]] *= 1000
    statistics = Statistics.empty(BASE, Settings("none", skip_first=0), SPLITS, SITES)
    statistics.add_block(values, chunk=7)
    assert statistics.splits[2].massive.rows == 0
    assert (statistics.splits[3].massive.rows, statistics.splits[3].massive.chunks) == (2, [7])
    assert (statistics.splits[2].fit.rows, statistics.splits[3].fit.rows) == (200, 198)


def test_rows_without_a_norm_do_not_make_others_massive() -> None:
    values = activations(200, seed=4)
    values[Site(2, "input", WIDTH)][:120] = 0
    statistics = collected(values)
    assert statistics.splits[2].massive.rows == 0
    assert statistics.splits[2].fit.rows == 200
    values[Site(2, "input", WIDTH)][:] = 0
    assert collected(values).splits[2].massive.rows == 0


def test_nonfinite_rows_are_counted_by_layer_and_left_out() -> None:
    values = activations(30, seed=5)
    clean = collected(part(values, 0, 29))
    values[Site(4, "attn_k", 4)][29, 1] = np.nan
    values[Site(5, "input", WIDTH)][29, 0] = -np.inf
    statistics = Statistics.empty(BASE, Settings("none", skip_first=0), SPLITS, SITES)
    statistics.add_block(values, chunk=50)
    assert {layer: (bad.rows, bad.chunks) for layer, bad in statistics.nonfinite.items()} == {
        4: (1, [50]),
        5: (1, [50]),
    }
    assert_equal(clean, statistics)


def test_nonfinite_row_is_an_error_on_request() -> None:
    values = activations(30, seed=5)
    values[Site(4, "attn_k", 4)][3] = np.inf
    statistics = Statistics.empty(BASE, Settings("none"), SPLITS, SITES)
    with pytest.raises(StatisticsError, match=r"blk\.4\.attn_k: 1 rows not finite in chunk 12"):
        statistics.add_block(values, chunk=12, nonfinite="error")


def test_median_of_norms_is_within_its_bins() -> None:
    histogram = NormHistogram()
    norms = np.exp(np.random.default_rng(0).standard_normal(1001)) * 1e-3
    for block in np.array_split(norms, 7):
        histogram.add(block)
    assert histogram.median() == pytest.approx(np.median(norms), rel=0.012)


def test_file_keeps_every_bit(tmp_path: Path) -> None:
    statistics = collected(activations(40, seed=6), activations(11, seed=7), feature_norm="rms")
    statistics.provenance = {"corpora": ["Größe 文"], "tokens": 51, "documents": 2, "documents_held_out": 1}
    statistics.progress = {"chunks": 2}
    path = tmp_path / "Статистика 統計 😀.npz"
    write_statistics(path, statistics)
    again = read_statistics(path)
    assert_equal(statistics, again, exactly=True)
    assert again.base == statistics.base
    assert again.settings == statistics.settings
    assert again.provenance == statistics.provenance
    assert again.progress == statistics.progress
    assert again.splits[2].sites == statistics.splits[2].sites
    assert [item.name for item in tmp_path.iterdir()] == [path.name]


def test_names_that_are_not_utf8_survive(tmp_path: Path) -> None:
    statistics = collected(activations(20, 1))
    statistics.provenance = {"model": "bad\udcff.gguf"}
    write_statistics(tmp_path / "sums.npz", statistics)
    assert read_statistics(tmp_path / "sums.npz").provenance == statistics.provenance


def test_a_summary_tells_model_splits_and_targets(tmp_path: Path) -> None:
    statistics = collected(activations(20, 1))
    statistics.provenance = {"tokens": 20}
    write_statistics(tmp_path / "sums.npz", statistics)
    summary = read_summary(tmp_path / "sums.npz")
    assert summary.base == BASE
    assert summary.splits == tuple(sorted(SPLITS))
    assert summary.targets == ("proj", "input")
    assert summary.provenance == {"tokens": 20}
    (tmp_path / "bad.npz").write_bytes(b"no sums")
    with pytest.raises(StatisticsError, match="not a statistics file"):
        read_summary(tmp_path / "bad.npz")


def test_going_on_from_a_file_gives_the_same_bits(tmp_path: Path) -> None:
    blocks = [activations(20, seed) for seed in range(4)]
    straight = Statistics.empty(BASE, Settings(), SPLITS, SITES)
    resumed = Statistics.empty(BASE, Settings(), SPLITS, SITES)
    for i, block in enumerate(blocks):
        straight.add_block(block, position=20 * i)
        resumed.add_block(block, position=20 * i)
        write_statistics(tmp_path / "sums.npz", resumed)
        resumed = read_statistics(tmp_path / "sums.npz")
    assert_equal(straight, resumed, exactly=True)


def test_merge_refuses_different_runs() -> None:
    one = collected(activations(10, seed=8))
    with pytest.raises(StatisticsError, match="different settings"):
        merge([one, collected(activations(10, seed=8), feature_norm="rms")])
    other = Statistics.empty(BASE, one.settings, (3,), SITES)
    with pytest.raises(StatisticsError, match="different splits or sites"):
        merge([one, other])
    with pytest.raises(StatisticsError, match="nothing to merge"):
        merge([])


def test_merge_adds_provenance() -> None:
    parts = []
    for name, tokens in (("a", 10), ("b", 20), ("a", 5)):
        item = collected(activations(tokens, seed=tokens))
        item.provenance = {"corpora": [name], "tokens": tokens, "documents": 1, "documents_held_out": 0}
        parts.append(item)
    total = merge(parts)
    assert total.provenance == {"corpora": ["a", "b"], "tokens": 35, "documents": 3, "documents_held_out": 0}
    assert total.splits[2].fit.rows == 35


def rewrite(path: Path, **changes: object) -> None:
    with np.load(path) as arrays:
        kept = {name: arrays[name] for name in arrays.files}
    for name, value in changes.items():
        if value is None:
            del kept[name]
        else:
            kept[name] = value  # type: ignore[assignment]
    np.savez(path, **kept)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("2.fit.xx", None, "array 2.fit.xx is missing"),
        ("2.fit.xx", np.zeros((3, 3)), r"array 2.fit.xx: expected float64 \[12, 12\], found float64 \[3, 3\]"),
        ("3.held.y", np.zeros(40, np.float32), r"array 3.held.y: expected float64"),
        ("3.fit.x", np.full(12, np.nan), "array 3.fit.x: value that is not finite"),
        ("header", None, "not a statistics file"),
        ("header", np.frombuffer(b"{", np.uint8), "not a statistics file"),
    ],
)
def test_malformed_file_is_named(tmp_path: Path, name: str, value: object, message: str) -> None:
    path = tmp_path / "sums.npz"
    write_statistics(path, collected(activations(10, seed=9)))
    rewrite(path, **{name: value})
    with pytest.raises(StatisticsError, match=message):
        read_statistics(path)


def test_truncated_foreign_and_missing_files(tmp_path: Path) -> None:
    path = tmp_path / "sums.npz"
    write_statistics(path, collected(activations(10, seed=9)))
    path.write_bytes(path.read_bytes()[:-100])
    for bad in (path, Path(__file__), tmp_path / "none.npz"):
        with pytest.raises(StatisticsError, match=bad.name):
            read_statistics(bad)


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sums.npz"
    write_statistics(path, collected(activations(10, seed=9)))
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(Exception, match="No space left"):
        write_statistics(path, collected(activations(12, seed=9)))
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["sums.npz"]


def test_memory_estimate_counts_the_sums() -> None:
    statistics = collected(activations(10, seed=9))
    held = sum(
        getattr(sums, name).nbytes
        for item in statistics.splits.values()
        for sums in (item.fit, item.held)
        for name in ARRAYS
    )
    assert held <= estimate_bytes(SITES, SPLITS, WIDTH, 0) <= 1.01 * held
    assert isinstance(Sums.zeros(3, 4).xx, np.ndarray)
