"""ssh into a machine."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hugepage_qa.errors import InputError
from hugepage_qa.qemu.system.secure_shell import SecureShell

Install = Callable[[Path, str, str], None]
Greet = Callable[[bytes], int]


@pytest.fixture
def greet() -> Iterator[Greet]:
    """Return greet(words): a port on which somebody says ``words`` to each who comes."""
    listeners: list[socket.socket] = []

    def listen(words: bytes) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def answer() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(words)

        threading.Thread(target=answer, daemon=True).start()
        return int(listener.getsockname()[1])

    yield listen
    for listener in listeners:
        listener.close()


@pytest.fixture
def fake_ssh(tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return fake_ssh(script): what ssh does from now on."""

    def put(script: str) -> None:
        install(tmp_path / "bin", "ssh", script)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    return put


def shell(port: int = 1) -> SecureShell:
    return SecureShell(port, Path("/some where/key"), Path("/some where/known_hosts"))


def test_user_configuration_plays_no_part() -> None:
    words = shell(2222).command_line(["uname", "-r"])
    assert words[0].endswith("/ssh")
    assert words[1:3] == ["-F", "/dev/null"]
    assert words[words.index("-p") + 1] == "2222"
    assert words[-4:] == ["root@127.0.0.1", "--", "uname", "-r"]
    assert "-oStrictHostKeyChecking=yes" in words
    assert "-oGlobalKnownHostsFile=/dev/null" in words
    assert '-oIdentityFile="/some where/key"' in words


def test_login_has_a_terminal() -> None:
    assert "-t" in shell().command_line(terminal=True)
    assert "-t" not in shell().command_line(["true"])


def test_words_of_a_command_stay_words(fake_ssh: Callable[[str], None]) -> None:
    # the machine's shell reads the last argument
    fake_ssh('bash -c "${!#}"')
    assert shell().run(["printf", "%s|", "a b", "$HOME", "c;d", "'"]) == "a b|$HOME|c;d|'|"


def test_command_that_fails(fake_ssh: Callable[[str], None]) -> None:
    fake_ssh("echo 'no such unit' >&2; exit 5")
    with pytest.raises(InputError, match="systemctl stop x failed in the machine: no such unit"):
        shell().run(["systemctl", "stop", "x"])


def test_machine_out_of_reach(fake_ssh: Callable[[str], None]) -> None:
    fake_ssh("echo 'Connection refused' >&2; exit 255")
    with pytest.raises(InputError, match="on port 7 cannot be reached: Connection refused"):
        shell(7).run(["true"])


def test_command_without_end(fake_ssh: Callable[[str], None]) -> None:
    fake_ssh("exec sleep 60")
    with pytest.raises(InputError, match=r"no answer within 0\.2 s"):
        shell().run(["true"], timeout=0.2)


def test_boot_id_of_a_machine_that_is_up(greet: Greet, fake_ssh: Callable[[str], None]) -> None:
    fake_ssh("echo 1234-5678")
    assert shell(greet(b"SSH-2.0-OpenSSH_9.2\r\n")).boot_id() == "1234-5678"


@pytest.mark.parametrize("script", ["exit 255", "echo", "exit 1"])
def test_boot_id_while_login_fails(greet: Greet, fake_ssh: Callable[[str], None], script: str) -> None:
    fake_ssh(script)
    assert shell(greet(b"SSH-2.0-OpenSSH_9.2\r\n")).boot_id() is None


def test_boot_id_is_not_asked_of_somebody_else(greet: Greet, fake_ssh: Callable[[str], None]) -> None:
    fake_ssh("echo 1234-5678")
    assert shell(greet(b"220 mail")).boot_id() is None
    assert shell(greet(b"")).boot_id() is None
