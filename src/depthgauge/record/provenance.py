"""When, where and with what a commission ran: versions, platform, repository."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from depthgauge._version import __version__
from depthgauge.record.parts import Git, Provenance

__all__ = ["begun", "now", "repository", "torch_version"]

#: Seconds that git may take for each question.
PATIENCE: Final = 10.0


def begun(
    command: Sequence[str] = (),
    place: str | os.PathLike[str] = ".",
    output: str | os.PathLike[str] | None = None,
) -> Provenance:
    """The provenance of a commission that starts now on a target that stands in ``place`` and
    writes into ``output``."""
    git, why = repository(place, output)
    return Provenance(
        depthgauge=__version__,
        torch=torch_version(),
        numpy=_installed("numpy"),
        python=platform.python_version(),
        platform=platform.platform(),
        command=tuple(command),
        git=git,
        git_reason=why or None,
        started=now(),
    )


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def torch_version() -> str:
    """The version of the torch that would be imported; it is not imported for that."""
    return _installed("torch")


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def repository(
    place: str | os.PathLike[str], output: str | os.PathLike[str] | None = None
) -> tuple[Git | None, str]:
    """The commit that ``place`` (a file or a folder) stands in and whether something differs from
    it, what lies in ``output`` aside; or None and why that is not known."""
    path = Path(place)
    folder = path if path.is_dir() else path.parent
    try:
        commit = _git(folder, "rev-parse", "--verify", "HEAD")
        if commit.returncode:
            return None, _why(commit.stderr)
        top = Path(_git(folder, "rev-parse", "--show-toplevel").stdout.rstrip("\n")).resolve()
        status = _git(folder, "status", "--porcelain", "--", ":/", *_aside(output, top))
    except FileNotFoundError:
        return None, "git is not installed" if folder.is_dir() else "the target has no folder"
    except subprocess.TimeoutExpired:
        return None, f"git gave no answer within {PATIENCE:g} seconds"
    except OSError as error:
        return None, f"git could not be run: {(error.strerror or str(error)).lower()}"
    if status.returncode:
        return None, _why(status.stderr)
    return Git(commit=commit.stdout.strip(), dirty=bool(status.stdout.strip())), ""


def _aside(output: str | os.PathLike[str] | None, top: Path) -> list[str]:
    """The words that leave a folder of the repository out."""
    real = None if output is None else Path(output).resolve()
    if real is None or real == top or not real.is_relative_to(top):
        return []
    return [f":(exclude,top,literal){real.relative_to(top).as_posix()}"]


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # Nothing is written (no lock, no index), nothing is asked, nothing is translated.
    environment = {
        **os.environ,
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    return subprocess.run(
        ["git", "-c", "core.fsmonitor=false", *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=PATIENCE,
        check=False,
    )


def _why(stderr: str) -> str:
    """Git's reason in words that name no path of the machine."""
    if "not a git repository" in stderr:
        return "the target stands in no git repository"
    if "dubious ownership" in stderr:
        return "the git repository belongs to another user, and git does not trust it"
    if "Needed a single revision" in stderr:
        return "the git repository has no commit yet"
    return "git could not say"
