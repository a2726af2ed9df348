"""AutoAttack with and without ``certify_first``: the same robust accuracy, rows of the model and CPU seconds.

PYROBUST_DATA=... python bench/certify_first.py [--only TEXT] [--queries N] [--images N] [--proofs] [--json FILE]

Version "standard", seed 0, one thread. Rows are counted by a hook on the net. Each run has a process of its own, so the
seconds count the import of the bounds and the capture of the net. --queries replaces Square's 5000. Cases are added to
an existing file, in place of older ones. --proofs measures the proofs alone, three times in one process, of which the
first imports what they need.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import nets
import torch

from pyrobust.attacks import AutoAttack
from pyrobust.attacks.certified_first import proved_robust
from pyrobust.microbench.timing import describe_machine
from pyrobust.zoo import load_data, load_model

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


def _loaded(name: str, most: int) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    torch.set_num_threads(1)
    if name.startswith("zoo:"):
        data = load_data("digits")
        net, x, y = load_model(name), data.x, data.y
    else:
        net, x, y = nets.load(name, Path(os.environ["PYROBUST_DATA"]))
    return net.eval(), x[:most], y[:most]


def proved(name: str, epsilon: str, most: int) -> dict[str, Any]:
    """Run the proofs alone, three times; return their number and CPU seconds."""
    net, x, y = _loaded(name, most)
    net(x)
    seconds = []
    for _ in range(3):
        start = time.process_time()
        found = proved_robust(net, x, y, float(Fraction(epsilon)))
        seconds.append(round(time.process_time() - start, 2))
    return {"images": len(x), "proved": int(found.proved.sum()), "seconds": seconds}


def attacked(name: str, epsilon: str, most: int, queries: int, certify_first: bool) -> dict[str, Any]:
    """Run one attack; return what it found and what it took, and a hash of its points."""
    net, x, y = _loaded(name, most)
    rows = 0

    def count(module: Any, arguments: Any, output: torch.Tensor) -> None:
        nonlocal rows
        rows += len(output)

    net.register_forward_hook(count)
    attack = AutoAttack(net, float(Fraction(epsilon)), certify_first=certify_first)
    attack.attacks["square"].__dict__["n_queries"] = queries
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
        "rows": rows,
        "seconds": round(seconds, 2),
        "points sha256": hashlib.sha256(x_adv.numpy().tobytes()).hexdigest()[:16],
        "broken_by": list(result.broken_by),
        **({} if proofs is None else {"proved": sum(proofs.proved), "rows saved, at least": proofs.rows_saved}),
        **({} if proofs is None else {"proof wall seconds": round(proofs.seconds, 2), "reason": proofs.reason}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--queries", type=int, default=5000)
    parser.add_argument("--images", type=int, default=10**6, help="images at most")
    parser.add_argument("--proofs", action="store_true", help="the proofs alone")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    if arguments.json and arguments.json.exists():
        results = json.loads(arguments.json.read_text())["results"]
    for name, epsilon, most in _CASES:
        if arguments.only not in f"{name} {epsilon}":
            continue
        case = name, epsilon, min(most, arguments.images), arguments.queries
        if arguments.proofs:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                results[f"{name} {epsilon}, proofs alone"] = pool.submit(proved, *case[:3]).result()
            _write(arguments.json, results)
            continue
        runs = []
        for certify_first in (False, True):
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                runs.append(pool.submit(attacked, *case, certify_first).result())
        plain, first = runs
        same = {"same robust accuracy": plain["accuracy"] == first["accuracy"]}
        same |= {"same attack on every image": plain.pop("broken_by") == first.pop("broken_by")}
        same |= {"same points": plain["points sha256"] == first["points sha256"]}
        ratios = {part: round(plain[part] / max(first[part], 0.01), 2) for part in ("rows", "seconds")}
        budget = {"queries of Square": arguments.queries, "command": shlex.join(["python", *sys.argv])}
        results[f"{name} {epsilon}"] = {**budget, "plain": plain, "certify_first": first, **same, "times fewer": ratios}
        print(f"{name} {epsilon}: {results[f'{name} {epsilon}']}", flush=True)
        _write(arguments.json, results)


def _write(file: Path | None, results: dict[str, Any]) -> None:
    """Write what there is, after each case: a run of all takes long."""
    content = {"machine": describe_machine(torch.device("cpu")) | {"threads": 1}, "results": results}
    if file is not None:
        file.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
