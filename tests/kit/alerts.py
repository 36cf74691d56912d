"""The alert rules of every plugin, as a process has them."""

from tickwright.process.installation import alert_rules

RULES = alert_rules()
RULES_SQL = {rule.name: rule.sql for rule in RULES}
"""Queries by rule; of a rule with several queries the last one, see ``RULES``."""
