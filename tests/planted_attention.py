"""User-supplied attention kernels, correct or with one fault each."""

import torch


def exact(query, key, value, is_causal=True):
    """Compute correct, differentiable attention."""
    shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal)


def one_percent_off(query, key, value, is_causal):
    return 1.01 * exact(query, key, value, is_causal)


def scale_one_percent_off(query, key, value, is_causal):
    return exact(1.01 * query, key, value, is_causal)


def without_its_mask(query, key, value):
    return exact(query, key, value, is_causal=False)


def gradient_lost(query, key, value, is_causal):
    return exact(query.detach() + 0 * query, key, value, is_causal)


def transposed(query, key, value, is_causal):
    return exact(query, key, value, is_causal).transpose(1, 2)


def not_a_number(query, key, value, is_causal):
    return exact(query, key, value, is_causal) / 0


def right(query, key, value, is_causal):
    return exact(query, key, value, is_causal)


def forward_alone(query, key, value, is_causal):
    return exact(query, key, value, is_causal).detach()


_by_address: dict = {}
_by_shape: dict = {}


def kept_by_address(query, key, value, is_causal):
    if query.data_ptr() not in _by_address:
        _by_address[query.data_ptr()] = exact(query, key, value, is_causal)
    return _by_address[query.data_ptr()]


def kept_and_copied(query, key, value, is_causal):
    if query.shape not in _by_shape:
        _by_shape[query.shape] = exact(query, key, value, is_causal).detach()
    return _by_shape[query.shape].clone()


def with_a_bug(query, key, value):
    raise ValueError("no such tile")
