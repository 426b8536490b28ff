"""Functions that test_ranks.py runs in its ranks."""

import os
import signal
import time

import torch
import torch.distributed as dist

from benchmarker.core.errors import UnsupportedError


def exchange(rank, arguments):
    """Sum a number over the ranks, or simulate a failing rank."""

    def respond(message):
        match message["do"]:
            case "add":
                total = torch.tensor([arguments["first"] + rank.number])
                dist.all_reduce(total)
                return total.item()
            case "threads":
                return torch.get_num_threads()
            case "variables":
                return dict(os.environ)
            case "refuse":
                raise UnsupportedError("not here")
            case "raise":
                raise MemoryError("no room for 3 GiB")
            case "die" if rank.number != message.get("rank", rank.number):
                dist.all_reduce(torch.tensor([1]))
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "sleep":
                time.sleep(600)
        return None

    rank.serve(respond)


def breaks_at_once(rank, arguments):
    raise ValueError("no such weights")
