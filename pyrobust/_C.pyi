from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

def build_info() -> dict[str, str | None]: ...
def simd_levels() -> list[str]: ...
def simd_level() -> str: ...
def set_simd_level(name: str) -> None: ...
def num_threads() -> int: ...
def flushes_denormals() -> bool: ...
def grid_levels(
    x: npt.NDArray[np.floating[Any]], p: int, q: int, in_float32: bool, levels: npt.NDArray[np.int32] | None = ...
) -> int: ...

_Array = npt.NDArray[np.generic]
_Doubles = npt.NDArray[np.float64]
_Flags = npt.NDArray[np.bool_]

class BoundNetwork:
    def input(self, shape: Sequence[int]) -> int: ...
    def gather(self, inputs: Sequence[int], index: _Array, shape: Sequence[int]) -> int: ...
    def sort(
        self, inputs: Sequence[int], index: _Array, pairs: _Array, larger: _Array, shape: Sequence[int]
    ) -> int: ...
    def sum(self, inputs: Sequence[int], signs: _Doubles, roundings: int) -> int: ...
    def activation(
        self,
        input: int,
        function: str,
        slope: float,
        low: float,
        high: float,
        roundings: int,
        rule: Callable[[_Doubles, _Doubles], tuple[_Doubles, ...]] | None,
        parameters: Sequence[float] = ...,
        error: float = 0.0,
        largest: float = ...,
        slopes: tuple[_Doubles, _Doubles] = ...,
        partial: bool = False,
    ) -> int: ...
    def max_pool(self, input: int, windows: _Array, shape: Sequence[int]) -> int: ...
    def product(self, first: int, second: int) -> int: ...
    def know(self, layer: int, low: float, high: float) -> None: ...
    def relate(self, layer: int, first: _Array, sign: _Doubles) -> None: ...
    def finish(
        self,
        consumers: Sequence[int],
        fused: Sequence[bool],
        affine_in_input: Sequence[bool],
        ends_affine_part: Sequence[bool],
        repeats: Sequence[Sequence[int]],
    ) -> None: ...
    def memory(
        self, *, to_input: bool, ball: bool, sound: bool, deployed: bool, library: bool, rows: bool
    ) -> tuple[int, int]: ...

class BoundNetwork32(BoundNetwork):
    def __init__(self) -> None: ...
    def linear(self, input: int, weight: _Array, bias: _Doubles, weight_error: float, bias_error: float) -> int: ...
    def conv(
        self,
        input: int,
        weight: _Array,
        bias: _Doubles,
        weight_error: float,
        bias_error: float,
        sizes: Sequence[int],
        shape: Sequence[int],
    ) -> int: ...
    def scale(
        self,
        input: int,
        scale: _Array,
        shift: _Doubles,
        scale_error: _Doubles,
        shift_error: _Doubles,
        shift_excess: _Doubles,
        roundings: int,
    ) -> int: ...
    def propagate(
        self,
        lower: _Array,
        upper: _Array,
        center: _Doubles | None,
        epsilon: _Doubles | None,
        rows: _Doubles | None,
        refines: bool,
        to_input: bool,
        norm: str,
        sound: bool,
        deployed: float,
        deployed_max: float,
        with_upper: bool,
        chunk: int,
        product: Callable[[int, int, _Array], _Array] | None = None,
        product_least: int = 0,
        radius: _Doubles | None = None,
        clip_low: float = ...,
        clip_high: float = ...,
        search: tuple[int, int, float, float, float, float, float, bool, float] | None = None,
        labels: npt.NDArray[np.int64] | None = None,
        watch: tuple[object, float] | None = None,
    ) -> tuple[_Doubles, _Doubles, _Flags, _Flags]: ...
    def weight(self, layer: int) -> _Array: ...

class BoundNetwork64(BoundNetwork32): ...

def curve_interval(
    function: str, parameters: Sequence[float], lower: _Doubles, upper: _Doubles
) -> tuple[_Doubles, _Doubles]: ...
def curve_relaxation(
    function: str, parameters: Sequence[float], lower: _Doubles, upper: _Doubles
) -> tuple[_Doubles, ...]: ...
def product_bounds32(a: _Doubles, b: _Doubles, c: _Doubles, d: _Doubles) -> tuple[_Doubles, ...]: ...
def product_bounds64(a: _Doubles, b: _Doubles, c: _Doubles, d: _Doubles) -> tuple[_Doubles, ...]: ...
def prelu_relaxation32(least: _Doubles, most: _Doubles, lower: _Doubles, upper: _Doubles) -> tuple[_Doubles, ...]: ...
def prelu_relaxation64(least: _Doubles, most: _Doubles, lower: _Doubles, upper: _Doubles) -> tuple[_Doubles, ...]: ...
