"""Bundled data and small nets, and loaders for user models and data.

>>> from pyrobust.zoo import load_data, load_model
>>> digits = load_data("digits")
>>> model = load_model("zoo:digits-smooth-0.25")
>>> model(digits.x[:5]).argmax(1).shape
torch.Size([5])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyrobust.late import import_lazily

if TYPE_CHECKING:
    from pyrobust.zoo.code_hash import code_hash as code_hash
    from pyrobust.zoo.data import load_data as load_data
    from pyrobust.zoo.digits import load_digits as load_digits
    from pyrobust.zoo.hashing import model_hash as model_hash
    from pyrobust.zoo.image_set import (
        ImageSet as ImageSet,
        LabelledImages as LabelledImages,
    )
    from pyrobust.zoo.lazy import (
        LazyImages as LazyImages,
        load_hugging_face as load_hugging_face,
        load_parquet as load_parquet,
        load_tar as load_tar,
    )
    from pyrobust.zoo.models import (
        list_models as list_models,
        load_model as load_model,
    )
    from pyrobust.zoo.nets import digits_convnet as digits_convnet
    from pyrobust.zoo.saved_images import save_images as save_images
    from pyrobust.zoo.user_data import as_image_set as as_image_set
    from pyrobust.zoo.weights import (
        load_weights as load_weights,
        read_state_dict as read_state_dict,
        save_state_dict as save_state_dict,
    )

__all__ = import_lazily(
    __name__,
    {
        "pyrobust.zoo.code_hash": "code_hash",
        "pyrobust.zoo.data": "load_data",
        "pyrobust.zoo.digits": "load_digits",
        "pyrobust.zoo.hashing": "model_hash",
        "pyrobust.zoo.image_set": "ImageSet LabelledImages",
        "pyrobust.zoo.lazy": "LazyImages load_hugging_face load_parquet load_tar",
        "pyrobust.zoo.models": "list_models load_model",
        "pyrobust.zoo.nets": "digits_convnet",
        "pyrobust.zoo.saved_images": "save_images",
        "pyrobust.zoo.user_data": "as_image_set",
        "pyrobust.zoo.weights": "load_weights read_state_dict save_state_dict",
    },
)
