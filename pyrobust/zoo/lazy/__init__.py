"""Data sets that are read from files when a sweep needs their images; memory use does not grow with their size."""

from __future__ import annotations

from pyrobust.zoo.lazy.images import LazyImages
from pyrobust.zoo.lazy.tables import load_hugging_face, load_parquet
from pyrobust.zoo.lazy.tar import load_tar

__all__ = ["LazyImages", "load_hugging_face", "load_parquet", "load_tar"]
