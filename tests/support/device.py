"""What a model computes on the CPU and on a device that computes late, see ggml-ridgefill-delayed.cpp.

A device stays registered, and models could use it, until the process ends: it gets a process of its own.
"""

from __future__ import annotations

import ctypes
import pickle
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from support import paths
from support.options import ContextOptions
from support.tokens import tokens

N, TAIL, SINK, BUDGET = 300, 64, 4, 40

Values = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Case:
    """A model, maps for it, and whether its rows can run again."""

    model: Path
    maps: Path
    split: int
    options: ContextOptions
    reruns: bool


def on_device(case: Case) -> Values:
    """Measure with all layers on the device that computes late."""
    done = subprocess.run(
        [sys.executable, "-m", "support.device"],
        input=pickle.dumps(case),
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parents[1],
        check=True,
    )
    return dict(pickle.loads(done.stdout))


def measure(case: Case, n_gpu_layers: int = 0) -> Values:
    """Everything that is read from memory of the model's device, by name."""
    from pyridgefill.engine import Engine
    from support.engine import Context, Maps, Model

    found: Values = {}
    prompt = tokens(N)
    with Engine(case.model, n_ctx=128, n_ubatch=32, n_threads=1, n_gpu_layers=n_gpu_layers) as engine:
        engine.capture(case.split)
        chunks = [{site: rows.copy() for site, rows in values.items()} for _, values in engine.run(prompt[:100])]
        for site in engine.sites:
            found[f"site {site.layer} {site.name}"] = np.concatenate([chunk[site] for chunk in chunks])

    with ExitStack() as stack:
        model = stack.enter_context(Model(case.model, n_gpu_layers))
        ctx = stack.enter_context(Context(model, case.options))
        maps = Maps(model, case.maps)
        stack.callback(maps.close)
        ctx.set_maps(maps, states="f32" if case.reruns else None)
        stack.callback(ctx.set_maps, None)

        found["exact"] = ctx.decode({0: prompt}, 8)[0]
        ctx.seq_rm(0, -1, -1)
        ctx.mark(0, (SINK, N - TAIL))
        found["filled"] = ctx.decode({0: prompt}, 8)[0]
        if not case.reruns:
            return found

        ctx.clear()
        ctx.mark(0, (SINK, N - TAIL))
        ctx.select(0, "attention", N, TAIL, BUDGET, pool=(5, 5), heads=[(0, 0), (1, 0)])
        found["selected"] = ctx.decode({0: prompt}, 8)[0]
        found["scores"] = ctx.scores(N)
        found["rows"] = np.array(ctx.selected(), np.float32)

        ctx.upper(0, range(SINK, 100))
        found["upper"] = ctx.decode({0: tokens(5, 3)}, 5, {0: N})[0]
        ctx.seq_rm(0, N, -1)
        while ctx.heal(0, 50):
            pass
        found["healed"] = ctx.decode({0: tokens(5, 3)}, 5, {0: N})[0]

        ctx.clear()
        ctx.mark(0, (SINK, N - TAIL))
        ctx.decode({0: prompt})
        state = ctx.state(0)
        ctx.seq_cp(0, 1)
        ctx.seq_rm(0, -1, -1)
        ctx.upper(1, range(SINK, 100))
        found["copied"] = ctx.decode({1: tokens(5, 3)}, 5, {1: N})[1]
        ctx.set_state(0, state)
        found["restored"] = ctx.decode({0: tokens(5, 3)}, 5, {0: N})[0]
    return found


def _main() -> None:
    import llama_cpp

    library = ctypes.CDLL(str(Path(llama_cpp.llama_cpp._lib._name).parent / "libggml.so"))
    library.ggml_backend_load.restype = ctypes.c_void_p
    if not library.ggml_backend_load(str(paths.delayed_device()).encode()):
        raise RuntimeError(f"cannot load {paths.delayed_device()}")
    sys.stdout.buffer.write(pickle.dumps(measure(pickle.loads(sys.stdin.buffer.read()), n_gpu_layers=99)))


if __name__ == "__main__":
    from support.device import _main as main  # not __main__'s, whose cases would not unpickle

    main()
