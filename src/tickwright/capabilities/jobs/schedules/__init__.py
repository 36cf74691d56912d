"""Periodic jobs: definitions, the source of the producer, and the operations on schedules."""
