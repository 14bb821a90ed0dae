"""The source of pages of code, each with a function of its own that returns the number of the page."""

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
