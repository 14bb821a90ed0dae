"""Which words of a command line a machine's kernel did not know."""

from collections.abc import Callable

import pytest

from hugepage_qa.kernel.facts import read_facts
from hugepage_qa.kernel.tree import CapturedTree
from hugepage_qa.machine.describe import boot_observations, describe, unknown_words
from hugepage_qa.oracle.boot.predict import predict

GetCapture = Callable[[str], CapturedTree]


def booted(tree: CapturedTree, word: str, complaint: str) -> CapturedTree:
    """Return what a kernel shows that hands ``word`` on to init and says ``complaint`` of it."""
    unknown = f'Unknown kernel command line parameters "{word}", will be passed to user space.'
    return CapturedTree({**tree.files, "dmesg": f"<4>[    0.1] {complaint}\n<5>[    0.2] {unknown}\n"})


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("transparent_hugepage=bogus", "huge_memory: transparent_hugepage= cannot parse, ignored"),
        ("thp_anon=48K:always", "huge_memory: thp_anon=48K:always: error parsing string, ignoring setting"),
        ("hugepagesz=3M", "HugeTLB: unsupported hugepagesz=3M"),
        ("hugepages=abc", "HugeTLB: Invalid hugepages parameter abc"),
        ("hugepages=8", "HugeTLB: hugepages=8 does not follow a valid hugepagesz, ignoring"),
    ],
)
def test_a_word_whose_value_was_refused_is_known(capture: GetCapture, word: str, complaint: str) -> None:
    assert unknown_words(read_facts(booted(capture("x86_64-max-6.1-nodes"), word, complaint))) == ()


@pytest.mark.parametrize(
    "complaint",
    ["Linux version 6.1", "HugeTLB: unsupported default_hugepagesz=3M", "HugeTLB: registered 2.00 MiB page size"],
)
def test_a_word_that_nobody_complained_about_is_unknown(capture: GetCapture, complaint: str) -> None:
    facts = read_facts(booted(capture("x86_64-max-6.1-nodes"), "hugepagesz=3M", complaint))
    assert unknown_words(facts) == ("hugepagesz=3M",)
    assert boot_observations(facts)["unknown/hugepagesz"] == "named"


def test_a_parameter_that_the_machine_shows_is_known_even_where_the_kernel_says_nothing_of_its_value(
    capture: GetCapture,
) -> None:
    """The configuration is not known here, and an invalid value that nobody complains about is no unknown parameter."""
    facts = read_facts(booted(capture("x86_64-max-6.1-nodes"), "transparent_hugepage=sometimes", "Linux version 6.1"))
    prediction = predict("transparent_hugepage=sometimes", describe(facts))
    assert not prediction.unjudged
    assert "transparent_hugepage= cannot parse, ignored" in [message.text for message in prediction.messages]
