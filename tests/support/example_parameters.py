"""Valid parameters of small runs of every layout."""

from __future__ import annotations

from typing import Any


def example(layout: str) -> dict[str, Any]:
    """Return valid parameters of a small run of a layout."""
    method: dict[str, Any] = {
        "sigma": 0.25,
        "noise": "gaussian",
        "norm": "l2",
        "normalize": None,
        "n": 1000,
        "alpha": 0.001,
    }
    if layout == "sequential":
        method |= {"radii": [0.25, 0.5], "hybrid": 0.01, "two_class": False}
    if layout in ("attack", "minimum", "certified-first"):
        method = {
            "attack": "FGSM",
            "norm": "linf",
            **({"minimum": True} if layout == "minimum" else {"epsilon": 0.25}),
            **({"certify_first": True} if layout == "certified-first" else {}),
            "clip": [0.0, 1.0],
            "settings": {"loss": "ce"},
            "targeted": False,
            "examples": True,
            "shape": [1, 2, 2],
            "example_dtype": "float32",
        }
    if layout in ("verify", "sandwich"):
        extra = {"largest": None, "sound": True} if layout == "verify" else {}
        method = extra | {
            "method": "cascade",
            "norm": "linf",
            "epsilons": [0.1, 0.2],
            "clip": [0.0, 1.0],
            "semantics": "real",
            "attack": None if layout == "verify" else "FMN",
            "settings": {},
            "examples": layout == "sandwich",
            "shape": [1, 2, 2],
            "example_dtype": "float32",
        }
    if layout == "smoothed-sandwich":
        method |= {
            "n0": 100,
            "n_attack": 1000,
            "alpha_attack": 0.001,
            "clip": [0.0, 1.0],
            "attack": "SmoothedAttack",
            "settings": {},
            "examples": True,
            "shape": [1, 2, 2],
            "example_dtype": "float32",
        }
    return {
        "num_classes": 10,
        **method,
        "seed": 0,
        "dtype": "float32",
        "memory_format": "contiguous_format",
        "images": 20,
        "skip": 1,
        "max": None,
        "shard": None,
        "batch_size": 256,
        **({} if layout == "sequential" else {"chunk": 4}),
        "device": "cpu",
        **({"n0": 100, "method": "fixed"} if layout == "certify" else {}),
        **({"n0": 100, "method": "sequential"} if layout == "sequential" else {}),
    }
