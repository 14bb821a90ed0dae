"""Finished blocks as samples in the format that the gate reads (gate/schemas/samples.json)."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hugepage_qa.bench.backing import REFERENCE
from hugepage_qa.bench.measurement import FinishedBlock, Plan
from hugepage_qa.bench.workload import Metric, Workload
from hugepage_qa.errors import InputError

_FORMAT = "hugepage-qa samples"
_VERSION = 1


def sample_document(plan: Plan, workload: Workload, blocks: Collection[FinishedBlock]) -> dict[str, Any] | None:
    """Return the samples of ``workload`` in complete sessions, None where there is none.

    A session counts when each of its configurations was measured as often as planned: in half of one the order hits
    them unequally. Raises InputError where the program has changed between blocks.
    """
    own = [block for block in blocks if block.cell.workload == workload.name and not plan.is_skipped(block.cell)]
    planned = plan.configurations[workload.name]
    configurations = [name for name in planned if f"{workload.name} [{name}]" not in plan.skipped]
    whole = {
        session
        for session in {block.cell.session for block in own}
        if sum(block.cell.session == session for block in own) == 2 * len(configurations)
    }
    own = sorted((block for block in own if block.cell.session in whole), key=lambda one: one.started)
    if not own:
        return None
    if any((block.identity, block.subject) != (own[0].identity, own[0].subject) for block in own):
        raise InputError(f"{workload.name}: its program has changed between blocks; name another directory")
    parameters = {f"benchmark.parameters.{key}": value for key, value in workload.profiles[plan.profile].items()}
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "suite": workload.name,
        "environment": {
            **plan.environment,
            "benchmark.name": workload.name,
            "benchmark.profile": plan.profile,
            **{f"benchmark.{key}": value for key, value in own[0].identity.items()},
            **parameters,
        },
        "subject": {**plan.subject, **own[0].subject, **_stand_ins(plan)},
        **_reference(configurations),
        "series": [
            _series(plan, metric, name, [block for block in own if block.cell.configuration == name])
            for metric in workload.metrics
            if all(metric.name in block.figures for block in own)
            for name in configurations
        ],
    }


def _stand_ins(plan: Plan) -> dict[str, str]:
    """Return what is not what it is called: part of the subject, as it is what a verdict is about."""
    return (
        {"stand_ins": ", ".join(f"{name} on {other}" for name, other in plan.stand_ins.items())}
        if plan.stand_ins
        else {}
    )


def _reference(configurations: Sequence[str]) -> dict[str, str]:
    return {"reference": REFERENCE if REFERENCE in configurations else configurations[0]}


def _series(plan: Plan, metric: Metric, configuration: str, blocks: Sequence[FinishedBlock]) -> Mapping[str, Any]:
    return {
        "metric": metric.name,
        "unit": metric.unit,
        "direction": metric.direction,
        "kind": metric.kind,
        "configuration": configuration,
        "blocks": [
            {
                "order": block.cell.order,
                "session": f"{plan.identity}-{block.cell.session}",
                "started": block.started,
                "boot": block.boot,
                "sentinel": block.sentinel,
                "sentinel_after": block.sentinel_after,
                "samples": block.figures[metric.name],
            }
            for block in blocks
        ],
    }
