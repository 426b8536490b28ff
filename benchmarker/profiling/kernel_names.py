"""C++ kernel names as people can read them: the kernel, what it applies, and to which type.

torch's own are hundreds of letters of namespaces, lambdas and a parameter list that says all of it again. The record
keeps the whole name; this is for tables.
"""

from __future__ import annotations

import re

_REPLACEMENTS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\(anonymous namespace\)::", ""),
        # copy_kernel(Iterator&)::{lambda()#3}::operator()() const::{lambda(float)#1} -> copy_kernel(float)
        (r"\([^()]*\)(?:::\{lambda\(\)#\d+\}::operator\(\)\(\) const)*::\{lambda\(([^()]*)\)#\d+\}", r"(\1)"),
        # gpu_kernel_impl<Functor>(Iterator&, Functor const&)::{lambda(int)#1}, a wrapper round every operator
        (r">\((?:[^()]|\([^()]*\))*\)::\{lambda\(int\)#\d+\}|>\(int\)(?=>)", ">"),
        (r"\b(?:at|native|c10|std|cuda|detail|memory|binary_internal|cublasLt|internal)::", ""),
        (r", (?:array<char\*, \d+ul>|TrivialOffsetCalculator<\d+, unsigned int>|unsigned int)", ""),
        (r", \d+, LoadWith\w+(?:<\d+>)?, StoreWith\w+(?:<\d+>)?", ""),
        (r"\b([A-Za-z_]\w*)(?:, \1)+\b", r"\1"),
        # BinaryFunctor<Half, MulFunctor<float> > -> MulFunctor<float>
        (r"(?:[AB]?Unary|Binary)Functor<[\w, ]+, (\w+<[^<>]*>) ?>", r"\1"),
        (r"ReduceOp<\w+, (\w+<[^<>]*>)(?:, \w+)*>", r"\1"),
        (r"gpu_kernel_impl(?:_nocast)?<(.*?)>(?= ?>)", r"\1"),
        (r" +>", ">"),
        (r"^void ", ""),
    )
)


def readable(name: str) -> str:
    """The name without its namespaces, its parameter list and what it repeats."""
    for pattern, replacement in _REPLACEMENTS:
        name = pattern.sub(replacement, name)
    return _without_parameters(name)


def _without_parameters(name: str) -> str:
    """Cut at the first parenthesis outside the angle brackets, where a template's name has ended."""
    depth = 0
    for index, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0 and name[index - 1 : index] == ">":
            return name[:index]
    return name
