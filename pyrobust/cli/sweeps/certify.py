"""``pyrobust certify``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyrobust.cli.sweep_command import Call, sweep_command
from pyrobust.errors import InputError
from pyrobust.runs.kinds.certify import Certify, Sequential
from pyrobust.runs.kinds.verify import Verify

if TYPE_CHECKING:
    from pyrobust.runs.run import Run
    from pyrobust.smoothing import RandomizedSmoothing

_ADVICE = "to prove bounds of the network itself, run pyrobust verify without --sigma"
_OF_VERIFY = {name: (option, "verify", _ADVICE) for name, option in Verify.options.items()}


@sweep_command(Certify, Sequential, elsewhere=_OF_VERIFY)
def certify(call: Call) -> Run:
    """Certify a classifier on a data set by randomized smoothing.

    The certificates hold for the smoothed classifier; to certify the network itself, use pyrobust verify. Results are
    saved as they come: after a crash or Ctrl-C, run the same command again to resume.

    Example: pyrobust certify --model zoo:digits-smooth-0.25 --data digits --sigma 0.25 --n 10000

    Example: pyrobust certify --model zoo:digits-smooth-0.25 --data digits --sigma 0.25 --method sequential --radii 0.25
    """
    sequential = call.chosen("radii", "hybrid", "two_class")
    from pyrobust.evaluation import certify_dataset
    from pyrobust.smoothing.checks import check_sampling, radii_to_decide

    check_sampling(call["method"], **sequential)
    if call["method"] == Sequential.layout:
        radii_to_decide(call["radii"])
    smoother = load_smoother(call)
    sampling = call.chosen("n0", "n", "alpha", "method", *sequential)
    names = [f"sigma{call['sigma']:g}", *_sequential_name(**sequential), f"n{call['n']}"]
    with call.running(*names) as settings:
        run = certify_dataset(smoother, call.images, **sampling, settings=settings)
    return run


def load_smoother(call: Call) -> RandomizedSmoothing:
    """Load the model, and make its smoothed classifier for the images."""
    import torch

    from pyrobust.evaluation.sweep import probing
    from pyrobust.runner import Runner
    from pyrobust.smoothing import RandomizedSmoothing

    images, channels, noise = call.images, call["normalize"], call["noise"]
    if channels is not None and len(channels[0]) != images.shape[0]:
        raise InputError(
            "--normalize", f"a mean and a std for each channel of the images, {images.shape[0]}", len(channels[0])
        )
    net = call.load_model()
    dtype = None if call["dtype"] is None else getattr(torch, call["dtype"])
    runner = Runner(net, device=call.device, dtype=dtype)
    with probing(images.shape):
        outputs = runner.count_classes(images.read([0])[0])
    if call["num_classes"] not in (None, outputs):
        raise InputError("--num-classes", f"the number of the model's outputs, {outputs}", call["num_classes"])
    return RandomizedSmoothing(
        net,
        outputs,
        norm="l2" if noise == "gaussian" else "l1",
        normalize=channels,
        device=call.device,
        dtype=dtype,
        **call.chosen("sigma", "noise", "seed", "grid"),
    )


def _sequential_name(radii: list[float] | None, hybrid: float | None, two_class: bool) -> list[str]:
    """Return the parts of a run's name that describe sequential sampling."""
    if radii is None:
        return []
    name = [Sequential.layout, f"r{','.join(f'{radius:g}' for radius in radii)}"]
    return name + ([] if hybrid is None else [f"hybrid{hybrid:g}"]) + (["two-class"] if two_class else [])
