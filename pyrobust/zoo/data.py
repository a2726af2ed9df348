"""Loading data sets by name."""

from __future__ import annotations

from pyrobust.checks import integer
from pyrobust.errors import InputError, InputTypeError
from pyrobust.zoo.digits import load_digits
from pyrobust.zoo.image_set import LabelledImages

FORMS = (
    "digits[:train|:all], mnist:DIR[:train|:test], npz:FILE[:IMAGES,LABELS], folder:DIR, "
    "parquet:PATH, hf:PATH[:SPLIT], tar:PATTERN[:EXTENSION], module:callable"
)
FILE_FORMS = ("mnist", "npz", "folder", "parquet", "hf", "tar")


def load_data(spec: str, most: int | None = None) -> LabelledImages:
    """Load the labelled images named by a spec.

    Args:
        spec: one of

            - ``digits``, ``digits:train``, ``digits:all``: the bundled handwritten digits (`load_digits`); ``digits``
              is the test split;
            - ``mnist:DIR``, ``mnist:DIR:train``: IDX files, gzipped or not (`load_mnist`);
            - ``npz:FILE``, ``npz:FILE:IMAGES,LABELS``: the arrays x and y, or the arrays IMAGES and LABELS
              (`load_npz`);
            - ``folder:DIR``: one subfolder of PNG or JPEG files per class (`load_folder`), or images saved by
              `save_images`;
            - ``parquet:PATH``: Parquet files (`load_parquet`); ``hf:PATH``, ``hf:PATH:SPLIT``: a data set saved by
              Hugging Face's ``save_to_disk`` (`load_hugging_face`); ``tar:PATTERN``, ``tar:PATTERN:EXTENSION``: tar
              shards of WebDataset, where EXTENSION is that of the pictures (`load_tar`). The images of these forms are
              read on demand;
            - ``module:callable``: user code, imported with the working directory on the path and called without
              arguments. The callable returns a `LabelledImages`, a pair (x, y) or an iterable of pairs. Each pair of an
              iterable is an image [C, H, W] with its label, or a batch [N, C, H, W] with labels [N]. Floats may have
              any range; float64 is rounded to float32, as by `as_image_set`. uint8 is divided by 255.
        most: largest number of images to read, at least 1. It is used only if the data are a user's iterable without a
            length, such as an endless generator. All other data are read completely. By default, all images are read.

    Returns:
        The images and labels: an `ImageSet`, or a `LazyImages` for files that are read as needed.

    Raises:
        InputError: the spec does not have one of the forms above, or the user's callable returns another object.
        InputTypeError: the spec is not a string, or the user's object is not callable.
        FileFormatError: a file is missing, damaged or refused.
        MissingExtraError: Pillow is needed to read pictures, or pyarrow to read tables, and is not installed.

    >>> data = load_data("digits")
    >>> len(data), data.shape, data.num_classes
    (382, (1, 8, 8), 10)
    """
    if not isinstance(spec, str):
        raise InputTypeError("data", problem=f"expected a string, one of {FORMS}; got {type(spec).__name__}")
    if most is not None:
        integer("most", most, least=1)
    kind, colon, location = spec.partition(":")
    if kind == "digits":
        return load_digits(location if colon else "test")
    if kind in FILE_FORMS:
        if not location:
            raise InputError("data", problem=f"expected one of {FORMS}; got {spec!r} without a path")
        # Imported here: the readers of all formats, none of which most programs need.
        from pyrobust.zoo.data_files import load_files

        return load_files(kind, location, spec)
    if not colon:
        raise InputError("data", problem=f"expected one of {FORMS}; got {spec!r}")
    from pyrobust.zoo.user_data import load_from_code

    return load_from_code(spec, most, FORMS)
