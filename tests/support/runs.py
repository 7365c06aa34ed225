"""Whole runs of a model, in this process or in one that has loaded the unpatched library."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support import paths
from support.options import ContextOptions


@dataclass(frozen=True)
class Job:
    """Prompts per sequence, and the number of last rows whose logits are wanted."""

    model: Path
    options: ContextOptions
    prompts: dict[int, list[int]]
    n_logits: int = 64


@dataclass(frozen=True)
class Result:
    """Logits ``[n_logits][n_vocab]`` and the saved state per sequence."""

    logits: dict[int, NDArray[np.float32]]
    states: dict[int, bytes]


def run_stock(jobs: Sequence[Any]) -> list[Any]:
    """Run jobs on the unpatched library, in a process of their own: a process holds one libllama."""
    return run_apart(jobs, {"LLAMA_CPP_LIB_PATH": str(paths.stock_library())})


def run_apart(jobs: Sequence[Any], environment: dict[str, str]) -> list[Any]:
    """Run jobs of this module or of `support.restore` in a process of their own."""
    done = subprocess.run(
        [sys.executable, "-m", "support.runs"],
        input=pickle.dumps(list(jobs)),
        stdout=subprocess.PIPE,
        env=os.environ | environment,
        cwd=Path(__file__).resolve().parents[1],
        check=True,
    )
    return list(pickle.loads(done.stdout))


def run(job: Job, prepare: Callable[..., None] = lambda model, context: None) -> Result:
    """Run a job on the library of this process; ``prepare`` may change the new context."""
    from support.engine import Context, Model  # the library of a process is chosen before this import

    with Model(job.model) as model, Context(model, job.options) as context:
        prepare(model, context)
        logits = context.decode(job.prompts, job.n_logits)
        return Result(logits, {seq: context.state(seq) for seq in job.prompts})


if __name__ == "__main__":
    # the function beside the class of a job; not __main__'s, whose results would not unpickle elsewhere
    _jobs = pickle.loads(sys.stdin.buffer.read())
    sys.stdout.buffer.write(pickle.dumps([sys.modules[type(job).__module__].run(job) for job in _jobs]))
