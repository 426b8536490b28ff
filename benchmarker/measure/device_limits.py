"""Measured limits of the device: memory bandwidth, GEMM rate, and the cost of a launch.

The arrays are far larger than any cache (BabelStream's rule: a larger array must not change the result, and the best
figure is quoted). Values are random, because a GEMM of zeros draws less power and runs at higher clocks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarker.hardware.device import Device
from benchmarker.hardware.read_environment import available_bytes
from benchmarker.schema.record import Limits

CPU_ARRAY_BYTES = 2**28, 2**30
CPU_MATMUL_SIZES = 256, 512, 768
LAUNCHES = 500  # Launches in a row. A driver queues about a thousand before the host waits for the device.
LAUNCH_REPEATS = 10


def measure_limits(device: Device, dtype: str) -> Limits:
    on_cpu = device.kind == "cpu"
    if on_cpu:
        cache_bytes = host_cache_bytes()
        array_bytes = cpu_array_bytes(cache_bytes, free=available_bytes())
    else:
        properties = torch.cuda.get_device_properties(device.torch_name)
        cache_bytes, array_bytes = getattr(properties, "L2_cache_size", None) or None, 2**31
    read_s, copy_s = _stream(device, array_bytes)
    flops_per_s, matmul_dtype, size = _cpu_product(device, dtype) if on_cpu else _product(device, dtype, 8192)
    launches = {} if on_cpu else _launches(device)
    device.release()
    return Limits(
        read_bytes_per_s=array_bytes / read_s,
        copy_bytes_per_s=array_bytes / copy_s,
        array_bytes=array_bytes,
        matmul_flops_per_s=flops_per_s,
        matmul_dtype=matmul_dtype,
        matmul_size=size,
        cache_bytes=cache_bytes,
        **launches,
    )


def cpu_array_bytes(cache_bytes: int | None, *, free: int) -> int:
    least, most = CPU_ARRAY_BYTES
    # At least four times the caches, at most a quarter of the free memory.
    return min(most, max(least, 4 * (cache_bytes or 0)), free // 4) // 8 * 8


def host_cache_bytes() -> int | None:
    """Return the bytes of the last-level caches of all sockets, from Linux; None if unknown."""
    sizes: dict[tuple[int, str], int] = {}
    for index in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cache/index[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            level, size = int((index / "level").read_text()), (index / "size").read_text().strip()
            shared = (index / "shared_cpu_list").read_text().strip()
            if size.endswith("K"):
                sizes[level, shared] = int(size[:-1]) * 1024
    last = max((level for level, _ in sizes), default=0)
    return sum(size for (level, _), size in sizes.items() if level == last) or None


def _stream(device: Device, array_bytes: int) -> tuple[float, float]:
    array = torch.empty(array_bytes // 4, dtype=torch.float32, device=device.torch_name)
    # The value does not affect the bandwidth.
    array.fill_(1.25)
    half = len(array) // 2
    read_s = best_time(device, lambda: array.sum())
    copy_s = best_time(device, lambda: array[:half].copy_(array[half:]))
    return read_s, copy_s


def _cpu_product(device: Device, dtype: str) -> tuple[float, str, int]:
    # A processor without 16-bit arithmetic multiplies 16-bit numbers at a hundredth of its rate, unless its kernels
    # convert them to float32 first.
    products = [_product(device, "float32", size) for size in CPU_MATMUL_SIZES]
    fastest = max(products)
    for size in CPU_MATMUL_SIZES if dtype != "float32" else ():
        products.append(_product(device, dtype, size))
        if products[-1][0] < fastest[0] / 2:
            break
    return max(products)


def _product(device: Device, dtype: str, size: int) -> tuple[float, str, int]:
    kind: torch.dtype = getattr(torch, dtype)
    first, second = (torch.randn(size, size, dtype=kind, device=device.torch_name) for _ in range(2))
    return 2 * size**3 / best_time(device, lambda: first @ second), dtype, size


def _launches(device: Device) -> dict[str, float]:
    gpu = device.torch_name
    number = torch.zeros(1, device=gpu)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(gpu):
        torch.cuda._sleep(0)  # the first launch loads the kernel
        device.synchronize()
        with torch.cuda.graph(graph):
            _repeat(lambda: torch.cuda._sleep(0))
        return {
            "launch_s": host_time(device, lambda: torch.cuda._sleep(0)),
            "operator_s": host_time(device, lambda: number.add_(1)),
            "graph_kernel_s": best_time(device, graph.replay) / LAUNCHES,
        }


def _repeat(launch: Callable[[], object]) -> None:
    for _ in range(LAUNCHES):
        launch()


def host_time(device: Device, launch: Callable[[], object]) -> float:
    times = []
    for _ in range(LAUNCH_REPEATS):
        device.synchronize()
        started = time.perf_counter()
        _repeat(launch)
        times.append(time.perf_counter() - started)
    device.synchronize()
    return min(times) / LAUNCHES


def best_time(device: Device, work: Callable[[], object]) -> float:
    """Return the seconds of the fastest of 3 calls on a CPU, or of the fastest of 5 means of ten calls on a GPU."""
    calls = 1 if device.kind == "cpu" else 10
    work()
    device.synchronize()
    times = []
    for _ in range(3 if device.kind == "cpu" else 5):
        started = time.perf_counter()
        for _ in range(calls):
            work()
        device.synchronize()
        times.append((time.perf_counter() - started) / calls)
    return min(times)
