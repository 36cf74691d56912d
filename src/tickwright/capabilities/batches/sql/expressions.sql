-- Conditions for PostgreSQL and DuckDB; no statements. A field is its column, cast to its type; NULL is missing, so unknown.

-- name: both
-- False if one side is false, whatever the other; else unknown if one side is. An index serves each side.
({left} AND {right});

-- name: either
-- True if one side is true, whatever the other.
({left} OR {right});

-- name: negated
-- Unknown stays unknown.
(NOT {left});

-- name: chosen
-- One of two; unknown if the condition is unknown.
(CASE {condition} WHEN TRUE THEN {left} WHEN FALSE THEN {right} END);

-- name: compared
-- Integers, booleans and instants. An index on the column serves.
({left} {sign} {right});

-- name: compared_below
-- A column and a number. Both databases sort NaN as the greatest number; here it is not greater than any.
({left} {sign} {right} AND {number} <= CAST('Infinity' AS double precision));

-- name: compared_doubles
-- Two columns: NaN is neither equal to, less nor greater than any number, and different from each.
(CASE WHEN {left} IS NULL OR {right} IS NULL THEN NULL
      WHEN {left} = CAST('NaN' AS double precision) OR {right} = CAST('NaN' AS double precision) THEN {unequal} ELSE {left} {sign} {right} END);

-- name: among
-- Membership in a list that is not empty and has no NULL.
({left} = ANY(CAST({values} AS {type}[])));

-- name: text
-- A text compared by code points, whatever the collation of its column or database. An index in "C" serves.
({left} COLLATE "C");

-- name: starts
-- A prefix, byte by byte.
starts_with({left}, {right});

-- name: ends
-- A suffix; a shorter text has none.
(right({left}, length({right})) = {right});

-- name: contains
-- A substring; the empty text is part of any.
(strpos({left}, {right}) > 0);

-- name: size
-- Length in code points.
CAST(length({left}) AS bigint);

-- name: doubled
-- The double nearest to a whole number.
CAST({left} AS double precision);

-- name: bound
-- A bound value, never written into the text.
CAST({value} AS {type});
