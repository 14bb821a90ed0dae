"""How cases name page sizes by what they are on the machine, and amounts in bytes or as a fraction of its memory.

{default}  the architecture's default size       {large}  its largest gigantic size up to 1 GiB
{other}    a further size that is not gigantic   {64M/default}  the number of such pages in 64 MiB
{3/5/default}  the number of such pages in three fifths of the memory
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from hugepage_qa.errors import InputError
from hugepage_qa.model.architecture import Mmu
from hugepage_qa.sizes import GIB, format_size, parse_size

SIZE_NAMES = ("default", "large", "other")

_PLACEHOLDER = re.compile(
    rf"\{{(?:(?P<amount>[0-9]+[KMG]?|[0-9]{{1,3}}/[1-9][0-9]{{0,2}})/)?(?P<size>{'|'.join(SIZE_NAMES)})\}}"
)
_FRACTION = re.compile(r"(?P<part>[0-9]{1,3})/(?P<whole>[1-9][0-9]{0,2})")


class NotApplicable(Exception):
    """The machine does not have what the case is about; the message is the fact that proves it."""


@dataclass(frozen=True)
class Amounts:
    """What the names stand for on one machine: page sizes and, where it is known, all of its memory, in bytes."""

    sizes: Mapping[str, int]
    memory: int | None = None

    def size(self, name: str) -> int:
        """Return the page size ``name`` in bytes; raises NotApplicable where the machine has none."""
        if name not in self.sizes:
            raise NotApplicable(f"the machine has no {name} page size")
        return self.sizes[name]

    def pages(self, amount: str, name: str) -> int:
        """Return how many pages of the size ``name`` there are in ``amount``. Raises InputError, NotApplicable."""
        size = self.size(name)
        if match := _FRACTION.fullmatch(amount):
            if self.memory is None:
                raise InputError(f"amount {amount!r}: expected bytes, the memory of the machine is not known here")
            return self.memory * int(match["part"]) // int(match["whole"]) // size
        return parse_size(amount) // size

    def fill(self, text: str) -> str:
        """Return ``text`` with sizes and numbers in place of the names in braces. Raises InputError, NotApplicable."""

        def value(match: re.Match[str]) -> str:
            if match["amount"] is None:
                return format_size(self.size(match["size"]))
            return str(self.pages(match["amount"], match["size"]))

        filled = _PLACEHOLDER.sub(value, text)
        if "{" in filled:
            raise InputError(
                f"case with {text!r}: expected {{default}}, {{large}}, {{other}} or {{64M/default}} in braces"
            )
        return filled

    def fact(self, value: object) -> int | str:
        """Return what a fact must be: a number, a word, or the bytes of a size in braces. Raises as ``fill`` does."""
        if isinstance(value, int):
            return value
        text = self.fill(str(value))
        return parse_size(text) if _PLACEHOLDER.fullmatch(str(value)) else text


def named_sizes(mmu: Mmu, features: frozenset[str]) -> dict[str, int]:
    """Return the page sizes of a machine by what they are; a CPU without huge pages has those of its architecture."""
    sizes = mmu.sizes(features) or tuple(mmu.hugetlb)
    named = {"default": mmu.default}
    gigantic = [size for size in sizes if mmu.is_gigantic(size) and size <= GIB]
    if gigantic:
        named["large"] = max(gigantic)
    others = [size for size in sizes if size != mmu.default and not mmu.is_gigantic(size)]
    if others:
        named["other"] = others[0]
    return named
