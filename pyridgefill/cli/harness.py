"""The lm-eval harness with the model `ridgefill`."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import typer

from pyridgefill.errors import UsageError


def lm_eval(context: typer.Context) -> None:
    """Run the lm-eval harness, with the model `ridgefill` among its models; all options go to it."""
    # registers the model, and says so if the harness is not installed
    from pyridgefill.evaluation.tasks import harness  # noqa: F401  # isort: skip

    from lm_eval.__main__ import cli_evaluate

    sys.argv = ["lm-eval", *context.args]
    try:
        cli_evaluate()
    except (ValueError, TypeError, OSError) as error:
        # of the harness's own options: unknown tasks, files that are no configuration
        place = traceback.extract_tb(error.__traceback__)[-1].filename
        if Path(place).parent.name not in ("config", "_cli"):
            raise
        raise UsageError(f"lm-eval: {error}", "lm-eval ls tasks shows what there is") from error
