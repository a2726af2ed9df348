"""AutoAttack with and without ``certify_first``: the same robust accuracy, rows of the model and CPU seconds.

Version "standard", seed 0, one thread. Rows are counted by a hook on the net. Each run has a process of its own, so the
seconds count the import of the bounds and the capture of the net. --queries replaces Square's 5000. Cases are added to
those of an existing file of --json, in place of older ones. --proofs measures the proofs alone, three times in one
process, of which the first imports what they need. Needs PYROBUST_DATA but for the bundled nets.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import sys
import time
from fractions import Fraction
from typing import Any

import nets
import torch
from study import Results, separately

from pyrobust.attacks import AutoAttack
from pyrobust.attacks.certified_first import proved_robust

# (net of the zoo or of bench/nets.py, epsilon in linf, images at most)
_CASES = (
    ("zoo:digits-ibp-0.10", "0.1", 400),
    ("oval_base", "2/255", 200),
    ("mnist_cnn_a_adv", "0.1", 200),
    ("cifar_resnet2b", "1/255", 200),
    ("mnist_cnn_a_adv", "0.3", 200),
    ("mnist_cnn_a_adv", "0.2", 200),
    ("mnist_6_100", "0.026", 200),
    ("zoo:digits-smooth-0.25", "0.02", 100),
    ("zoo:digits-smooth-0.50", "0.02", 100),
    ("cifar_resnet4b", "1/255", 50),
)


def _loaded(name: str, images: int) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    torch.set_num_threads(1)
    net, x, y = nets.load(name.removeprefix("zoo:"), None if name.startswith("zoo:") else nets.folder())
    return net, x[:images], y[:images]


def proved(name: str, epsilon: str, images: int) -> dict[str, Any]:
    """Run the proofs alone, three times; return their number and CPU seconds."""
    net, x, y = _loaded(name, images)
    net(x)
    seconds = []
    for _ in range(3):
        start = time.process_time()
        verdicts = proved_robust(net, x, y, float(Fraction(epsilon)))
        seconds.append(round(time.process_time() - start, 2))
    return {"images": len(x), "proved": int(verdicts.proved.sum()), "seconds": seconds}


def attacked(name: str, epsilon: str, images: int, queries: int, certify_first: bool) -> dict[str, Any]:
    """Run one attack; return what it found and what it took, and a hash of its points."""
    net, x, y = _loaded(name, images)
    attack = AutoAttack(net, float(Fraction(epsilon)), certify_first=certify_first)
    attack.attacks["square"].__dict__["n_queries"] = queries
    with nets.counted(net) as rows:
        start = time.process_time()
        x_adv = attack.generate(x, y)
        seconds = time.process_time() - start
    result = attack.result
    assert result is not None
    proofs = result.certified_first
    return {
        "images": len(x),
        "accuracy": result.accuracy,
        "robust": sum(by is None for by in result.broken_by),
        "rows": rows(),
        "seconds": round(seconds, 2),
        "points sha256": hashlib.sha256(x_adv.numpy().tobytes()).hexdigest()[:16],
        "broken_by": list(result.broken_by),
        **({} if proofs is None else {"proved": sum(proofs.proved), "rows saved, at least": proofs.rows_saved}),
        **({} if proofs is None else {"proof wall seconds": round(proofs.seconds, 2), "reason": proofs.reason}),
    }


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="")
    parser.add_argument("--queries", type=int, default=5000)
    parser.add_argument("--images", type=int, default=10**6, help="images at most")
    parser.add_argument("--proofs", action="store_true", help="the proofs alone")


def measure(options: argparse.Namespace) -> Results:
    torch.set_num_threads(1)
    if options.json and options.json.exists():
        yield from json.loads(options.json.read_text())["results"].items()
    for name, epsilon, images in _CASES:
        if options.only not in f"{name} {epsilon}":
            continue
        case = name, epsilon, min(images, options.images)
        if options.proofs:
            yield f"{name} {epsilon}, proofs alone", separately(proved, *case)
            continue
        plain, first = (separately(attacked, *case, options.queries, proofs) for proofs in (False, True))
        yield (
            f"{name} {epsilon}",
            {
                "queries of Square": options.queries,
                "command": shlex.join(["python", "bench/study.py", *sys.argv[1:]]),
                "plain": plain,
                "certify_first": first,
                "same robust accuracy": plain["accuracy"] == first["accuracy"],
                "same attack on every image": plain.pop("broken_by") == first.pop("broken_by"),
                "same points": plain["points sha256"] == first["points sha256"],
                "times fewer": {key: round(plain[key] / max(first[key], 0.01), 2) for key in ("rows", "seconds")},
            },
        )
    return {"command": "one for each row"}
