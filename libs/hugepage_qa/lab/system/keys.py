"""The key pair that opens every system machine of this cache."""

import subprocess
from pathlib import Path

from hugepage_qa.errors import InputError
from hugepage_qa.lab.cache import locked
from hugepage_qa.lab.system.tools import SSH_KEYGEN, program


def private_key(cache: Path) -> Path:
    """Return the private key (mode 0600) below ``cache``; its public half has the suffix .pub. It is made once."""
    key = cache / "systems" / "id_ed25519"
    with locked(key.with_name("id_ed25519.lock")):
        if not (key.exists() and key.with_suffix(".pub").exists()):
            key.unlink(missing_ok=True)
            command = [program(SSH_KEYGEN), "-q", "-t", "ed25519", "-N", "", "-C", "hugepage-qa lab", "-f", str(key)]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise InputError(f"ssh-keygen cannot make {key}: {done.stderr.strip()}")
    return key
