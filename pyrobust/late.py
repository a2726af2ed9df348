"""Lazy imports: a package's public names, numpy and torch are imported only when they are first used.

A package looks up its public names in a table that gives the module of each name. Type checkers read the package's
import statements below ``if TYPE_CHECKING`` instead.

Some modules hold declarations, such as the parameters of a run, and also functions that need numpy and torch. With late
imports, the command line reads these declarations, for ``--help`` and completion, without numpy and torch.
"""

# Imports only modules that Python has loaded by then: see pyrobust.environment.
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import numpy as numpy
    import torch as torch


class LazyPackage(type(sys)):  # type: ignore[misc]  # is types.ModuleType, without importing types
    """A package with a table of its public names."""

    def __getattr__(self, name: str) -> object:
        """Import a public name, or a submodule."""
        from importlib import import_module

        modules = self.__dict__["_modules_of_names"]
        missing = f"module {self.__name__!r} has no attribute {name!r}"
        if name in modules:
            value: object = getattr(import_module(modules[name]), name)
        elif name.startswith("__"):
            raise AttributeError(missing)
        else:
            module = f"{self.__name__}.{name}"
            try:
                value = import_module(module)
            except ModuleNotFoundError as error:
                if error.name != module:
                    raise
                raise AttributeError(missing) from None
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute, but do not let an imported submodule replace a public name of the same name."""
        if not (name in self.__dict__["_modules_of_names"] and isinstance(value, type(sys))):
            super().__setattr__(name, value)

    def __dir__(self) -> "list[str]":
        return sorted({*self.__dict__, *self.__dict__["__all__"]})


def import_lazily(package: str, names: "dict[str, str]", own_names: str = "") -> "list[str]":
    """Make a package import the given names when they are first used; return the package's ``__all__``.

    ``names`` maps each module to the names that it provides, separated by white space. ``own_names`` holds the names
    that the package itself defines.

    >>> import pyrobust
    >>> "PGD" in pyrobust.__all__, pyrobust.PGD.__name__
    (True, 'PGD')
    """
    module = sys.modules[package]
    module.__dict__["_modules_of_names"] = {name: source for source, words in names.items() for name in words.split()}
    module.__class__ = LazyPackage
    return sorted([*module.__dict__["_modules_of_names"], *own_names.split()])


if not TYPE_CHECKING:

    class _Library(type(sys)):
        def __getattr__(self, name):
            from importlib import import_module

            value = getattr(import_module(self.__name__), name)
            setattr(self, name, value)
            return value

    numpy = _Library("numpy")
    torch = _Library("torch")
