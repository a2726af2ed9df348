"""``pyrobust predict``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyrobust.cli.sweep_command import Call, sweep_command
from pyrobust.cli.sweeps.certify import load_smoother
from pyrobust.runs.kinds.predict import Predict

if TYPE_CHECKING:
    from pyrobust.runs.run import Run


@sweep_command(Predict)
def predict(call: Call) -> Run:
    """Predict a data set with a smoothed classifier.

    Abstains on images whose samples do not decide the class. Results are saved as they come: after a crash or Ctrl-C,
    run the same command again to resume.

    Example: pyrobust predict --model zoo:digits-smooth-0.25 --data digits --sigma 0.25 --n 1000
    """
    smoother = load_smoother(call)
    from pyrobust.evaluation import predict_dataset

    with call.running(f"sigma{call['sigma']:g}", f"n{call['n']}") as settings:
        run = predict_dataset(smoother, call.images, **call.chosen("n", "alpha"), settings=settings)
    return run
