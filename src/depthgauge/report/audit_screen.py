"""An audit, or a guess of a recipe, in the terminal."""

from __future__ import annotations

from typing import Final

from rich.console import Console

from depthgauge.recipes.audit import Audit
from depthgauge.recipes.finding import Finding
from depthgauge.recipes.guess import Guess
from depthgauge.report.tables import paragraph, plain

__all__ = ["audit_line", "good", "print_audit"]

#: Recipes that a guess tells something of, at most, and lines of each.
_SHOWN: Final = 4
_LINES: Final = 3


def good(found: Audit | Guess) -> bool:
    """Whether the recipe holds, or one was found."""
    return found.holds if isinstance(found, Audit) else found.named is not None


def audit_line(found: Audit | Guess) -> str:
    """The closing line, which is all that ``--quiet`` prints."""
    if not isinstance(found, Audit):
        named = found.named
        if named is None:
            return "audit: its numbers agree with no recipe"
        alike = f", and as well with {' and '.join(found.alike)}" if found.alike else ""
        return f"audit: its numbers agree with {named.name}{alike}"
    broken = sum(not finding.holds for finding in found.findings)
    if found.holds:
        return f"audit: {found.recipe} holds"
    if all(finding.holds or not finding.measured for finding in found.findings):
        return f"audit: {found.recipe} is not known to hold ({broken} parts not measured)"
    return f"audit: {found.recipe} does not hold ({broken} of {len(found.findings)} parts)"


def print_audit(found: Audit | Guess, console: Console) -> None:
    """What was counted, each part of the recipe or each candidate, and the closing line."""
    layers = " and ".join(map(str, found.layers)) or "no"
    paragraph(console, f"{found.branches} residual branches of {layers} weight layers")
    plain(console)
    if isinstance(found, Audit):
        for finding in found.findings:
            _finding(finding, console)
        plain(console)
    else:
        _candidates(found, console)
    plain(console, audit_line(found), "green" if good(found) else "bold red")


def _finding(finding: Finding, console: Console) -> None:
    paragraph(console, f"{finding.state}  {finding.said}", indent="      ")


def _candidates(found: Guess, console: Console) -> None:
    """Those that agree, and of the others the nearest, with what speaks for and against them."""
    agreeing = [c for c in found.candidates if c.agrees]
    for candidate in [*agreeing, *[c for c in found.candidates if not c.agrees][:_SHOWN]]:
        of = "what shows of it" if candidate.bare else "it"
        words = "agrees" if candidate.agrees else f"{100 * candidate.share:.0f} per cent of {of}"
        plain(console, f"{candidate.recipe.name}: {words}", "bold")
        speaking = [("for" if f.holds else "against", f.said) for f in candidate.findings]
        for doubt in candidate.doubts:  # which has a line of its own
            speaking = [(word, said.replace(f"; {doubt}", "")) for word, said in speaking]
        speaking += [("against", candidate.bare)] if candidate.bare else []
        speaking += [("doubt", doubt) for doubt in candidate.doubts]
        for word in ("for", "against", "doubt"):
            lines = [said for side, said in speaking if side == word]
            for line in lines[:_LINES]:
                paragraph(console, f"{word}: {line}", indent="  ")
            if len(lines) > _LINES:
                plain(console, f"  {word}: and {len(lines) - _LINES} more")
        plain(console)
