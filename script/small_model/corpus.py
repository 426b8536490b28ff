"""Text available on every machine with benchmarker: Python's help topics and library, and docstrings of dependencies.

The prose is the help topics (`pydoc_data.topics`) and the docstrings of the library's modules. A quarter of the modules
and of the topics is held out, chosen by a hash of the name, so that the choice is the same for every version of Python.
Paragraphs of the held-out text are dropped from the training text. The topics of `calibration.txt` are never held out,
because GPTQ must not be judged on its calibration text.

A model soon memorizes two megabytes of prose, so the training text also has the full sources of the modules, and the
docstrings of numpy, scipy and torch.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import re
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics

BUCKETS = 24
EVALUATION = range(6)
VALIDATION = range(7, 9)
LAST_CALIBRATION_TOPIC = "formatstrings"
LEFT_OUT = ("test", "tests", "idle_test", "site-packages", "encodings", "pydoc_data", "_bundled", "lib-dynload")
"""Excluded folders: tests (some systems leave them out), other packages, tables, and the topics' own source."""
PRIVATE = ("_sysconfigdata", "sitecustomize", "usercustomize", "config-")
"""Prefixes of names that belong to the machine, not to Python."""
PACKAGES = ("numpy", "scipy", "torch")
"""Packages under the BSD licence with three clauses."""
SHORT_PARAGRAPH = 40
"""Characters below which a paragraph may be in both halves ("Return self.")."""


@dataclass(frozen=True)
class Corpus:
    """Text in parts. Each part is one string of documents joined by blank lines."""

    prose: str
    """Training text: topics and docstrings."""
    code: str
    """Training text: full sources of the same modules with comments and docstrings."""
    packages: str
    """Training text: docstrings of packages."""
    validation: str
    """Prose for choosing the learning rate and the checkpoint."""
    evaluation: str
    """Prose for evaluation only."""

    @property
    def sha256(self) -> str:
        """SHA-256 of all training text."""
        return hashlib.sha256("\0".join((self.prose, self.code, self.packages)).encode()).hexdigest()


def library_corpus() -> Corpus:
    """Collect the text of the running Python."""
    sources = dict(_sources(Path(sysconfig.get_path("stdlib"))))
    docs = {name: "\n\n".join(docstrings(text)) for name, text in sources.items()}
    held = {name for name in (*docs, *_free_topics()) if _bucket(name) in EVALUATION}
    tuning = {name for name in (*docs, *_free_topics()) if _bucket(name) in VALIDATION}
    prose = {name: clean(text) for name, text in {**topics, **docs}.items()}
    evaluation = _joined(prose[name] for name in sorted(held))
    validation = without(_joined(prose[name] for name in sorted(tuning)), evaluation)
    unseen = evaluation + "\n\n" + validation
    learned = sorted(prose.keys() - held - tuning)
    return Corpus(
        prose=without(_joined(prose[name] for name in learned), unseen),
        code=without(_joined(clean(sources[name]) for name in learned if name in sources), unseen),
        packages=without(_joined(map(clean, _package_docstrings())), unseen),
        validation=validation,
        evaluation=evaluation,
    )


def package_versions() -> dict[str, str]:
    """Return the versions of the packages."""
    return {name: version(name) for name in PACKAGES}


def docstrings(source: str) -> list[str]:
    """Return the docstrings of the module, its classes and its functions, in the order of the source."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    found.sort(key=lambda node: getattr(node, "lineno", 0))
    return [text for text in (ast.get_docstring(node) for node in found) if text]


def clean(text: str) -> str:
    """Return the text without trailing spaces, page breaks and runs of empty lines."""
    lines = [line.rstrip() for line in text.replace("\f", "").expandtabs().splitlines()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")


def without(text: str, other: str) -> str:
    """Return the text without the paragraphs that the other text contains."""
    known = {_bare(paragraph) for paragraph in other.split("\n\n")}
    kept = [one for one in text.split("\n\n") if len(one) < SHORT_PARAGRAPH or _bare(one) not in known]
    return "\n\n".join(kept)


def _sources(library: Path) -> Iterable[tuple[str, str]]:
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).parts
        if any(part in LEFT_OUT or part.startswith(PRIVATE) for part in parts):
            continue
        yield "/".join(parts), path.read_text(encoding="utf-8")


def _package_docstrings() -> Iterable[str]:
    for package in PACKAGES:
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        for _, source in _sources(Path(spec.origin).parent):
            # torch has templates among its modules, which are not valid Python.
            with contextlib.suppress(SyntaxError):
                yield "\n\n".join(docstrings(source))


def _free_topics() -> list[str]:
    return [name for name in topics if name.lower() > LAST_CALIBRATION_TOPIC]


def _bucket(name: str) -> int:
    """Return the bucket of a name. A package is in one bucket, because its modules quote each other."""
    package = name.split("/")[0]
    return int(hashlib.sha256(package.encode()).hexdigest(), 16) % BUCKETS


def _bare(paragraph: str) -> str:
    return " ".join(paragraph.split())


def _joined(texts: Iterable[str]) -> str:
    return "\n\n".join(text for text in texts if text)
