"""The hash of a model's code: edits that it detects, and edits that it ignores."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

from pyrobust.zoo import code_hash, load_model

SOURCES = {
    "netlayers": """
        '''Layers.'''
        SCALE = 2.0
        UNUSED = 1
        TABLE = {}
        TABLE.update(shift=1.0)
        FAST = False
        if FAST:
            POWER = 2
        else:
            POWER = 1
        for EXPONENT in (1, 2):
            pass
        with open(__file__) as NAMED:
            pass

        def block(x):
            return (x * SCALE + TABLE["shift"]) ** POWER ** EXPONENT

        def unused(x):
            return x
    """,
    "netparts.inner": """
        LIMIT = 3.0

        def gate(x):
            return x > LIMIT

        def local(x):
            return x + 1
    """,
    "netmodel": """
        import torch
        from torch import nn
        import netlayers
        import netparts.inner
        from netlayers import SCALE as FACTOR

        class Base(nn.Module):
            def forward(self, x):
                from netparts.inner import local

                y = local(netlayers.block(self.head(x)) + FACTOR)
                return torch.where(netparts.inner.gate(y), y, -y)

        torch.set_num_threads(torch.get_num_threads())

        class Net(Base):
            def __init__(self):
                super().__init__()
                self.head = nn.Linear(4, 2)

        def other():
            return 1

        def patched(x):
            return other()

        function = lambda x: x + other()
    """,
}


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """Write the sources, each text of a file replaced as asked, and return the imported ``netmodel``."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(file: str = "netmodel", old: str = "", new: str = "") -> object:
        for name, source in SOURCES.items():
            text = textwrap.dedent(source)
            assert name != file or old in text
            path = tmp_path / f"{name.replace('.', '/')}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text.replace(old, new) if name == file and old else text)
        for name in (*SOURCES, "netparts"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module("netmodel")

    yield write
    for name in (*SOURCES, "netparts"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("file", "old", "new", "noticed"),
    [
        ("netmodel", "self.head(x)) + FACTOR", "self.head(x)) - FACTOR", True),  # the class's base
        ("netlayers", "x * SCALE", "x / SCALE", True),  # a function of another file
        ("netlayers", "SCALE = 2.0", "SCALE = 2.5", True),  # a constant that it reads
        ("netmodel", "class Net(Base)", "class Net(Base, metaclass=type)", True),
        ("netparts.inner", "LIMIT = 3.0", "LIMIT = 4.0", True),  # of a function that is named through two modules
        ("netparts.inner", "x + 1", "x + 2", True),  # a function that a method imports
        ("netlayers", "shift=1.0", "shift=2.0", True),  # a call that changes what a function reads
        ("netlayers", "FAST = False", "FAST = True", True),  # a condition of what a function reads
        ("netlayers", "POWER = 2", "POWER = 3", True),  # in a block
        ("netlayers", "in (1, 2)", "in (1, 3)", True),  # a loop
        ("netlayers", "open(__file__) as", "open(__file__, 'rb') as", False),  # a name that nothing reads
        ("netmodel", "set_num_threads(torch.get_num_threads())", "get_num_threads()", False),  # changes no module
        ("netmodel", "import torch\n", "import torch  # a comment\n\n\n", False),
        ("netlayers", "'''Layers.'''", "'''Other words.'''", False),
        ("netmodel", "def forward(self, x):\n", "def forward(self, x):\n        '''Forward.'''\n", False),
        ("netlayers", "UNUSED = 1", "UNUSED = 2", False),
        ("netmodel", "return 1", "return 2", False),  # a function that the model does not name
    ],
)
def test_changes_of_what_the_model_computes(
    written: Callable[..., object], file: str, old: str, new: str, noticed: bool
) -> None:
    before = code_hash(written().Net())
    assert len(before) == 64
    assert (code_hash(written(file, old, new).Net()) != before) == noticed


def test_functions_hooks_and_patches_are_covered(written: Callable[..., object]) -> None:
    def hashes(module: object) -> list[str]:
        hooked, replaced = nn.Linear(1, 1), nn.Linear(1, 1)
        hooked.register_forward_hook(lambda m, i, o: o)
        hooked._forward_hooks[0] = module.patched
        replaced.forward = module.patched
        return [code_hash(model) for model in (module.patched, module.function, hooked, replaced)]

    before = hashes(written())
    after = hashes(written("netmodel", "return 1", "return 2"))
    assert all(len(value) == 64 for value in before)
    assert not set(before) & set(after)


def test_modules_without_source_and_of_torch_have_none() -> None:
    namespace: dict[str, object] = {"nn": nn, "__name__": "nowhere"}
    exec("class Net(nn.Module): pass", namespace)
    assert code_hash(namespace["Net"]()) == ""
    assert code_hash(nn.Sequential(nn.ReLU())) == ""
    assert code_hash(load_model("zoo:digits-smooth-0.25")) == ""
    assert len(code_hash(lambda x: x)) == 64
