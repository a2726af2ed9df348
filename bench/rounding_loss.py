"""How much rounding errors widen bounds: sound ones against plain floating-point ones of the same method.

python bench/rounding_loss.py [--only TEXT] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from nets import load
from torch import Tensor, nn
from wide_nets import WIDE_NETS, vgg11, wide_net

from pyrobust import BoundedModel
from pyrobust.microbench.timing import describe_machine

_SMALL = ("mnist_6_100", "mnist_cnn_a_adv", "cifar_resnet2b", "cifar_resnet4b", "cifar_conv_small_sigmoid", "oval_base")
_EPSILONS = {"1/255": 1 / 255, "0.1/255": 0.1 / 255, "0.02/255": 0.02 / 255}


def nets() -> dict[str, tuple[nn.Module, Tensor, tuple[str, ...]]]:
    """Name → (net, images, methods); CROWN of the wide ones takes minutes."""
    data = os.environ.get("PYROBUST_DATA")
    result: dict[str, tuple[nn.Module, Tensor, tuple[str, ...]]] = {}
    for name in _SMALL:
        net, x, _ = load(name, Path(data) if data else None)
        result[name] = net, x[:2], ("ibp", "crown-ibp", "crown")
    torch.manual_seed(0)
    for name, (_, shape) in WIDE_NETS.items():
        result[name] = wide_net(name), torch.rand(2, *shape), ("ibp", "crown-ibp")
    x = torch.rand(2, 3, 32, 32)
    result["VGG-11"] = vgg11().eval().requires_grad_(False), x, ("ibp", "crown-ibp")
    result["VGG-11 in float64"] = vgg11().eval().requires_grad_(False).double(), x.double(), ("ibp", "crown-ibp")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="nets whose name contains this text")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, (net, x, methods) in nets().items():
        if args.only not in name:
            continue
        bounded = BoundedModel(net, x[:1])
        for method in methods:
            for text, epsilon in _EPSILONS.items():
                begin = time.process_time()
                sound = bounded.bounds(x, epsilon, method=method)
                seconds = time.process_time() - begin
                plain = bounded.bounds(x, epsilon, method=method, sound=False)
                loss = (sound.upper - sound.lower).sum() / (plain.upper - plain.lower).sum() - 1
                rows.append({"net": name, "method": method, "epsilon": text, "percent": 100 * float(loss)})
                print(
                    f"{name}, {method}, {text}: {rows[-1]['percent']:.3f} % wider, {seconds:.2f} s of CPU", flush=True
                )
    if args.json:
        command = "python bench/rounding_loss.py " + shlex.join(sys.argv[1:])
        figures = {"command": command, "machine": describe_machine(torch.device("cpu")), "widths": rows}
        args.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
