"""Count words that make prose hard to read: `python script/prose.py [PATH ...]`.

Docstrings and comments of the Python files below each path are counted per 1,000 words; hand-written markdown is
counted without headings, tables and code. `tests/test_prose.py` compares the counts with the limits.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

SPEECH = re.compile(
    r"\b(say|says|said|saying|tell|tells|told|telling|ask|asks|asked|asking|know|knows|knew|known|knowing"
    r"|want|wants|wanted|wanting)\b",
    re.IGNORECASE,
)
"""Verbs of people, not of programs."""

FRAGMENTS = frozenset(
    (
        *("of", "that", "what", "as", "by", "where", "whose", "which", "with", "same", "those", "such"),
        *("beside", "behind", "from", "and", "or", "but", "only", "also", "how", "why", "whether", "them", "its"),
        *("their", "else", "than", "so"),
    )
)
"""First words of a piece that has no head noun or verb of its own. "the" counts only before "same" or "other"."""


@dataclass(frozen=True)
class Counts:
    """Counts over a set of pieces of prose."""

    words: int
    what: int
    where: int
    speech: int
    pieces: int
    fragments: int
    docstring_lines: int
    code_lines: int

    @property
    def fragment_share(self) -> float:
        return self.fragments / self.pieces if self.pieces else 0.0

    @property
    def docstring_share(self) -> float:
        """Docstring lines per non-blank line."""
        return self.docstring_lines / self.code_lines if self.code_lines else 0.0

    def per_1000(self, count: int) -> float:
        return 1000 * count / self.words if self.words else 0.0


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield docstrings of modules, classes and functions, and string statements that document a field or constant."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for statement in body:
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                yield statement.value


def comments(source: str) -> Iterator[str]:
    """Yield comments; consecutive comment lines are one piece."""
    piece: list[str] = []
    last_line = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or re.match(r"#\s*(noqa|type:|fmt:|!)", token.string):
            continue
        if token.start[0] != last_line + 1 and piece:
            yield " ".join(piece)
            piece = []
        piece.append(token.string.lstrip("#").strip())
        last_line = token.start[0]
    if piece:
        yield " ".join(piece)


def is_fragment(piece: str) -> bool:
    """Return whether a piece starts without a head noun or verb."""
    words = re.findall(r"[A-Za-z']+", piece.lower())[:2]
    if not words or not piece.lstrip()[:1].isalpha():
        return False
    if words[0] == "the":
        return len(words) > 1 and words[1] in ("same", "other", "others")
    return words[0] in FRAGMENTS


def count_python(paths: Iterable[Path]) -> Counts:
    """Count prose in Python files. Text in backticks is code and is not counted."""
    pieces: list[str] = []
    docstring_lines = code_lines = 0
    for path in paths:
        source = path.read_text(encoding="utf-8")
        code_lines += sum(bool(line.strip()) for line in source.splitlines())
        for constant in docstrings(ast.parse(source)):
            pieces.append(str(constant.value))
            lines = source.splitlines()[constant.lineno - 1 : constant.end_lineno]
            docstring_lines += sum(bool(line.strip()) for line in lines)
        pieces.extend(comments(source))
    return _counts(pieces, docstring_lines, code_lines)


def count_markdown(paths: Iterable[Path]) -> Counts:
    """Count prose in markdown files without headings, tables and code."""
    pieces: list[str] = []
    for path in paths:
        text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        lines = [line for line in text.splitlines() if not re.match(r"\s*(#|\||<!--| {4})", line)]
        pieces.extend(piece for piece in re.split(r"\n\s*\n|\n(?=\s*[-*] )", "\n".join(lines)) if piece.strip())
    return _counts(pieces, 0, 0)


def _counts(pieces: list[str], docstring_lines: int, code_lines: int) -> Counts:
    prose = [re.sub(r"``?[^`]*``?", "code", piece) for piece in pieces]
    text = "\n".join(prose)
    return Counts(
        words=len(re.findall(r"[A-Za-z][A-Za-z'-]*", text)),
        what=len(re.findall(r"\bwhat(?:ever)?\b", text, re.IGNORECASE)),
        where=len(re.findall(r"\bwhere\b", text, re.IGNORECASE)),
        speech=len(SPEECH.findall(text)),
        pieces=len(prose),
        fragments=sum(is_fragment(piece) for piece in pieces),
        docstring_lines=docstring_lines,
        code_lines=code_lines,
    )


def lines_of(name: str, counts: Counts) -> Iterator[str]:
    """Yield one line of counts."""
    yield (
        f"{name:<28} {counts.words:>7} words  what {counts.per_1000(counts.what):5.1f}  "
        f"where {counts.per_1000(counts.where):5.1f}  say/tell/ask/know/want {counts.per_1000(counts.speech):5.1f}  "
        f"fragments {counts.fragment_share:6.1%}  docstrings {counts.docstring_share:6.1%}"
    )


def main(arguments: list[str]) -> None:
    for name in arguments or ["benchmarker"]:
        path = Path(name) if Path(name).exists() else ROOT / name
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        if path.suffix == ".md":
            print(*lines_of(name, count_markdown([path])), sep="\n")
        else:
            print(*lines_of(name, count_python(files)), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
