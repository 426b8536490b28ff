"""Triton and CUDA kernels for decode steps and prefill, and the rewriting of a model that uses them.

`optimize(model)` replaces each linear of a loaded model that a kernel supports; `restore(model)` reverses this. Only
compiled code uses the kernels. The package imports only torch and Triton; README.md describes the files.
"""

from benchmarker.kernels.rewrite import Replacement, optimize, restore

__all__ = ["Replacement", "optimize", "restore"]
