"""The smoothed classifier that options describe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyrobust.errors import InputError

if TYPE_CHECKING:
    from pyrobust.cli.sweep_command import Call
    from pyrobust.smoothing import RandomizedSmoothing


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
    with probing(images.shape), runner.session():
        outputs = runner.logits(images.read([0])[0].to(device=runner.device, dtype=runner.dtype)).shape[1]
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
