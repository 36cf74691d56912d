"""A failure is named when it happens: a run that is cut off says what had failed in it."""

import pytest


@pytest.hookimpl(trylast=True)  # the terminal is there
def pytest_configure(config: pytest.Config) -> None:
    """Name failures where there is a terminal; the processes of ``-n 2`` have none."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        config.pluginmanager.register(_Failures(terminal))


class _Failures:
    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = "" if crash is None else f": {crash.message.partition(chr(10))[0]}"
            self._terminal.ensure_newline()
            self._terminal.write_line(f"FAILED in {report.when}: {report.nodeid}{why}")
