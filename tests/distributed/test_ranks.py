"""Test ranks (processes that compute together) with real gloo processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from benchmarker.core.errors import UnsupportedError
from benchmarker.core.process import NO_MULTICAST
from benchmarker.distributed import ranks
from benchmarker.distributed.ranks import RankError, open_ranks
from benchmarker.hardware.device import CpuDevice
from tests import rank_targets


@pytest.fixture(autouse=True)
def set_rank_environment(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def opened(target="exchange", count=2, **more):
    function = getattr(rank_targets, target)
    return open_ranks(function, {"first": 10}, devices=["cpu"] * count, device=CpuDevice(), **more)


def all_reduced(first=10):
    total = torch.tensor([first])
    dist.all_reduce(total)
    return total.item()


def children():
    return [process for process in psutil.Process().children() if process.status() != psutil.STATUS_ZOMBIE]


def refuse():
    raise UnsupportedError("not here")


def test_ranks_exchange_tensors_return_results_and_refuse(monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    with opened(count=3) as opened_ranks:
        assert opened_ranks.together({"do": "threads"}, lambda: None, kind="threads") == (None, [2, 2])
        assert opened_ranks.together({"do": "add"}, all_reduced, kind="add") == (33, [33, 33])
        with pytest.raises(UnsupportedError, match="not here"):
            opened_ranks.together({"do": "refuse"}, refuse, kind="refuse")
        assert opened_ranks.together({"do": "add"}, all_reduced, kind="add") == (33, [33, 33])
    assert not children()
    assert not dist.is_initialized()
    assert "WORLD_SIZE" not in os.environ


def test_no_rank_uses_nvlink_multicast():
    with opened() as opened_ranks:
        own, (other,) = opened_ranks.together({"do": "variables"}, lambda: dict(os.environ), kind="variables")
    assert own.items() >= NO_MULTICAST.items()
    assert other.items() >= NO_MULTICAST.items()


def test_killed_rank_is_named_and_not_the_ranks_that_lost_it():
    with opened(count=4) as opened_ranks, pytest.raises(RankError, match="rank 3: killed by SIGKILL"):
        opened_ranks.together({"do": "die", "rank": 3}, all_reduced, kind="die")
    assert not children()


@pytest.mark.parametrize(
    ("message", "reason", "kind"),
    [
        ("raise", "rank 1: MemoryError: no room for 3 GiB", "oom_host"),
        ("die", "rank 1: killed by SIGKILL", "crash"),
        pytest.param("stop", "rank 1: gave no sign of life for 3 s", "timeout", marks=pytest.mark.by_hand),
        pytest.param("sleep", "rank 1: hangs", "timeout", marks=pytest.mark.by_hand),
    ],
)
def test_failed_rank_is_named_and_no_process_remains(monkeypatch, message, reason, kind):
    monkeypatch.setattr(ranks, "SILENT_S", 3.0)
    monkeypatch.setattr(ranks, "LEAST_S", 2.0 if message == "sleep" else 20.0)
    began_s = time.monotonic()
    with opened() as opened_ranks:
        opened_ranks.together({"do": "add"}, all_reduced, kind="add")
        with pytest.raises(RankError, match=reason) as caught:
            opened_ranks.together({"do": message}, all_reduced, kind="add")
        assert caught.value.kind == kind
        with pytest.raises(RankError, match=reason):
            opened_ranks.together({"do": "add"}, all_reduced, kind="add")
    assert time.monotonic() - began_s < 30
    assert not children()


def test_rank_that_fails_at_start_raises_with_its_error():
    with (
        pytest.raises(RankError, match="rank 1: ValueError: no such weights"),
        opened("breaks_at_once") as opened_ranks,
    ):
        opened_ranks.together({"do": "add"}, all_reduced, kind="add")
    assert not children()


@pytest.mark.by_hand
def test_ranks_end_with_their_parent_process():
    program = (
        "import os, signal, psutil\n"
        "from tests.distributed import test_ranks\n"
        "with test_ranks.opened() as opened_ranks:\n"
        "    print(psutil.Process().children()[0].pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    pid = int(process.stdout)
    deadline_s = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
