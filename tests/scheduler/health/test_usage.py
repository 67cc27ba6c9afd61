"""How GPUs were used over the last day."""

import pytest

from longshore.scheduler.health.evidence import (
    FRESH_REPORT_S,
    MAX_USE_SAMPLES,
    SAMPLE_EVERY_S,
    AgentReport,
    GpuReport,
    NodeReport,
    Usage,
    UseSample,
    use_sample_of,
)

NODES = {"a": 4, "b": 4}


def report(*utilisation: float, at_s: float = 0.0) -> AgentReport:
    gpus = [GpuReport(index=at, healthy=True, utilisation=it, free_bytes=0) for at, it in enumerate(utilisation)]
    return AgentReport(at_s, NodeReport(gpus=tuple(gpus)))


@pytest.mark.parametrize(
    ("held", "reports", "sample"),
    [
        ([], {}, (0.0, None)),
        ([("a", 0), ("b", 3)], {}, (0.25, None)),
        ([("a", 7), ("gone", 0)], {}, (0.0, None)),  # no GPUs of this cluster
        ([], {"a": report(1.0, 0.5), "b": report(0.0)}, (0.0, 0.5)),
        ([], {"a": report(1.0, at_s=-FRESH_REPORT_S - 1.0), "b": report(0.25)}, (0.0, 0.25)),
        ([], {"a": report(0.5, 0.5, 0.5, 0.5, 1.0), "gone": report(1.0)}, (0.0, 0.5)),
        ([], {"a": report()}, (0.0, None)),
    ],
)
def test_a_sample_has_the_held_share_and_the_reported_utilisation(
    held: list[tuple[str, int]], reports: dict[str, AgentReport], sample: tuple[float, float | None]
) -> None:
    assert use_sample_of(held, NODES, reports, 0.0) == UseSample(0.0, *sample)


def test_a_cluster_without_gpus_uses_none() -> None:
    assert use_sample_of([], {}, {}, 0.0) == UseSample(0.0, 0.0, None)


def test_no_more_than_a_day_is_kept() -> None:
    usage = Usage()
    for number in range(MAX_USE_SAMPLES + 10):
        assert usage.is_due(number * SAMPLE_EVERY_S)
        usage.add(UseSample(number * SAMPLE_EVERY_S, 0.0, None))
    assert (len(usage.samples()), usage.samples()[0].at_s, usage.taken) == (
        MAX_USE_SAMPLES,
        10 * SAMPLE_EVERY_S,
        MAX_USE_SAMPLES + 10,
    )
    assert not usage.is_due(usage.samples()[-1].at_s + 0.5 * SAMPLE_EVERY_S)


def test_samples_stay_in_order_when_a_clock_is_set_back() -> None:
    usage = Usage()
    for at_s in (100.0, 200.0, 300.0):
        usage.add(UseSample(at_s, 0.0, None))
    assert usage.is_due(150.0)
    usage.add(UseSample(150.0, 1.0, None))
    assert [it.at_s for it in usage.samples()] == [100.0, 150.0]
