"""Read and change the program headers of an ELF file."""

import stat
import struct
from pathlib import Path

from elftools.elf.elffile import ELFFile

from hugepage_qa.model.text.program import ElfFile, Kind, Segment

_PF_X = 1
#: Elf64_Phdr: p_align is the last of its members
_ALIGNMENT_AT = 48
_ANY_X = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH


def read_elf(path: Path, kind: Kind) -> ElfFile:
    """Return the loaded segments of ``path``."""
    with path.open("rb") as stream:
        loaded = list(ELFFile(stream).iter_segments("PT_LOAD"))
        segments = tuple(
            Segment(header.p_vaddr, header.p_offset, header.p_filesz, header.p_align, bool(header.p_flags & _PF_X))
            for header in (segment.header for segment in loaded)
        )
    status = path.stat()
    return ElfFile(kind, segments, status.st_size, bool(status.st_mode & _ANY_X))


def set_alignment(path: Path, index: int, alignment: int) -> None:
    """Write p_align of the loaded segment ``index``, which no linker would have chosen."""
    with path.open("r+b") as stream:
        elf = ELFFile(stream)
        headers = [number for number, segment in enumerate(elf.iter_segments()) if segment.header.p_type == "PT_LOAD"]
        at = elf.header.e_phoff + headers[index] * elf.header.e_phentsize + _ALIGNMENT_AT
        stream.seek(at)
        stream.write(struct.pack("<Q" if elf.little_endian else ">Q", alignment))
