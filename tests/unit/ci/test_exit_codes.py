"""What is typed wrong ends with 3 everywhere: 2, with which argparse ends, says that nothing was decided."""

import pytest
from ci import gate_kernel, kernel_references, kill_test, power_cut_test, worker_test

from hugepage_gate import samples
from hugepage_qa.cases.result import ExitCode


@pytest.mark.parametrize("command", [gate_kernel, kernel_references, kill_test, power_cut_test, worker_test])
def test_a_wrong_option_is_wrong_input(
    command: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["command", "--bogus"])
    with pytest.raises(SystemExit) as caught:
        command.main()  # type: ignore[attr-defined]
    assert caught.value.code == ExitCode.BROKEN
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_gate_which_imports_nothing_of_it_has_the_same_codes() -> None:
    codes = {verdict: samples.exit_code(verdict) for verdict in samples.Verdict}
    assert {verdict for verdict, code in codes.items() if code == ExitCode.GOOD} == {
        samples.Verdict.PASS,
        samples.Verdict.IMPROVED,
    }
    assert codes[samples.Verdict.REGRESSED] == ExitCode.BAD
    assert codes[samples.Verdict.NOT_COMPARABLE] == ExitCode.UNDECIDED
