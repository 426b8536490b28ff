"""A fault of compilers that a build of llama.cpp must go around: GCC's header for Intel's AMX.

Its `_tile_loadconfig` told the compiler of 8 of the 64 bytes that it reads (GCC's bug 114098), so that an optimized
program loads a configuration that it never wrote, and ends with a segmentation fault. llama.cpp's products of several
rows with quantized weights call it on processors with AMX: Q8_0 and Q4_0 of `qwen3-small`, built by GCC 12.2, died at
their first prompt.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

GCC_WITHOUT = {11: 5, 12: 4, 13: 3}
"""By major version of GCC the first minor one without the fault. There is no AMX before 11, and no fault from 14 on."""
FAULT = (
    "AMX is left out: with this compiler's header for it programs crash (GCC bug 114098; 12.4, 13.3 and 14 are right)"
)
WITHOUT_AMX = "-DCMAKE_C_FLAGS=-mno-amx-int8 -DCMAKE_CXX_FLAGS=-mno-amx-int8"


def cmake_arguments() -> str:
    """What has to be added to CMake's arguments on this machine; empty where nothing has."""
    is_faulty = "amx_int8" in _cpu_flags() and has_fault(_compiler_words())
    return WITHOUT_AMX if is_faulty else ""


def has_fault(words: str) -> bool:
    """Whether a compiler has the fault.

    Args:
        words: What it says to `--version`.
    """
    version = re.search(r"\) (\d+)\.(\d+)\.\d+", words.partition("\n")[0])
    if "Free Software Foundation" not in words or version is None:
        return False
    major, minor = int(version[1]), int(version[2])
    return minor < GCC_WITHOUT.get(major, 0)


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return set(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))


def _compiler_words() -> str:
    try:
        command = [os.environ.get("CXX", "c++"), "--version"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
