"""How much rounding errors widen bounds: sound ones against plain floating-point ones of the same method."""

from __future__ import annotations

import argparse

import nets
import torch
from studies.bounds.wide_nets import WIDE_NETS, vgg11, wide_net
from study import Results
from torch import Tensor, nn

from pyrobust import BoundedModel

_SMALL = ("mnist_6_100", "mnist_cnn_a_adv", "cifar_resnet2b", "cifar_resnet4b", "cifar_conv_small_sigmoid", "oval_base")
_EPSILONS = {"1/255": 1 / 255, "0.1/255": 0.1 / 255, "0.02/255": 0.02 / 255}


def all_nets() -> dict[str, tuple[nn.Module, Tensor, tuple[str, ...]]]:
    """Name → (net, images, methods); CROWN of the wide ones takes minutes."""
    result: dict[str, tuple[nn.Module, Tensor, tuple[str, ...]]] = {}
    for name in _SMALL:
        net, x, _ = nets.load(name)
        result[name] = net, x[:2], ("ibp", "crown-ibp", "crown")
    torch.manual_seed(0)
    for name, (_, shape) in WIDE_NETS.items():
        result[name] = wide_net(name), torch.rand(2, *shape), ("ibp", "crown-ibp")
    x = torch.rand(2, 3, 32, 32)
    result["VGG-11"] = vgg11().eval().requires_grad_(False), x, ("ibp", "crown-ibp")
    result["VGG-11 in float64"] = vgg11().eval().requires_grad_(False).double(), x.double(), ("ibp", "crown-ibp")
    return result


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", help="nets whose name contains this text")


def measure(options: argparse.Namespace) -> Results:
    torch.set_num_threads(1)
    for name, (net, x, methods) in all_nets().items():
        if options.only not in name:
            continue
        bounded = BoundedModel(net, x[:1])
        for method in methods:
            for text, epsilon in _EPSILONS.items():
                sound, plain = (bounded.bounds(x, epsilon, method=method, sound=sound) for sound in (True, False))
                loss = (sound.upper - sound.lower).sum() / (plain.upper - plain.lower).sum() - 1
                yield {"net": name, "method": method, "epsilon": text, "percent": 100 * float(loss)}
