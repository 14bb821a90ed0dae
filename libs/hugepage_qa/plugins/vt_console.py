"""The serial console of a guest as avocado-vt's tests speak to it: a shell session of aexpect."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import aexpect

from hugepage_qa.guest.driver import GuestError

# the guest's shell has no prompt: one that prints it edits the lines that it reads, too. Quotes keep the prompt out of
# the echo of this line
_PROMPT = "@prompt "
_SHELL = "while echo -n '@pro''mpt '; read -r line; do eval \"$line\"; status=$?; done"
_SECONDS = 60.0


@contextmanager
def console_shell(path: str) -> Iterator[Callable[[str], str]]:
    """Yield what runs a command in the guest whose console is the socket ``path``, and returns what it printed.

    Both raise GuestError: when the guest does not answer, and when a command fails.
    """
    with aexpect.ShellSession(
        f"nc -U {shlex.quote(path)}", prompt=f"{_PROMPT}$", status_test_command="echo $status"
    ) as session:
        session.sendline(_SHELL)

        def run(command: str) -> str:
            try:
                return str(session.cmd(command, timeout=_SECONDS)).replace("\r\n", "\n")
            except aexpect.ShellError as error:
                raise GuestError(str(error)) from error

        try:
            session.read_up_to_prompt(timeout=_SECONDS)
        except aexpect.ExpectError as error:
            raise GuestError(f"console of the guest: {error}") from error
        yield run
