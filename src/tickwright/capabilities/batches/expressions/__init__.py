"""Expressions of campaigns: CEL parses, types and evaluates them; this package bounds them and translates them to SQL.

See ADR-0019. No module outside of this package imports the library. Codes, each with line, column and offset:

====================== ==================================================================================
expression_syntax      it cannot be parsed, or contains an invisible character
unknown_field          a name that is not declared; the message lists the nearest names
expression_type        types that do not go together, with what to write instead
expression_not_boolean its type is not boolean
expression_too_large   characters, nodes, depth, a list, a pattern, or concatenated texts
expression_loops       ``all exists exists_one map filter``
expression_not_allowed a function or form that is not on the list
invalid_literal        a time, duration, zone or pattern that would fail for every client; an inexact number
====================== ==================================================================================
"""

from tickwright.capabilities.batches.expressions.allowed import TEXT_CHARS_MAX
from tickwright.capabilities.batches.expressions.compiling import compile_expression
from tickwright.capabilities.batches.expressions.judging import Expression
from tickwright.capabilities.batches.expressions.problems import Problem, explain_problem

__all__ = ["TEXT_CHARS_MAX", "Expression", "Problem", "compile_expression", "explain_problem"]
