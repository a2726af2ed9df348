"""Exact distances to decision boundaries: of linear models, and of two-input ReLU nets by enumeration of regions.

Every region is a convex polygon on which the logits are affine. Its part that belongs to another class is again a
polygon, whose distance from a point is attained at a corner or where an edge meets a line on which the norm is smooth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

Array = npt.NDArray[np.float64]
#: (corners [n, 2], slopes [K, 2], offsets [K]) of the values on one region.
Piece = tuple[Array, Array, Array]


def shortest_step(x: Array, w: Array, gap: float, norm: str) -> float:
    """Length of the shortest step within [0, 1] by which w·x rises by the gap; inf where none does."""
    w = w if gap >= 0 else -w
    need, room = abs(gap), np.where(w > 0, 1 - x, x)
    gain, order = abs(w) * room, np.argsort(-abs(w), kind="stable")
    if gain.sum() < need * (1 - 1e-12):
        return math.inf
    if norm == "l0":
        return float((np.cumsum(np.sort(gain)[::-1]) < need).sum() + 1)
    if norm == "l1":  # the largest weights first
        order = order[w[order] != 0]
        before = np.cumsum(gain[order]) - gain[order]
        return float(np.minimum(np.maximum(need - before, 0) / abs(w[order]), room[order]).sum())
    w, room, gain = w[w != 0], room[w != 0], gain[w != 0]
    rate = abs(w) if norm == "l2" else np.ones_like(w)  # coordinate i moves by min(rate·t, room)
    order = np.argsort(room / rate)  # in which the coordinates reach the end of their room
    spent = np.cumsum(gain[order]) - gain[order]
    speed = np.cumsum((abs(w) * rate)[order][::-1])[::-1]
    t = ((need - spent) / speed).max(initial=0.0)  # the gain is concave in t: the least of these lines spent + speed·t
    return float(np.linalg.norm(np.minimum(rate * t, room), 2 if norm == "l2" else np.inf))


def linear_distance(model: nn.Linear, x: Tensor, y: int, norm: str, rivals: Iterable[int] | None = None) -> float:
    """Distance of x [D] within [0, 1] to where the logit of a rival, by default of any other class, is y's."""
    weight, bias = (parameter.detach().double().numpy() for parameter in (model.weight, model.bias))
    point, others = x.double().numpy(), range(len(weight)) if rivals is None else rivals
    slopes = [(weight[rival] - weight[y], bias[rival] - bias[y]) for rival in others if rival != y]
    return min(shortest_step(point, w, -float(w @ point + offset), norm) for w, offset in slopes)


def random_net(seed: int, hidden: int = 12, classes: int = 3) -> nn.Sequential:
    """A net with kinks inside the unit square and classes of similar share."""
    generator = torch.Generator().manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes)
    ).requires_grad_(False)
    for layer in (net[0], net[2], net[4]):
        layer.weight.normal_(0, 2.1 / math.sqrt(layer.in_features), generator=generator)
        layer.bias.normal_(0, 0.7, generator=generator)
    net[0].bias.sub_(net[0].weight.sum(1) / 2)
    net[4].bias.sub_(net(torch.rand(4000, 2, generator=generator)).mean(0))
    return net


def cut(polygon: Array, slope: Array, offset: float) -> Array | None:
    """The part of a convex polygon with slope·z + offset >= 0; None without an interior."""
    values = polygon @ slope + offset
    corners = []
    for i, (p, value) in enumerate(zip(polygon, values, strict=True)):
        j = (i + 1) % len(polygon)
        if value >= 0:
            corners.append(p)
        if value * values[j] < 0:
            corners.append(p + (polygon[j] - p) * (value / (value - values[j])))
    return np.array(corners) if len(corners) >= 3 else None


def regions(net: nn.Sequential) -> list[Piece]:
    """The linear pieces of a net of Linear and ReLU on the unit square."""
    pieces: list[Piece] = [(np.array([[0.0, 0], [1, 0], [1, 1], [0, 1]]), np.eye(2), np.zeros(2))]
    for layer in net:
        if isinstance(layer, nn.Linear):
            weight, bias = layer.weight.double().numpy(), layer.bias.double().numpy()
            pieces = [(polygon, weight @ slopes, weight @ offsets + bias) for polygon, slopes, offsets in pieces]
            continue
        for neuron in range(len(pieces[0][2])):
            halves: list[Piece] = []
            for polygon, slopes, offsets in pieces:
                active = cut(polygon, slopes[neuron], offsets[neuron])
                if active is not None:
                    halves.append((active, slopes, offsets))
                inactive = cut(polygon, -slopes[neuron], -offsets[neuron])
                if inactive is not None:
                    slopes, offsets = slopes.copy(), offsets.copy()
                    slopes[neuron], offsets[neuron] = 0, 0
                    halves.append((inactive, slopes, offsets))
            pieces = halves
    return pieces


def distance_to_other_class(pieces: list[Piece], x: Array, y: int, norm: str) -> float:
    """Distance of x, which the net assigns to y, to the nearest point where another logit is at least y's."""
    best = math.inf
    for polygon, slopes, offsets in pieces:
        for rival in range(len(offsets)):
            if rival != y:
                other = cut(polygon, slopes[rival] - slopes[y], offsets[rival] - offsets[y])
                if other is not None:
                    edges = zip(other, np.roll(other, -1, 0), strict=True)
                    best = min(best, *(_edge_distance(x, p, q, norm) for p, q in edges))
    return best


def _edge_distance(x: Array, p: Array, q: Array, norm: str) -> float:
    edge = q - p
    if norm == "l0":
        return 1.0 if any(min(p[k], q[k]) <= x[k] <= max(p[k], q[k]) for k in (0, 1)) else 2.0
    shares = [0.0, 1.0]
    if norm == "l2":
        shares.append(float((x - p) @ edge / max(edge @ edge, 1e-300)))
    else:  # where a coordinate is x's, and where the two differ from x's by as much
        shares += [(x[k] - p[k]) / edge[k] for k in (0, 1) if edge[k]]
        for sign in (1, -1):
            if edge[0] != sign * edge[1]:
                shares.append(((x[0] - p[0]) - sign * (x[1] - p[1])) / (edge[0] - sign * edge[1]))
    points = [p + share * edge - x for share in shares if 0 <= share <= 1]
    order = {"linf": np.inf, "l2": 2, "l1": 1}[norm]
    return min(float(np.linalg.norm(point, order)) for point in points)
