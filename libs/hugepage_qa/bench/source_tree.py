"""A C program to be built, made up: always the same text, without anything that a distribution would have to bring."""

from pathlib import Path

_FUNCTION = """
static double f{number}(struct vector *v, long n)
{{
	double sum = {number};
	for (long i = 0; i < n; i++) {{
		struct vector w = {{ v[i].z * {number}, v[i].x + sum, v[i].y - i }};
		switch ((i + {number}) % 5) {{
		case 0: sum += w.x * w.y; break;
		case 1: sum -= w.z / (w.x + 1); break;
		case 2: v[i] = w; break;
		case 3: sum = sum > w.z ? sum : w.y; break;
		default: v[i].x = sum;
		}}
	}}
	return sum;
}}
"""

_MAKEFILE = """\
objects := $(patsubst %.c,%.o,$(wildcard part*.c)) main.o

program: $(objects)
	$(CC) -o $@ $^

%.o: %.c vector.h
	$(CC) -O2 -g -c -o $@ $<
"""


def write_tree(directory: Path, files: int, functions: int) -> None:
    """Write a program of so many ``files`` with so many ``functions`` each, and a Makefile, to a new ``directory``."""
    directory.mkdir()
    (directory / "Makefile").write_text(_MAKEFILE, encoding="utf-8")
    declarations = "".join(f"double part{number}(struct vector *v, long n);\n" for number in range(files))
    header = f"#include <stdio.h>\n#include <stdlib.h>\nstruct vector {{ double x, y, z; }};\n{declarations}"
    (directory / "vector.h").write_text(header, encoding="utf-8")
    for number in range(files):
        (directory / f"part{number}.c").write_text(_part(number, functions), encoding="utf-8")
    calls = "".join(f"\tsum += part{number}(v, 9);\n" for number in range(files))
    main = f"int main(void)\n{{\n\tstatic struct vector v[9];\n\tdouble sum = 0;\n{calls}\treturn sum == 1;\n}}\n"
    (directory / "main.c").write_text(f'#include "vector.h"\n{main}', encoding="utf-8")


def _part(number: int, functions: int) -> str:
    bodies = "".join(_FUNCTION.format(number=one) for one in range(functions))
    calls = "".join(f"\tsum += f{one}(v, n);\n" for one in range(functions))
    return (
        f'#include "vector.h"\n{bodies}\ndouble part{number}(struct vector *v, long n)\n'
        f"{{\n\tdouble sum = 0;\n{calls}\treturn sum;\n}}\n"
    )
