"""Alert rules, their evaluation, and the receivers of alerts."""
