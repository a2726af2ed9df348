"""Identify the model of a run by its code and by its logits on fixed noisy inputs."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from pyrobust.machine import processor_name
from pyrobust.ops.sample_noise import sample_noise
from pyrobust.runner import Runner
from pyrobust.runs.identity import LOGITS, PROBES, Identity
from pyrobust.zoo import code_hash

_SIGMA = 0.25


def identify(runner: Runner, image: Tensor, *, pinned: bool = False) -> Identity:
    """Identify a model by its code, and by its logits on noisy copies of an image.

    Args:
        runner: runner of the model.
        image: [...], float.
        pinned: whether to use only bitwise reproducible kernels.

    Returns:
        The identity. If two forward passes give different bits, it has no ``bits``; if their logits differ by more than
        the tolerance, it has no logits either. Without ``pinned``, it has no ``bits`` on a GPU.

    >>> identify(Runner(torch.nn.Identity()), torch.ones(2)).code
    ()
    """
    x = image.detach().cpu().float()[None]
    x = sample_noise(x, [(0, 0, 0, PROBES)], sigma=_SIGMA, noise="gaussian", stage="predict", seed=0)
    with runner.session(gradients=True, pinned=pinned):
        passes = [_seeded(runner.device, lambda: runner.logits(runner.batch(x).to(runner.dtype))) for _ in range(2)]
    digest = code_hash(runner.model)
    first, again = (
        Identity(
            code=(digest,) if digest else (),
            machine=_machine(runner),
            bits=hashlib.sha256(logits.numpy().tobytes()).hexdigest(),
            logits=tuple(
                tuple(value if math.isfinite(value) else None for value in row) for row in logits[:, :LOGITS].tolist()
            ),
            tolerance=torch.finfo(runner.dtype).eps ** 0.5,
        )
        for logits in (output.detach().cpu().double() for output in passes)
    )
    # Unless kernels are pinned, a GPU may choose different ones in another pass.
    if first == again and (pinned or runner.device.type == "cpu"):
        return first
    first = replace(first, bits="")
    return replace(first, logits=()) if first.differences(again) else first


def _seeded(device: torch.device, run: Callable[[], Tensor]) -> Tensor:
    """Call ``run`` with seeded torch generators, and restore the generators' state afterwards."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        return run()


def _machine(runner: Runner) -> str:
    """Describe the hardware, threads and software that determine the bits of a forward pass."""
    if runner.device.type == "cuda":
        hardware = torch.cuda.get_device_name(runner.device)
    else:
        hardware = f"{processor_name()}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
    return f"{hardware}, torch {torch.__version__}"
