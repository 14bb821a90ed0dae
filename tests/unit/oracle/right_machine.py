"""A machine that does all that a prediction says: the start for machines that do one thing wrong."""

from hugepage_qa.oracle.prediction import (
    AtLeast,
    Between,
    Exactly,
    OneOf,
    Prediction,
    SumOf,
    Value,
)


def right_observations(prediction: Prediction) -> dict[str, Value]:
    """Return observations that meet ``prediction``."""
    found: dict[str, Value] = {}
    sums, least = [], []
    for expectation in prediction.expectations:
        match expectation.expected:
            case Exactly(value=value):
                found[expectation.subject] = value
            case Between(low=low):
                found[expectation.subject] = max(low, int(found.get(expectation.subject, low)))
            case OneOf(values=allowed):
                found[expectation.subject] = allowed[0]
            case SumOf(terms=terms):
                sums.append((expectation.subject, terms))
            case AtLeast(sum=SumOf(terms=terms)):
                least.append((expectation.subject, terms))
            case _:
                pass
    for subject, terms in sums:
        found.setdefault(subject, sum(int(found.get(term, 0)) * weight for term, weight in terms))
    for subject, terms in least:
        total = sum(int(found.setdefault(term, 0)) * weight for term, weight in terms)
        found[subject] = max(total, int(found.get(subject, 0)))
        # what is more than that is free, which counts once
        found[terms[0][0]] = int(found[terms[0][0]]) + int(found[subject]) - total
    return found


def right_log(prediction: Prediction, observations: dict[str, Value]) -> list[str]:
    """Return a kernel log that meets ``prediction`` on the machine with ``observations``."""
    lines = [message.text for message in prediction.messages]
    lines += [
        f"HugeTLB: registered {one.size} page size, pre-allocated {observations[one.subject]} pages"
        for one in prediction.pre_allocated
    ]
    for shortage in prediction.shortages:
        got = observations[shortage.subject]
        if isinstance(got, int) and got < shortage.asked:
            node = "" if shortage.node is None else f" node{shortage.node}"
            lines.append(
                f"HugeTLB: allocating {shortage.asked} of page size {shortage.size} failed{node}."
                f"  Only allocated {got} hugepages."
            )
    return lines
