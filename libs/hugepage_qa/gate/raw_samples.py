"""Raw samples, kept outside of git: ``<directory>/<sha256>.f64.xz``, the digest that the block in the baseline names.

The content is the samples as little-endian 64-bit floating point numbers, compressed by xz.
"""

import hashlib
import lzma
from pathlib import Path

import numpy as np

from hugepage_qa.errors import InputError
from hugepage_qa.gate.sample_checks import digest
from hugepage_qa.gate.samples import Samples
from hugepage_qa.machine.durable import write_durably

_READABLE = 0o644


def store_samples(directory: Path, samples: Samples) -> Path:
    """Keep ``samples`` in ``directory`` and return their file. Raises OSError."""
    path = directory / f"{digest(samples)}.f64.xz"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        write_durably(path, lzma.compress(samples.astype("<f8").tobytes()), mode=_READABLE)
    return path


def load_samples(directory: Path, sha256: str) -> Samples:
    """Return the samples with the digest ``sha256``. Raises InputError for a file that is missing or damaged."""
    path = directory / f"{sha256}.f64.xz"
    try:
        content = lzma.decompress(path.read_bytes())
    except (OSError, lzma.LZMAError) as error:
        raise InputError(f"{path}: expected raw samples ({error})") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise InputError(f"{path}: its content is not what its name says; restore it")
    return np.frombuffer(content, dtype="<f8").astype(np.float64)
