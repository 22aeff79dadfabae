"""Runs the command in this process: what a shell would see."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from depthgauge.cli.main import main


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The JSON document, which must be all of standard output."""
        return json.loads(self.out)


class Command:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Ran:
        self._capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        out, err = self._capsys.readouterr()
        return Ran(status, out, err)
