"""What a user's program brings, as one value that goes from the app object to the process that runs it."""

from dataclasses import dataclass, field

from tickwright.capabilities.batches.executions.work import BatchRegistry
from tickwright.capabilities.fanout.handlers import ModuleRegistry
from tickwright.capabilities.jobs.handlers import HandlerRegistry
from tickwright.capabilities.polling.consumer.courier import CourierRegistry
from tickwright.capabilities.reports.handlers import ListenerRegistry, ReportRegistry


@dataclass(frozen=True, slots=True)
class Brought:
    """One registry per decorator.

    Attributes:
        handlers: Of one-shot jobs.
        couriers: Whom a consumer of polls asks.
        modules: What a consumer of fan-out calls.
        listeners: Who brings parts of reports.
        reports: Report types.
        batches: What a consumer of executions calls.
    """

    handlers: HandlerRegistry = field(default_factory=HandlerRegistry)
    couriers: CourierRegistry = field(default_factory=CourierRegistry)
    modules: ModuleRegistry = field(default_factory=ModuleRegistry)
    listeners: ListenerRegistry = field(default_factory=ListenerRegistry)
    reports: ReportRegistry = field(default_factory=ReportRegistry)
    batches: BatchRegistry = field(default_factory=BatchRegistry)
