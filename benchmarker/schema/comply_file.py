"""Findings of compliance checks, and comply.json, which holds those of a sweep's folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from benchmarker.core.errors import read_problem
from benchmarker.schema.base import Plain, first_problem

COMPLY_FILE = "comply.json"
Outcome = Literal["passed", "failed", "disturbed", "not applicable"]
"""`disturbed`: other programs explain a time outside its limits; the check decides nothing."""


class Finding(Plain):
    check: str
    outcome: Outcome
    text: str
    """Measured values and the limit, or why the check does not apply."""
    variant: str | None = None
    """None for a check of the whole folder, or of this machine."""

    @property
    def title(self) -> str:
        return f"{self.check} of {self.variant}" if self.variant else self.check


class ComplyFile(Plain):
    comply_version: Literal[1] = 1
    benchmarker: str
    device: str
    findings: tuple[Finding, ...]

    def of(self, outcome: Outcome) -> list[Finding]:
        return [finding for finding in self.findings if finding.outcome == outcome]

    def with_findings(self, findings: Iterable[Finding]) -> ComplyFile:
        return self.model_copy(update={"findings": (*self.findings, *findings)})


def judged(check: str, text: str, *, holds: bool, variant: str | None = None, is_disturbed: bool = False) -> Finding:
    outcome: Outcome = "passed" if holds else "disturbed" if is_disturbed else "failed"
    return Finding(check=check, outcome=outcome, text=text, variant=variant)


def not_applicable(check: str, reason: str, variant: str | None = None) -> Finding:
    return Finding(check=check, outcome="not applicable", text=reason, variant=variant)


def read_findings(folder: Path) -> ComplyFile:
    return ComplyFile.model_validate_json((folder / COMPLY_FILE).read_bytes())


def comply_lines(folders: Iterable[Path]) -> tuple[str, ...]:
    """Return a line per failed check and the count of passed checks, for each folder with a comply.json."""
    lines = []
    for folder in folders:
        path = folder / COMPLY_FILE
        try:
            file = read_findings(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            lines.append(f"left out: {read_problem(path, error)}")
            continue
        except ValidationError as error:
            lines.append(f"left out: {path}: {first_problem(error, ComplyFile)}")
            continue
        passed, failed = file.of("passed"), file.of("failed")
        doubtful = (*failed, *file.of("disturbed"))
        lines += [f"{finding.title}: {finding.outcome} in `benchmarker comply`: {finding.text}" for finding in doubtful]
        unsound = {finding.variant for finding in doubtful}
        names = [name for name in dict.fromkeys(finding.variant for finding in passed) if name and name not in unsound]
        marked = f"; no check of {', '.join(names)} failed" if names else ""
        share = f"{len(passed)} of {len(passed + failed)} checks passed on {file.device}"
        lines.append(f"`benchmarker comply`: {share}{marked}")
    return tuple(lines)
