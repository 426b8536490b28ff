"""Schedule and arithmetic of the ring for any number of ranks; threads of this process exchange tensors by queues."""

import threading
from dataclasses import dataclass
from queue import Queue

import pytest
import torch

from benchmarker.workloads.attention.spec import AttentionShape
from benchmarker.workloads.context_parallel.record import sent_bytes
from benchmarker.workloads.context_parallel.ring import Block, CpuFlash, Ring, merge, rows_of
from benchmarker.workloads.context_parallel.spec import VARIANTS
from benchmarker.workloads.context_parallel.zigzag import spans_of, steps_of

ORDERS = ("contiguous", "zigzag")


def positions(order, rank, ranks, length):
    return torch.cat([torch.arange(first, end) for first, end in spans_of(order, rank, ranks, length)])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_blocks_of_all_ranks_cover_the_causal_mask_once(order, ranks):
    length = 4 * ranks
    covered = torch.zeros(length, length)
    for rank in range(ranks):
        local = positions(order, rank, ranks, length)
        for number, step in enumerate(steps_of(order, rank, ranks)):
            source = (rank - number) % ranks
            queries = rows_of(local.reshape(1, 1, -1), step.queries).flatten()
            keys = rows_of(positions(order, source, ranks, length).reshape(1, 1, -1), step.keys).flatten()
            block = torch.ones(len(queries), len(keys))
            if step.is_hidden:
                block.zero_()
            covered[queries[:, None], keys] += block.tril() if step.is_causal else block
    assert torch.equal(covered, torch.ones(length, length).tril())


@pytest.mark.parametrize("ranks", [2, 8])
def test_zigzag_balances_the_work_and_a_contiguous_ring_does_not(ranks):
    assert len({int((positions("zigzag", rank, ranks, 64) + 1).sum()) for rank in range(ranks)}) == 1
    blocks = max(sum(not step.is_hidden for step in steps_of("contiguous", rank, ranks)) for rank in range(ranks))
    # The diagonal block of the last rank is half a block.
    assert (ranks / 2) / (blocks - 0.5) == pytest.approx(ranks / (2 * ranks - 1))


@dataclass(frozen=True)
class Round:
    """Exchange that passes tensors to the next thread."""

    incoming: Queue
    following: Queue
    sent: list

    def send(self, *tensors):
        self.sent.append(sum(tensor.nbytes for tensor in tensors))
        self.following.put(tuple(tensor.clone() for tensor in tensors))
        return self

    def wait(self):
        return self.incoming.get(timeout=20)


def by_ranks(order, ranks, query, key, value, gradient):
    """Return gathered output and gradients of a ring of threads, and the bytes that each rank sent."""
    queues = [Queue() for _ in range(ranks)]
    sent = [[] for _ in range(ranks)]
    gathered = [torch.empty_like(tensor) for tensor in (query, query, key, value)]

    def run(rank):
        local = positions(order, rank, ranks, query.shape[2])
        following = Round(queues[rank], queues[(rank + 1) % ranks], sent[rank])
        ring = Ring(CpuFlash(), steps_of(order, rank, ranks), following.send)
        parts = [tensor[:, :, local] for tensor in (query, key, value)]
        block = ring.forward(*parts)
        gradients = ring.backward(gradient[:, :, local], parts, block)
        for target, part in zip(gathered, (block.output, *gradients), strict=True):
            target[:, :, local] = part

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return gathered, [sum(parts) for parts in sent]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_output_and_gradients_equal_one_process_in_float64(order, ranks, kv_heads):
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, heads, 16 * ranks, 8) for heads in (4, kv_heads, kv_heads, 4)]
    query, key, value, gradient = (torch.randn(shape, generator=generator) for shape in shapes)
    exact = [tensor.double().requires_grad_() for tensor in (query, key, value)]
    output = torch.nn.functional.scaled_dot_product_attention(*exact, is_causal=True, enable_gqa=True)
    expected = [output.detach(), *torch.autograd.grad(output, exact, gradient.double())]
    results, _ = by_ranks(order, ranks, query, key, value, gradient)
    for tensor, reference in zip(results, expected, strict=True):
        assert (tensor - reference).norm() / reference.norm() < 1e-6


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ranks_of_a_ring_send_the_bytes_of_the_formula(ranks, dtype):
    shape = AttentionShape(1, 16 * ranks, 4, 2, 8, True, None, dtype, "forward_backward")
    sizes = [(1, heads, shape.seq_len, 8) for heads in (4, 2, 2, 4)]
    tensors = [torch.randn(size).to(getattr(torch, dtype)) for size in sizes]
    for name, order in (("zigzag", "zigzag"), ("ring", "contiguous")):
        _, sent = by_ranks(order, ranks, *tensors)
        assert set(sent) == {sent_bytes(shape, ranks, VARIANTS[name])}


def test_merged_blocks_equal_the_softmax_over_both():
    scores, value = torch.randn(1, 1, 4, 6), torch.randn(1, 1, 6, 3)
    blocks = [
        Block(scores[..., part].softmax(-1) @ value[:, :, part], scores[..., part].logsumexp(-1), ())
        for part in (slice(0, 2), slice(2, 6))
    ]
    output, lse, _ = merge(*blocks, "all")
    assert torch.allclose(output, scores.softmax(-1) @ value, atol=1e-6)
    assert torch.allclose(lse, scores.logsumexp(-1))
