-- Conditions, as PostgreSQL and DuckDB both read them; no statements. A field is its column, cast to its type; NULL is missing, and so unknown.

-- name: both
-- False if one side is false, whatever the other; unknown otherwise if one is. An index serves each side.
({left} AND {right});

-- name: either
-- True if one side is true, whatever the other.
({left} OR {right});

-- name: negated
-- Unknown stays so.
(NOT {left});

-- name: chosen
-- One of two; unknown if the condition is.
(CASE {condition} WHEN TRUE THEN {left} WHEN FALSE THEN {right} END);

-- name: compared
-- Whole numbers, truths and instants. An index on the column serves.
({left} {sign} {right});

-- name: compared_below
-- A column and a number, where NaN, which both databases take for the greatest, is not greater than anything.
({left} {sign} {right} AND {number} <= CAST('Infinity' AS double precision));

-- name: compared_doubles
-- Two columns: NaN is not equal to, less or greater than anything, but it is {unequal} that it differs.
(CASE WHEN {left} IS NULL OR {right} IS NULL THEN NULL
      WHEN {left} = CAST('NaN' AS double precision) OR {right} = CAST('NaN' AS double precision) THEN {unequal} ELSE {left} {sign} {right} END);

-- name: among
-- One of a list that is not empty and has no NULL.
({left} = ANY(CAST({values} AS {type}[])));

-- name: text
-- A text that is compared by code points, whatever the collation of its column or database. An index in "C" serves.
({left} COLLATE "C");

-- name: starts
-- A prefix, byte by byte.
starts_with({left}, {right});

-- name: ends
-- A suffix; a text that is shorter has none.
(right({left}, length({right})) = {right});

-- name: contains
-- A part; the empty text is part of any.
(strpos({left}, {right}) > 0);

-- name: size
-- Code points.
CAST(length({left}) AS bigint);

-- name: doubled
-- The double nearest to a whole number.
CAST({left} AS double precision);

-- name: bound
-- A value, never written into the text.
CAST({value} AS {type});
