"""Stub for the table of attention implementations: scaled dot-product attention of PyTorch, and what is added."""

import torch


def sdpa_attention_forward(
    module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, position_bias=None, **_
):
    """Attention over (batch, heads, length, dim) tensors; returns (batch, length, heads, dim) and no weights.

    Groups of heads that share keys and values are computed in the way that gives the original's bits. Causal where
    no mask is given and the module says so.
    """
    groups, length = getattr(module, "num_key_value_groups", 1), query.shape[2]
    shared = False
    if groups > 1 and attention_mask is None and key.shape[-1] == value.shape[-1] <= 256:
        shared = True
    elif groups > 1 and length == 1:  # heads that share keys are rows of one matrix
        query, attention_mask, position_bias = (
            _packed(item, groups) for item in (query, attention_mask, position_bias)
        )
    elif groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    causal = bool(is_causal) and attention_mask is None and length > 1
    if causal and key.shape[2] > length:  # places of a cache that nothing has filled yet
        key, value = key[:, :, :length], value[:, :, :length]
        position_bias = None if position_bias is None else position_bias[..., :length]
    if position_bias is not None:
        attention_mask = _biased(position_bias, attention_mask, causal, length, key)
        causal = False
    output = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=dropout,
        scale=scaling,
        is_causal=causal,
        **({"enable_gqa": True} if shared else {}),
    )
    output = output.reshape(output.shape[0], -1, length, value.shape[-1])
    return output.transpose(1, 2).contiguous(), None


def _packed(item, groups):
    """Heads that share keys as one head with a row for each; what is the same for all heads stays as it is."""
    if item is None or item.shape[1] == 1:
        return item
    return item.reshape(item.shape[0], item.shape[1] // groups, groups, item.shape[-1])


def _biased(position_bias, attention_mask, causal, length, key):
    """One additive mask of a bias and a mask."""
    lowest = torch.finfo(key.dtype).min
    if attention_mask is None and causal:
        attention_mask = torch.ones(length, key.shape[2], dtype=torch.bool, device=key.device).tril()
    if attention_mask is None:
        return position_bias.contiguous()
    if attention_mask.dtype == torch.bool:
        return torch.where(attention_mask, position_bias, lowest).contiguous()
    return (position_bias + attention_mask).contiguous()


class AttentionInterface(dict):
    """Attention functions by name: "sdpa", and what is registered; "eager" is the caller's own."""

    def __init__(self):
        super().__init__(sdpa=sdpa_attention_forward)

    def register(self, key, value):
        """Add a function, or replace one."""
        self[key] = value

    def valid_keys(self):
        """The names."""
        return list(self)

    def get_interface(self, attn_implementation, default):
        """The function of a name; `default` for "eager" and for none.

        Raises: KeyError for a name that is not here.
        """
        if attn_implementation in (None, "eager"):
            return default
        return self[attn_implementation.removeprefix("paged|")]
