"""Bundled data and small nets, and loaders for user models and data.

>>> from pyrobust.zoo import load_data, load_model
>>> digits = load_data("digits")
>>> model = load_model("zoo:digits-smooth-0.25")
>>> model(digits.x[:5]).argmax(1).shape
torch.Size([5])
"""

from __future__ import annotations

from pyrobust.zoo.code_hash import code_hash
from pyrobust.zoo.data import as_image_set, load_data
from pyrobust.zoo.digits import load_digits
from pyrobust.zoo.hashing import model_hash
from pyrobust.zoo.image_set import ImageSet, LabelledImages
from pyrobust.zoo.lazy import LazyImages, load_hugging_face, load_parquet, load_tar
from pyrobust.zoo.models import list_models, load_model
from pyrobust.zoo.nets import digits_convnet
from pyrobust.zoo.saved_images import save_images
from pyrobust.zoo.weights import load_weights, read_state_dict, save_state_dict

__all__ = [
    "ImageSet",
    "LabelledImages",
    "LazyImages",
    "as_image_set",
    "code_hash",
    "digits_convnet",
    "list_models",
    "load_data",
    "load_digits",
    "load_hugging_face",
    "load_model",
    "load_parquet",
    "load_tar",
    "load_weights",
    "model_hash",
    "read_state_dict",
    "save_images",
    "save_state_dict",
]
