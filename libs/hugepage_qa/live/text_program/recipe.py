"""What a program for a case shall look like."""

from dataclasses import dataclass

from hugepage_qa.model.text.program import ElfFile, Kind


@dataclass(frozen=True)
class Recipe:
    """A file whose text ends ``tail`` bytes behind a multiple of ``pmd``, with at least ``whole`` huge pages before it.

    ``alignment`` (bytes, 0 for ``pmd``) is what all segments are linked for; ``text_alignment`` and ``next_alignment``
    are then written over p_align of the text segment and of the one behind it, 0 leaves them. With ``short`` the data
    lie right behind the text: the file ends before its last huge page does. ``appended`` bytes are added to the file.
    With ``scripted`` a linker script puts text and data at multiples of ``pmd``. ``constants`` bytes that are only
    read are added to the segment behind the text.
    """

    pmd: int
    whole: int = 2
    tail: int = 0
    kind: Kind = Kind.PIE
    alignment: int = 0
    text_alignment: int = 0
    next_alignment: int = 0
    runnable: bool = True
    short: bool = False
    appended: int = 0
    scripted: bool = False
    constants: int = 0


@dataclass(frozen=True)
class BuiltText:
    """What came of a recipe: ``program`` is started, ``file`` holds the text and is ``elf``.

    ``pages`` is how many pages of its code can be executed, ``checksum`` the Adler-32 checksum of the text segment as
    it was linked.
    """

    program: str
    file: str
    elf: ElfFile
    pages: int
    checksum: int
