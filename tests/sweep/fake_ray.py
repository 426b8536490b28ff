"""Fake of the module `ray` with the functions that a sweep calls. Each task runs in a thread of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any


class RayError(Exception): ...


class RayTaskError(RayError):
    cause: BaseException


class WorkerCrashedError(RayError): ...


class Reference:
    """Reference to a task or to a call of an actor."""

    def __init__(self, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(function, arguments), daemon=True)
        self.thread.start()

    def _run(self, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
        try:
            self.result = function(*arguments)
        except BaseException as error:  # noqa: BLE001
            self.error = error


class Remote:
    """Remote function or actor class."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def options(self, **options: Any) -> Remote:
        return self

    def remote(self, *arguments: Any) -> Any:
        return Actor(self._target()) if isinstance(self._target, type) else Reference(self._target, arguments)


class Actor:
    def __init__(self, instance: Any) -> None:
        self._instance = instance

    def __getattr__(self, name: str) -> Any:
        return Remote(getattr(self._instance, name))


class FakeRay:
    """Fake of the module `ray`: one host with two GPUs."""

    def __init__(self) -> None:
        self.exceptions = type("exceptions", (), {"RayError": RayError, "RayTaskError": RayTaskError})
        self.cards = iter(range(10**6))
        self.is_up = False

    def init(self, **options: Any) -> None:
        self.is_up = True

    def is_initialized(self) -> bool:
        return self.is_up

    def shutdown(self) -> None:
        self.is_up = False

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": "a1", "NodeManagerHostname": "node", "Alive": True, "Resources": {"GPU": 2.0, "CPU": 2.0}}]

    def get_runtime_context(self) -> Any:
        cards = self.cards
        return type(
            "Context",
            (),
            {
                "get_node_id": lambda self: "a1",
                "get_accelerator_ids": lambda self: {"GPU": [str(next(cards) % 2)]},
            },
        )()

    def remote(self, *targets: Any, **options: Any) -> Any:
        return Remote(targets[0]) if targets else Remote

    def get(self, reference: Reference, timeout: float | None = None) -> Any:
        reference.thread.join(timeout)
        if reference.error:
            raise reference.error
        return reference.result

    def wait(self, references: Sequence[Reference], num_returns: int = 1, timeout: float | None = None) -> Any:
        end_s = time.monotonic() + (timeout or 0.0)
        while True:
            ready = [reference for reference in references if not reference.thread.is_alive()]
            if len(ready) >= num_returns or time.monotonic() > end_s:
                return ready, [reference for reference in references if reference not in ready]
            time.sleep(0.02)

    def cancel(self, reference: Reference, force: bool = False) -> None: ...
