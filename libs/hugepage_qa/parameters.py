"""The words of a kernel command line, split as the kernel splits them (next_arg() in lib/cmdline.c)."""

from collections.abc import Iterator
from dataclasses import dataclass

# isspace() of the kernel, as far as ASCII goes
_SPACES = " \t\n\v\f\r"
_QUOTE = '"'


@dataclass(frozen=True)
class Parameter:
    """One word of the command line: ``name=value``, or ``name`` alone with value None."""

    name: str
    value: str | None = None

    @property
    def canonical(self) -> str:
        """The name with ``-`` turned into ``_``: the kernel takes both for the same (parameqn() in kernel/params.c)."""
        return self.name.replace("-", "_")

    def __str__(self) -> str:
        """The word without quotes, as the kernel repeats it in its log and hands it to init."""
        return self.name if self.value is None else f"{self.name}={self.value}"


def canonical_name(word: str) -> str:
    """Return the name in ``word``, a parameter without quotes, as ``Parameter.canonical`` is."""
    return word.partition("=")[0].replace("-", "_")


def parse_parameters(text: str) -> tuple[Parameter, ...]:
    """Return the kernel's parameters in ``text``, in order, up to a word ``--``; what follows that belongs to init.

    Quotes can stand around a value (``a="b c"``) or a whole word (``"a=b c"``), and cannot be escaped.
    Every text has a meaning to the kernel, so nothing is an error.
    """
    parameters = []
    for parameter in _words(text):
        if parameter == Parameter("--"):
            break
        parameters.append(parameter)
    return tuple(parameters)


def _words(text: str) -> Iterator[Parameter]:
    rest = text.lstrip(_SPACES)
    while rest:
        quoted = rest.startswith(_QUOTE)
        rest = rest.removeprefix(_QUOTE)
        length = _word_length(rest, quoted)
        yield _parameter(rest[:length], quoted)
        rest = rest[length:].lstrip(_SPACES)


def _word_length(text: str, in_quotes: bool) -> int:
    """Return where the first space outside quotes is; quotes may open and close anywhere in a word."""
    for index, char in enumerate(text):
        if char in _SPACES and not in_quotes:
            return index
        if char == _QUOTE:
            in_quotes = not in_quotes
    return len(text)


def _parameter(word: str, quoted: bool) -> Parameter:
    # the search starts at 1: the kernel's loop takes an equals sign at the very start for part of the name
    equals = word.find("=", 1)
    if equals < 0:
        return Parameter(word.removesuffix(_QUOTE) if quoted else word)
    name, value = word[:equals], word[equals + 1 :]
    if value.startswith(_QUOTE):
        value = value[1:].removesuffix(_QUOTE)
    elif quoted:
        value = value.removesuffix(_QUOTE)
    return Parameter(name, value)
