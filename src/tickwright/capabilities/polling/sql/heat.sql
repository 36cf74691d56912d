-- name: heat
-- What became of the turns from $1 to before $2, in cells of $4 minutes, of all partners or of the number $3; a turn that is still to
-- come, or late, counts with what its slot held in its last one. peak is the fullest ten seconds of a cell. Index: poll_slices_pkey.
WITH turn AS (
  SELECT due_at, selected + skipped + deferred AS expected, selected, skipped, deferred, published, polled, late, superseded, coalesced, loads
    FROM tickwright.poll_slices
   WHERE due_at >= $1 AND due_at < $2 AND ($3::smallint IS NULL OR partner_no = $3)
  UNION ALL
  SELECT s.next_due_at, (SELECT coalesce(sum(load), 0) FROM unnest(l.loads) AS load), 0, 0, 0, 0, 0, 0, 0, false, l.loads
    FROM tickwright.poll_slots s
    JOIN tickwright.poll_slices l ON l.due_at = s.prev_due_at AND l.slot_id = s.slot_id AND NOT l.coalesced
   WHERE s.next_due_at >= $1 AND s.next_due_at < $2 AND ($3::smallint IS NULL OR l.partner_no = $3)
), minute AS (
  SELECT due_at, sum(expected) AS expected, sum(selected) AS selected, sum(skipped) AS skipped, sum(deferred) AS deferred,
         sum(published) AS published, sum(polled) AS polled, sum(late) AS late, sum(superseded) AS superseded,
         count(*) FILTER (WHERE coalesced) AS coalesced,
         greatest(sum(loads[1]), sum(loads[2]), sum(loads[3]), sum(loads[4]), sum(loads[5]), sum(loads[6])) AS peak,
         coalesce(sum(loads[1]), 0) + coalesce(sum(loads[2]), 0) + coalesce(sum(loads[3]), 0)
           + coalesce(sum(loads[4]), 0) + coalesce(sum(loads[5]), 0) + coalesce(sum(loads[6]), 0) AS load
    FROM turn GROUP BY due_at
)
SELECT date_bin(make_interval(mins => $4), due_at, 'epoch') AS from_at,
       sum(expected)::bigint AS expected, sum(selected)::bigint AS selected, sum(skipped)::bigint AS skipped,
       sum(deferred)::bigint AS deferred, sum(published)::bigint AS published, sum(polled)::bigint AS polled, sum(late)::bigint AS late,
       sum(superseded)::bigint AS superseded, sum(coalesced)::bigint AS coalesced,
       coalesce(max(peak), 0)::bigint AS peak, sum(load)::bigint AS load, count(*) AS minutes
  FROM minute GROUP BY 1 ORDER BY 1;

-- name: last_turns
-- How many slots have their last turn in each cell of $3 minutes from $1 to before $2: what a replay can look at. Small: a row per slot.
SELECT date_bin(make_interval(mins => $3), prev_due_at, 'epoch') AS from_at, count(*) AS turns
  FROM tickwright.poll_slots WHERE prev_due_at >= $1 AND prev_due_at < $2 GROUP BY 1;
