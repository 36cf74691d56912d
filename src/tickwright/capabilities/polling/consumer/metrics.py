"""What a consumer of polls counts, for the metrics of its process."""

from collections.abc import Sequence

from tickwright.capabilities.polling.consumer.consumer import PollConsumer
from tickwright.observe.metrics import Sample, Source


def consumer_source(consumer: PollConsumer) -> Source:
    """Return what reads a consumer."""

    def read() -> Sequence[Sample]:
        effector = consumer.effector
        samples = [
            Sample("tickwright_polls_done_total", effector.polled),
            Sample("tickwright_poll_news_total", effector.news),
            Sample("tickwright_polls_late_total", effector.late),
            Sample("tickwright_polls_superseded_total", effector.superseded),
            Sample("tickwright_poll_lost_answers_total", effector.lost),
            Sample("tickwright_poll_answer_backlog", effector.unwritten),
        ]
        return [*samples, *(Sample("tickwright_polls_held", desk.held, (desk.name,)) for desk in consumer.desks)]

    return read
