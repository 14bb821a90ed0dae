"""Which writes to hugetext_enabled and hugetext_pad_threshold a kernel accepts, and what it reads back then."""

from collections.abc import Sequence
from enum import Enum

from hugepage_qa.model.cstring import kstrtoul

_SWITCH_ON = 1
_BOTH_BITS = 3


class Generation(Enum):
    """How a kernel understands hugetext_enabled; kernels of one version differ, so that its files decide."""

    #: one switch, 0 or 1: the first 4.19 and 5.10 kernels
    SWITCH = "switch"
    #: bit 0 for file text, bit 1 for anonymous executable memory: later ones
    BITS = "bits"


def possible_generations(*, has_enabled: bool, has_threshold: bool) -> tuple[Generation, ...]:
    """Return what a kernel with these files can be; nothing for one without hugetext.

    hugetext_pad_threshold came after the bits, which 4.19 has without it.
    """
    if not has_enabled:
        return ()
    return (Generation.BITS,) if has_threshold else (Generation.SWITCH, Generation.BITS)


def accept_enabled(text: str, generation: Generation) -> int | None:
    """Return what hugetext_enabled reads after a write of ``text``, None where the write is refused with EINVAL."""
    switch = generation is Generation.SWITCH
    number = kstrtoul(text, 10 if switch else 0)
    return number if number is not None and number <= (_SWITCH_ON if switch else _BOTH_BITS) else None


def accept_parameters(values: Sequence[str], generation: Generation) -> tuple[int | None, int]:
    """Return what ``values`` of hugetext= set, None for nothing, and how many of them the kernel log complains about.

    The last one wins. A number above 3 is no error of the parser: it changes nothing, and nothing is said.
    """
    if generation is Generation.SWITCH:
        accepted = [int(value) for value in values if value in ("0", "1")]
        return accepted[-1] if accepted else None, len(values) - len(accepted)
    numbers = [number for number in map(kstrtoul, values) if number is not None]
    accepted = [number for number in numbers if number <= _BOTH_BITS]
    return accepted[-1] if accepted else None, len(values) - len(numbers)


def accept_threshold(text: str, pmd: int) -> int | None:
    """Return the bytes that hugetext_pad_threshold reads after a write of ``text``, None where it is refused.

    ``pmd`` is the bytes of a PMD-sized page, which a threshold has to be below.
    """
    number = kstrtoul(text, 10)
    return number if number is not None and number < pmd else None
