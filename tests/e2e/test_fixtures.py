"""The fixtures themselves, on the unpatched library: what a test relies on must hold without RidgeFill."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from support.families import FAMILIES
from support.options import ContextOptions
from support.oracle import output_tensors, zero_tensors
from support.runs import Job, Result, run_stock
from support.tokens import tokens

JOB = {"options": ContextOptions(), "n_logits": 64}


@pytest.fixture(scope="module")
def runs(workshop, tmp_path_factory) -> dict[tuple[str, str], Result]:
    """Each family with two prompts of one ending, as it is, as an ORACLE, and with all other upper layers changed."""
    folder = tmp_path_factory.mktemp("changed")
    jobs: dict[tuple[str, str], Job] = {}
    prompt, other = tokens(300), tokens(236, seed=1) + tokens(300)[236:]
    for name, family in FAMILIES.items():
        live = family.n_layer - 1
        jobs[name, "plain"] = Job(workshop.model(name), prompts={0: prompt}, **JOB)
        jobs[name, "other prompt"] = Job(workshop.model(name), prompts={0: other}, **JOB)
        jobs[name, "oracle"] = Job(workshop.oracle(name, live), prompts={0: prompt}, **JOB)
        changed = change_memory_writes(workshop.oracle(name, live), folder / name, name, live)
        jobs[name, "others changed"] = Job(changed, prompts={0: prompt}, **JOB)
        forgetful = shutil.copyfile(workshop.oracle(name, live), folder / f"{name}.live")
        zero_tensors(forgetful, {f"blk.{layer}.{site}.weight" for layer, site in memory_of(name, live)})
        jobs[name, "live memory zeroed"] = Job(forgetful, prompts={0: prompt}, **JOB)
    return dict(zip(jobs, run_stock(list(jobs.values())), strict=True))


def memory_of(name: str, live: int) -> list[tuple[int, str]]:
    """Projections behind the memory that a layer reads; gemma4's last layers read an earlier one's."""
    sites = FAMILIES[name].sites()
    return [(layer, site) for layer in ([live] if live in sites else [max(sites)]) for site in sites[layer]]


def change_memory_writes(model: Path, path: Path, name: str, live: int) -> Path:
    """Halve the projections of every layer from the split on that the live layer does not read."""
    family = FAMILIES[name]
    keep = {layer for layer, _ in memory_of(name, live)}
    names = {
        f"blk.{layer}.{site}.weight"
        for layer, sites in family.sites().items()
        if layer >= family.split and layer not in keep
        for site in sites
    }
    shutil.copyfile(model, path)
    with path.open("r+b") as file:
        for tensor in gguf.GGUFReader(path).tensors:
            if tensor.name in names:
                file.seek(int(tensor.data_offset))
                file.write((0.5 * np.asarray(tensor.data)).astype(np.float32).tobytes())
    return path


def difference(a: Result, b: Result) -> float:
    return float(np.abs(a.logits[0] - b.logits[0]).max() / a.logits[0].std())


@pytest.mark.parametrize("name", FAMILIES)
def test_a_tiny_model_reads_its_whole_prompt(runs, name):
    assert np.isfinite(runs[name, "plain"].logits[0]).all()
    assert difference(runs[name, "plain"], runs[name, "other prompt"]) > 0.1


@pytest.mark.parametrize("name", FAMILIES)
def test_an_oracle_depends_on_no_upper_layer_but_the_live_one(runs, name):
    assert difference(runs[name, "oracle"], runs[name, "others changed"]) == 0


@pytest.mark.parametrize("name", FAMILIES)
def test_an_oracle_depends_on_the_memory_of_the_live_layer(runs, name):
    assert difference(runs[name, "oracle"], runs[name, "live memory zeroed"]) > 0.1


@pytest.mark.parametrize("name", FAMILIES)
def test_every_layer_has_an_output_that_an_oracle_zeroes(workshop, name):
    assert set(output_tensors(workshop.model(name)).values()) == set(range(FAMILIES[name].n_layer))
