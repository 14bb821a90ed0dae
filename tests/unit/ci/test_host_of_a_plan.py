"""What a plan finds on the host is its own: what a killed run has left is put back, what root has kept is told."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from ci import qa

from hugepage_qa.commands.qa_request import QaRequest
from hugepage_qa.errors import InputError


class LookedAt(Exception):
    """The host is looked at: what comes after is not of these tests."""


@pytest.mark.parametrize(("plan", "before"), [("text", ["put back"]), ("smoke", [])])
def test_a_host_is_put_back_before_it_is_looked_at(
    plan: str, before: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = list[str]()

    @contextmanager
    def put_back(_purpose: str) -> Iterator[None]:
        steps.append("put back")
        yield

    def look(*_arguments: object, **_named: object) -> NoReturn:
        raise LookedAt

    monkeypatch.setattr(qa, "BUILD", tmp_path)
    monkeypatch.setattr(qa, "protected_machine", put_back)
    monkeypatch.setattr(qa, "take_snapshot", look)
    with pytest.raises(LookedAt):
        qa.run_plan(QaRequest.from_environment({"PLAN": plan}), [])
    assert steps == before


def test_what_root_has_kept_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path / "run"))

    (tmp_path / "smoke").mkdir()
    monkeypatch.setattr(qa, "BUILD", tmp_path)
    monkeypatch.setattr(shutil, "rmtree", lambda path, ignore_errors=False: None if ignore_errors else refuse(path))
    with pytest.raises(InputError, match=r"smoke: cannot be made anew \(.*run: Permission denied\): remove it"):
        qa.run_plan(QaRequest.from_environment({"PLAN": "smoke"}), [])
