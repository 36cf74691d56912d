-- name: installation
-- What no two installations share; signs cursors.
SELECT id::text FROM tickwright.installation;

-- name: plan_page
-- A page walks its index from where it begins; without this a generic plan may sort a million rows for fifty.
SELECT set_config('enable_sort', 'off', true), set_config('enable_bitmapscan', 'off', true);
