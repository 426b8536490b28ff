"""Triton kernels for decode steps and prompts, and the rewriting of a model that uses them.

`optimize(model)` gives a loaded model's linears these kernels where they fit; `restore(model)` undoes it. Both matter
to what is compiled alone: whoever else calls a layer gets what it was. Imports torch and Triton alone; README.md has
the layouts.
"""

from benchmarker.kernels.rewrite import Replacement, optimize, restore

__all__ = ["Replacement", "optimize", "restore"]
