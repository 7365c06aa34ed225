from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from synthetic import BASE, SITES, SPLITS, WIDTH, Relation, activations, collected

from pyridgefill.calibration.fit import FitOptions, fit_maps
from pyridgefill.calibration.statistics import Statistics
from pyridgefill.calibration.sums import Settings
from pyridgefill.errors import StatisticsError
from pyridgefill.maps import MapSet, Recommended, Site, read_maps, write_maps


def predict(maps: MapSet, split: int, site: Site, x: np.ndarray) -> np.ndarray:
    """What docs/map-format.md says the engine computes."""
    item = next(item for item in maps.maps if (item.split, item.layer, item.site) == (split, site.layer, site.name))
    r = np.ones((len(x), 1))
    if maps.feature_norm == "rms":
        r = np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + maps.feature_norm_eps)
    if item.weight is not None:
        value = (x / r) @ item.weight[:].T
    else:
        assert item.weight_a is not None
        assert item.weight_b is not None
        value = ((x / r) @ item.weight_a[:].T) @ item.weight_b[:].T
    if item.bias is not None:
        value = value + item.bias[:]
    return value * r if site.name == "input" else value


@pytest.mark.parametrize("target", ["proj", "input"])
def test_maps_predict_a_linear_model(tmp_path: Path, target: str) -> None:
    relation = Relation.random()
    statistics = collected(activations(400, 1, relation), activations(60, 2, relation))
    maps = fit_maps(statistics, FitOptions(target=target), splits=[2])  # type: ignore[arg-type]
    write_maps(tmp_path / "maps.gguf", maps, weight_type="f32")
    again = read_maps(tmp_path / "maps.gguf")
    assert all(item.r2 > 0.9999 for item in again.maps)
    fresh = activations(30, 3, relation)
    sites = [site for site in SITES if site.layer > 2 and (site.name == "input") == (target == "input")]
    assert [(item.layer, item.site) for item in again.maps] == [(site.layer, site.name) for site in sites]
    for site in sites:
        predicted = predict(again, 2, site, fresh[Site(2, "input", WIDTH)])
        np.testing.assert_allclose(predicted, fresh[site], atol=2e-3)


@pytest.mark.parametrize("target", ["proj", "input"])
def test_maps_on_normalised_features(target: str) -> None:
    """With RMS features y/r (or y) is linear in x/r; rows of very different size are all predicted."""
    relation = Relation.random(1)

    def rows(n: int, seed: int) -> dict[Site, np.ndarray]:
        values = activations(n, seed)
        x = values[Site(2, "input", WIDTH)] * np.random.default_rng(seed).uniform(0.3, 3.0, (n, 1))
        values[Site(2, "input", WIDTH)] = x.astype(np.float32)
        r = np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-6)
        for site in SITES:
            if site.layer > 2:
                y = (x / r) @ relation.weight[site].T + relation.bias[site]
                values[site] = (y * r if site.name == "input" else y).astype(np.float32)
        return values

    statistics = collected(rows(400, 1), rows(60, 2), feature_norm="rms")
    maps = fit_maps(statistics, FitOptions(target=target), splits=[2])  # type: ignore[arg-type]
    fresh = rows(20, 3)
    for item in maps.maps:
        site = Site(item.layer, item.site, WIDTH if item.site == "input" else 4)
        assert item.r2 > 0.9999
        np.testing.assert_allclose(predict(maps, 2, site, fresh[Site(2, "input", WIDTH)]), fresh[site], atol=5e-3)


def test_outlier_rows_do_not_hurt() -> None:
    relation = Relation.random()
    clean, held = activations(400, 1, relation, noise=0.1), activations(100, 2, relation, noise=0.1)
    spoiled = activations(400, 1, relation, noise=0.1)
    x = spoiled[Site(2, "input", WIDTH)]
    for row in (3, 200, 399):
        x[row, 1] = 5000.0  # a massive channel that the targets do not follow
    # the fit must not see them; without the guard it does
    guarded, open_ = collected(spoiled, held), collected(spoiled, held, massive_ratio=1e9)
    guarded_r2 = [item.r2 for item in fit_maps(guarded, splits=[2]).maps]
    clean_r2 = [item.r2 for item in fit_maps(collected(clean, held), splits=[2]).maps]
    open_r2 = [item.r2 for item in fit_maps(open_, splits=[2]).maps]
    assert guarded.splits[2].massive.rows == 3
    np.testing.assert_allclose(guarded_r2, clean_r2, atol=1e-3)
    assert max(open_r2) < min(clean_r2) - 0.01


def test_low_rank_maps(tmp_path: Path) -> None:
    relation = Relation.random()
    for site in SITES:
        relation.weight[site] = np.outer(relation.weight[site][:, 0], relation.weight[site][0])
    statistics = collected(activations(400, 1, relation), activations(60, 2, relation))
    maps = fit_maps(statistics, FitOptions(rank=1), splits=[2])
    write_maps(tmp_path / "maps.gguf", maps, weight_type="f16")
    again = read_maps(tmp_path / "maps.gguf")
    assert [split.rank for split in again.splits] == [1]
    assert all(item.weight is None and item.r2 > 0.999 for item in again.maps)
    with pytest.raises(StatisticsError, match=r"2\.blk\.3\.attn_k: rank 4, expected less than 4"):
        fit_maps(statistics, FitOptions(rank=4), splits=[2])


def test_file_carries_settings_and_provenance() -> None:
    statistics = collected(activations(100, 1), activations(30, 2), feature_norm="rms")
    statistics.provenance = {"corpora": ["book.txt"], "tokens": 130}
    maps = fit_maps(statistics, recommended=Recommended(split=3, sink=2, tail=99, min_prompt=500))
    assert maps.recommended == Recommended(3, 2, 99, 500)
    assert (maps.calibration.tokens, maps.calibration.corpora) == (100, ("book.txt",))
    assert (maps.feature_norm, maps.feature_norm_eps) == ("rms", 1e-6)
    assert [split.layer for split in maps.splits] == [2, 3]
    assert fit_maps(statistics).recommended == Recommended(None, 4, 256, 1024)
    assert fit_maps(statistics).defaults().split == 3, "nothing was measured"


def test_too_few_rows_name_the_layers() -> None:
    with pytest.raises(StatisticsError, match=r"split 2, layers 3 to 5: 2 rows to fit, at least 3 are needed"):
        fit_maps(collected(activations(2, 1), activations(2, 2)))


def test_rows_lost_to_a_broken_layer_are_named() -> None:
    values = activations(20, 1)
    values[Site(4, "attn_v", 4)][:] = np.nan
    statistics = Statistics.empty(BASE, Settings(), SPLITS, SITES)
    statistics.add_block(values)
    with pytest.raises(StatisticsError, match=r"0 rows to fit.*20 not finite in layer 4"):
        fit_maps(statistics)


def test_without_held_out_rows_the_damping_must_be_given() -> None:
    statistics = collected(activations(100, 1, Relation.random()))
    with pytest.raises(StatisticsError, match="no held-out rows"):
        fit_maps(statistics)
    maps = fit_maps(statistics, FitOptions(damping=1e-6))
    assert np.isnan(maps.maps[0].r2)
    assert maps.maps[0].damping > 0


def test_unknown_split_and_target() -> None:
    statistics = collected(activations(100, 1), activations(30, 2))
    with pytest.raises(StatisticsError, match=r"split 4 was not collected, the file has \[2, 3\]"):
        fit_maps(statistics, splits=[4])
    only = Statistics.empty(BASE, Settings(), SPLITS, [site for site in SITES if site.name != "input"])
    only.add_block(activations(100, 1))
    only.add_block(activations(100, 2), held_out=True)
    with pytest.raises(StatisticsError, match="target 'input' was not collected"):
        fit_maps(only, FitOptions(target="input"))


def test_features_that_do_not_vary_are_named() -> None:
    values, held = activations(100, 1), activations(30, 2)
    values[Site(3, "input", WIDTH)][:] = 0
    with pytest.raises(StatisticsError, match="split 3: the input of layer 3 is the same in all 100 rows"):
        fit_maps(collected(values, held))
    assert fit_maps(collected(values, held), splits=[2]).maps


def test_a_rank_that_no_map_can_have_is_found_before_any_is_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyridgefill.calibration.ridge.RidgeProblem.solve", None)
    statistics = collected(activations(100, 1), activations(30, 2))
    with pytest.raises(StatisticsError, match=r"2\.blk\.3\.attn_k: rank 4, expected less than 4"):
        fit_maps(statistics, FitOptions(rank=4))
