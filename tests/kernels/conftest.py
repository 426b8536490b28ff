"""gptqmodel's linears without the compilation that takes most of their time."""

import pytest


@pytest.fixture
def without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear

    monkeypatch.setattr(TorchLinear, "optimize", lambda linear: None)
