"""Stand-in for the table of attention implementations: scaled dot-product attention of PyTorch, and what is added."""

import torch


def sdpa_attention_forward(
    module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, position_bias=None, **_
):
    """Attention over (batch, heads, length, dim) tensors; returns (batch, length, heads, dim) and no weights.

    Grouped key and value heads are repeated. Causal where no mask is given and the module says so.
    """
    groups = getattr(module, "num_key_value_groups", 1)
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    length, source = query.shape[2], key.shape[2]
    causal = bool(is_causal) and attention_mask is None and length > 1
    if position_bias is not None:
        if causal:
            attention_mask = torch.ones(length, source, dtype=torch.bool, device=query.device).tril()
            causal = False
        if attention_mask is None:
            attention_mask = position_bias
        elif attention_mask.dtype == torch.bool:
            attention_mask = torch.where(attention_mask, position_bias, torch.finfo(key.dtype).min)
        else:
            attention_mask = position_bias + attention_mask
    elif attention_mask is not None and attention_mask.dim() == 4:
        attention_mask = attention_mask[..., :source]
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling, is_causal=causal
    )
    return output.transpose(1, 2).contiguous(), None


class AttentionInterface(dict):
    """Attention functions by name: "sdpa", and what is registered; "eager" is the caller's own."""

    def __init__(self):
        super().__init__(sdpa=sdpa_attention_forward)

    def register(self, key, value):
        """Add a function, or replace one."""
        self[key] = value

    def get_interface(self, attn_implementation, default):
        """The function of a name; `default` for "eager" and for none.

        Raises: KeyError for a name that is not here.
        """
        if attn_implementation in (None, "eager"):
            return default
        return self[attn_implementation.removeprefix("paged|")]
