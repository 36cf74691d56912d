"""The statements that read workflows for operators."""

from tickwright.store.queries import filled, load

SQL = filled(filled(load("tickwright.capabilities.jobs.workflows.sql", "workflow_views.sql"), "shown"), "node_state")
