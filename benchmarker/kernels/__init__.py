"""Triton and CUDA kernels for decode steps and prefill, and the rewriting of a model that uses them.

`optimize(model)` replaces the linears of a loaded model if a kernel supports them; `restore(model)` undoes it. Only
compiled code uses the kernels. The package imports torch and Triton alone; README.md describes the files.
"""

from benchmarker.kernels.rewrite import Replacement, optimize, restore

__all__ = ["Replacement", "optimize", "restore"]
