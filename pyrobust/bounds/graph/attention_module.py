"""The forward pass of ``torch.nn.MultiheadAttention`` with the batch as first dimension, for tracing."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@contextlib.contextmanager
def batch_kept_first(model: nn.Module) -> Iterator[None]:
    """Within the block, replace attention modules' forward pass by one that keeps the batch dimension first.

    The modules' own forward pass moves the batch dimension behind the token dimension and merges the batch with the
    heads. Lowering rules, however, expect the batch as the first dimension. Attention modules whose forward pass was
    overridden, which lack ``batch_first``, or which have ``add_bias_kv`` or ``add_zero_attn``, stay as they are.
    """
    changed = [
        module
        for module in model.modules()
        if isinstance(module, nn.MultiheadAttention)
        and type(module).forward is nn.MultiheadAttention.forward
        and "forward" not in module.__dict__
        and module.batch_first
        and module.bias_k is None
        and not module.add_zero_attn
    ]
    for module in changed:
        module.forward = functools.partial(_attention, module)  # type: ignore[method-assign] # for the block only
    try:
        yield
    finally:
        for module in changed:
            del module.forward


def _attention(
    module: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute softmax(q·kᵀ/√d + mask)·v of [B, tokens, E], given the arguments of the module's forward pass."""
    if query.dim() != 3 or key_padding_mask is not None or (attn_mask is not None and attn_mask.dim() != 2):
        options: Any = (key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
        result: tuple[Tensor, Tensor | None] = nn.MultiheadAttention.forward(module, query, key, value, *options)
        return result
    q, k, v = (_heads(module, z) for z in _projected(module, query, key, value))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = ~attn_mask
    weights: Tensor | None = None
    if need_weights and attn_mask is None:
        weights = torch.softmax(q @ k.mT / module.head_dim**0.5, -1)
        mixed = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask)
    mixed = mixed.transpose(1, 2).flatten(2)
    return functional.linear(mixed, module.out_proj.weight, module.out_proj.bias), weights


def _projected(module: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    size, bias = module.embed_dim, module.in_proj_bias
    if module.in_proj_weight is None:
        weights = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    else:
        weights = [module.in_proj_weight[i * size : (i + 1) * size] for i in range(3)]
    biases = [None if bias is None else bias[i * size : (i + 1) * size] for i in range(3)]
    return tuple(functional.linear(z, w, b) for z, w, b in zip((query, key, value), weights, biases, strict=True))


def _heads(module: nn.MultiheadAttention, z: Tensor) -> Tensor:
    """Reshape [B, tokens, E] to [B, heads, tokens, d]."""
    return z.reshape(*z.shape[:2], module.num_heads, module.head_dim).transpose(1, 2)
