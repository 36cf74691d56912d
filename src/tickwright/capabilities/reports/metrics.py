"""What the services of reports count, for the metrics of their process."""

from collections.abc import Sequence

from tickwright.capabilities.reports.merge.supervisor import ReportSupervisor
from tickwright.capabilities.reports.parts.listeners import ReportListener
from tickwright.observe.metrics import Sample, Source


def source_of(listener: ReportListener, supervisor: ReportSupervisor) -> Source:
    """Return what reads both."""

    def read() -> Sequence[Sample]:
        return [
            Sample("tickwright_report_running_parts", listener.running),
            Sample("tickwright_report_stuck_calls", listener.stuck),
            Sample("tickwright_report_running_steps", supervisor.running),
            *(Sample("tickwright_report_parts_total", n, (name,)) for name, n in sorted(listener.counts.items())),
            *(Sample("tickwright_report_steps_total", n, (name,)) for name, n in sorted(supervisor.counts.items())),
        ]

    return read
