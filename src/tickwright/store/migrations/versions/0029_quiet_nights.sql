-- On the nights when clocks change, quiet hours end with the second of two equal times, and what begins or ends at a time that does not come does so at the jump:
-- calls began in them for up to an hour. ``tickwright.partners.quiet`` says the same. Forward on a live system: two functions are replaced, and one is new.

-- PostgreSQL takes a time that does not come for one behind the jump, by as much as the clock jumps. In a function of its own: the other one stays one
-- expression, which is no call.
CREATE FUNCTION tickwright.jump_over(wall timestamp, zone text) RETURNS timestamptz LANGUAGE sql STABLE
RETURN (SELECT min(s) FROM generate_series(wall AT TIME ZONE zone - (wall AT TIME ZONE zone AT TIME ZONE zone - wall),
                                           wall AT TIME ZONE zone, interval '1 minute') AS s WHERE s AT TIME ZONE zone >= wall);
COMMENT ON FUNCTION tickwright.jump_over(timestamp, text) IS 'The instant at which the clock jumps over a local time that does not come.';

CREATE OR REPLACE FUNCTION tickwright.first_instant(wall timestamp, zone text) RETURNS timestamptz LANGUAGE sql STABLE
RETURN CASE WHEN wall AT TIME ZONE zone AT TIME ZONE zone <> wall THEN tickwright.jump_over(wall, zone)
            WHEN tickwright.before_change(wall, wall AT TIME ZONE zone, zone) < wall AT TIME ZONE zone
             AND tickwright.before_change(wall, wall AT TIME ZONE zone, zone) AT TIME ZONE zone = wall
            THEN tickwright.before_change(wall, wall AT TIME ZONE zone, zone)
            ELSE wall AT TIME ZONE zone END;
COMMENT ON FUNCTION tickwright.first_instant(timestamp, text) IS
  'The instant of a local time: the first of two where the clock is put back, the jump where it is put forward over it.';

CREATE OR REPLACE FUNCTION tickwright.quiet_at(settings jsonb, at timestamptz) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
DECLARE
  quiet jsonb := settings->'quiet';
  entry jsonb;
  part text[];
  days text[];
  zone text;
  begins integer;
  ends integer;
  day date;
  found boolean := false;
BEGIN
  quiet := CASE jsonb_typeof(quiet) WHEN 'string' THEN jsonb_build_array(quiet) WHEN 'array' THEN quiet ELSE '[]' END;
  IF jsonb_array_length(quiet) > 20 THEN
    RETURN false;
  END IF;
  FOR entry IN SELECT value FROM jsonb_array_elements(quiet) LOOP
    part := CASE jsonb_typeof(entry) WHEN 'string' THEN regexp_match(entry #>> '{}', -- no {1,60} and such: they make it twenty times slower
      '^([a-z,]+ )?([0-9][0-9]):([0-5][0-9])-([0-9][0-9]):([0-5][0-9]) ([A-Za-z0-9_+/-]+)$') END;
    days := string_to_array(rtrim(part[1]), ',');
    zone := part[6];
    begins := part[2]::integer * 60 + part[3]::integer;
    ends := part[4]::integer * 60 + part[5]::integer;
    IF part IS NULL OR begins > 1439 OR ends > 1440 OR begins = ends OR length(zone) > 60
       OR NOT coalesce(days, '{}') <@ '{mon,tue,wed,thu,fri,sat,sun}' OR zone !~ (
         '^([A-Z][A-Za-z]+(/[A-Za-z_-]+)+|Etc/GMT(0|[+-][0-9]|[+-]1[0-2]|-1[34])?'
         '|UTC|GMT|CET|EET|MET|WET|EST|MST|HST|(EST|CST|MST|PST)[5-8][ECMP]DT|GMT[+-]?0|UCT|Zulu|Universal|Greenwich|Cuba|Egypt|Eire|GB'
         '|GB-Eire|Hongkong|Iceland|Iran|Israel|Jamaica|Japan|Kwajalein|Libya|NZ|NZ-CHAT|Navajo|PRC|Poland|Portugal|ROC|ROK|Singapore'
         '|Turkey|W-SU)$') THEN
      RETURN false;
    END IF;
    zone := CASE zone WHEN 'CET' THEN 'Europe/Brussels' WHEN 'MET' THEN 'Europe/Brussels' WHEN 'EET' THEN 'Europe/Athens'
                      WHEN 'WET' THEN 'Europe/Lisbon' ELSE zone END;
    ends := CASE ends WHEN 0 THEN 1440 ELSE ends END;
    ends := CASE WHEN ends > begins THEN ends ELSE ends + 1440 END;
    day := (at AT TIME ZONE zone)::date - 1;
    FOR back IN 0..1 LOOP
      found := found OR ((days IS NULL OR to_char(day, 'dy') = ANY (days))
        AND at >= tickwright.first_instant(day + make_interval(mins => begins), zone)
        AND at < CASE WHEN (day + make_interval(mins => ends)) AT TIME ZONE zone AT TIME ZONE zone = day + make_interval(mins => ends)
                      THEN (day + make_interval(mins => ends)) AT TIME ZONE zone -- the second of two
                      ELSE tickwright.first_instant(day + make_interval(mins => ends), zone) END);
      day := day + 1;
    END LOOP;
  END LOOP;
  RETURN coalesce(found, false);
EXCEPTION WHEN data_exception THEN -- there is no such zone
  RETURN false;
END $$;
