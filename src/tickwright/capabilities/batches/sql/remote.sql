-- name: remote_batches
-- The batches that remote workers work on: name, target, and what a process must have to read the audience, if there is one. Small: a row per batch.
SELECT b.name, b.definition ->> 'target' AS target,
       CASE WHEN b.definition ? 'audience' THEN coalesce('source:' || (b.definition #>> '{audience,source}'), 'objects') END AS needs
  FROM tickwright.batches b WHERE b.kind = 'program' AND b.definition ? 'target' ORDER BY b.name LIMIT 10000;
