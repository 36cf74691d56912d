"""Expressions of campaigns: CEL parses, types and evaluates; what may be written is bounded; SQL comes from CEL's tree.

See ADR-0019. No module outside of this package imports the library. Codes, each with line, column and offset:

====================== ==================================================================================
expression_syntax      it cannot be read, or holds a character that no reader would see
unknown_field          a name that is not declared; the nearest ones are told
expression_type        types that do not go together, with what to write instead
expression_not_boolean it decides nothing
expression_too_large   characters, pieces, depth, a list, a pattern, or texts put together
expression_loops       ``all exists exists_one map filter``
expression_not_allowed a function or form off the list
invalid_literal        a time, duration, zone or pattern that would fail for every client; an inexact number
====================== ==================================================================================
"""

from tickwright.capabilities.batches.expressions.bounds import TEXT_CHARS_MAX
from tickwright.capabilities.batches.expressions.compiling import compile_expression
from tickwright.capabilities.batches.expressions.judging import Expression
from tickwright.capabilities.batches.expressions.problems import Problem, explain_problem

__all__ = ["TEXT_CHARS_MAX", "Expression", "Problem", "compile_expression", "explain_problem"]
