"""Versions without importing anything; the repository, or why there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from depthgauge.record import provenance
from depthgauge.record.provenance import begun, repository, torch_version

git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def _git(folder: Path, *words: str) -> str:
    names = {
        f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    done = subprocess.run(
        ["git", *words], cwd=folder, env={**os.environ, **names}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return done.stdout.strip()


def test_versions() -> None:
    found = begun(["depthgauge", "commission"])
    assert found.torch == torch_version() == torch.__version__
    assert found.command == ("depthgauge", "commission")
    assert found.started.endswith("+00:00")
    assert found.platform
    assert provenance._installed("no-such-package-at-all") == "not installed"


@git
def test_a_commit_and_whether_something_differs(tmp_path: Path) -> None:
    _git(tmp_path, "init", "-q")
    assert repository(tmp_path) == (None, "the git repository has no commit yet")
    path = tmp_path / "models" / "net.py"
    path.parent.mkdir()
    path.write_text("x")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-qm", "first")
    for place in (tmp_path, path.parent, path):
        found, why = repository(place)
        assert found is not None
        assert (found.commit, found.dirty, why) == (_git(tmp_path, "rev-parse", "HEAD"), False, "")
    path.write_text("y")
    found, _ = repository(tmp_path)
    assert found is not None
    assert found.dirty
    _git(tmp_path, "checkout", "-q", ".")
    (tmp_path / "new.py").write_text("z")
    found, _ = repository(path)
    assert found is not None
    assert found.dirty


@git
def test_what_a_commission_writes_makes_nothing_dirty(tmp_path: Path) -> None:
    _git(tmp_path, "init", "-q")
    (tmp_path / "net.py").write_text("x")
    (tmp_path / "records" / "one").mkdir(parents=True)
    (tmp_path / "records" / "one" / "record.json").write_text("{}")
    _git(tmp_path, "add", "net.py")
    _git(tmp_path, "commit", "-qm", "first")

    def dirty(output: Path | None) -> bool:
        found, why = repository(tmp_path / "net.py", output)
        assert found is not None, why
        return found.dirty

    assert dirty(None)
    assert not dirty(tmp_path / "records" / "one")
    assert not dirty(tmp_path / "records")
    assert dirty(tmp_path / "elsewhere")
    assert dirty(tmp_path.parent)
    (tmp_path / "net.py").write_text("y")
    assert dirty(tmp_path / "records")


@git
def test_where_there_is_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert repository(tmp_path) == (None, "the target stands in no git repository")
    assert repository(tmp_path / "none" / "net.py") == (None, "the target has no folder")
    found = begun(place=tmp_path)
    assert (found.git, found.git_reason) == (None, "the target stands in no git repository")


def test_git_that_is_missing_or_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "git"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert repository(tmp_path) == (None, "git is not installed")
    slow.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(provenance, "PATIENCE", 0.2)
    assert repository(tmp_path) == (None, "git gave no answer within 0.2 seconds")
    slow.write_text("#!/bin/sh\necho 'fatal: detected dubious ownership' >&2\nexit 128\n")
    words = "the git repository belongs to another user, and git does not trust it"
    assert repository(tmp_path) == (None, words)
