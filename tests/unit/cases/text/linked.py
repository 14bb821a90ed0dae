"""What the linker makes of a recipe, without a compiler: segments as GNU ld 2.40 lays them out on x86_64."""

from typing import Any

PAGE = 4096


def link(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return the segments of a file with the text that ``recipe`` wants."""
    pmd = recipe["pmd"]
    alignment = recipe["alignment"] or pmd
    fixed = 0x400000 if recipe["kind"] == "fixed" else 0
    at = 0 if recipe["short"] else alignment
    size = recipe["whole"] * pmd + recipe["tail"] - at % pmd - PAGE // 2 + (0 if recipe["tail"] else PAGE // 4)
    behind = -(-(at + size) // alignment) * alignment
    data = at + size if recipe["short"] else behind
    text = _segment(fixed + at, at, size, recipe["text_alignment"] or alignment, executable=True)
    if recipe["scripted"]:
        # moved to a multiple of a huge page, without its place in the file
        text |= {"address": fixed + pmd, "size": recipe["whole"] * pmd + recipe["tail"] - PAGE // 2}
        behind = pmd + text["size"] + alignment
    segments = [
        text,
        _segment(fixed + behind + data % alignment, data, 2 * PAGE, recipe["next_alignment"] or alignment),
    ]
    if recipe["constants"]:
        segments[1] |= {"address": fixed + behind + 8 * pmd, "offset": data + 8 * pmd}
        segments.insert(1, _segment(fixed + behind, data, recipe["constants"] + PAGE // 2, alignment))
        data += 8 * pmd
    if not recipe["short"]:
        segments.insert(0, _segment(fixed, 0, PAGE, alignment))
    return {"segments": segments, "size": data + 2 * PAGE + recipe["appended"], "runnable": recipe["runnable"]}


def _segment(address: int, offset: int, size: int, alignment: int, *, executable: bool = False) -> dict[str, Any]:
    return {"address": address, "offset": offset, "size": size, "alignment": alignment, "executable": executable}
