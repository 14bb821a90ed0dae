"""The sources of programs: pages of code, each with a function that returns the number of the page, and constants."""

#: bytes from one function to the next: the smallest base page
STEP = 4096
#: the one function whose name the linker shows
FIRST = "text_page_0"


def pages_of_code(first: int, count: int) -> str:
    """Return C with the functions of ``count`` pages from number ``first`` on."""
    section = f'section(".text.pages"), aligned({STEP})'
    functions = [
        f"{'' if number == 0 else 'static '}__attribute__(({section}, used, noinline))\n"
        f"unsigned long text_page_{number}(void) {{ return {number}UL; }}\n"
        for number in range(first, first + count)
    ]
    return f"unsigned long {FIRST}(void);\n" + "".join(functions)


def constants(size: int) -> str:
    """Return C with ``size`` bytes that are only read."""
    return f"__attribute__((used)) const unsigned char text_constants[{size}] = {{1}};\n"


def aligned_by_script(alignment: int) -> str:
    """Return a script for GNU ld that moves code and data to multiples of ``alignment``, and leaves all else to it."""
    return "".join(f"SECTIONS {{ . = ALIGN({alignment:#x}); }} INSERT BEFORE {name};\n" for name in (".init", ".data"))
