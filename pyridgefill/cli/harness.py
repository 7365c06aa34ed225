"""The lm-eval harness with the model `ridgefill`."""

from __future__ import annotations

import sys

import typer


def lm_eval(context: typer.Context) -> None:
    """Run the lm-eval harness, with the model `ridgefill` among its models; all options go to it."""
    # registers the model, and says so if the harness is not installed
    from pyridgefill.evaluation.tasks import harness  # noqa: F401  # isort: skip

    from lm_eval.__main__ import cli_evaluate

    sys.argv = ["lm-eval", *context.args]
    cli_evaluate()
