-- name: installation_id
-- The id of this installation, different in each. It signs cursors, and other secrets are derived from it, so it is never shown.
SELECT id::text FROM tickwright.installation;

-- name: plan_page
-- Make a page walk its index from its start; without this a generic plan may sort a million rows for fifty.
SELECT set_config('enable_sort', 'off', true), set_config('enable_bitmapscan', 'off', true);
