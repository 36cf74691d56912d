-- Who reads which partition of the polls' topic, and what operators see of Kafka. Forward on a live system: it only creates,
-- and adds columns without a value.
CREATE TABLE tickwright.poll_partitions (
  topic     text    NOT NULL,
  partition integer NOT NULL,
  epoch     bigint  NOT NULL DEFAULT 1,
  owner     bigint  NOT NULL,
  PRIMARY KEY (topic, partition)
) WITH (fillfactor = 25);
COMMENT ON TABLE tickwright.poll_partitions IS
  'Whose answers to the polls of a partition count. Whoever is assigned the partition by Kafka writes himself in; an effect locks the row.';
COMMENT ON COLUMN tickwright.poll_partitions.epoch IS 'One more with each taking: what was taken under an older one has no effect any more.';
COMMENT ON COLUMN tickwright.poll_partitions.owner IS 'Token of the session that reads the partition.';

------------------------------------------------------------------------------------------------ why a relay stands
ALTER TABLE tickwright.poll_relays
  ADD COLUMN stands_since timestamptz,
  ADD COLUMN stands_code  text,
  ADD COLUMN stands_text  text;
COMMENT ON COLUMN tickwright.poll_relays.stands_code IS
  'Why the relay cannot or may not go on, with stands_text, since stands_since; NULL while it does. Written by the relay, for people.';

------------------------------------------------------------------------------------------------ where polls stand in Kafka
-- Nothing here decides anything: the topic and poll_relays do. It is for explain, alerts and metrics, so a row per batch,
-- per partition, and none per poll.
ALTER TABLE tickwright.poll_slices
  ADD COLUMN shard          smallint,
  ADD COLUMN first_batch_no bigint,
  ADD COLUMN last_batch_no  bigint;
COMMENT ON COLUMN tickwright.poll_slices.first_batch_no IS
  'The batches of the shard in which its polls went to Kafka, from this one to last_batch_no; NULL without Kafka.';

CREATE TABLE tickwright.poll_batches (
  shard            smallint    NOT NULL,
  batch_no         bigint      NOT NULL,
  topic            text        NOT NULL,
  first_release_at timestamptz NOT NULL,
  last_release_at  timestamptz NOT NULL,
  published_at     timestamptz NOT NULL,
  partition_count  integer     NOT NULL,
  partitions       integer[]   NOT NULL,
  first_offsets    bigint[]    NOT NULL,
  last_offsets     bigint[]    NOT NULL,
  PRIMARY KEY (shard, batch_no)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
COMMENT ON TABLE tickwright.poll_batches IS 'Where the last batches of each shard stand in Kafka; older ones are deleted with each new one.';
COMMENT ON COLUMN tickwright.poll_batches.partition_count IS 'Of the topic, when it was published; 0 where only the position proved that the batch is in.';

CREATE TABLE tickwright.poll_ends (
  topic        text          NOT NULL,
  partition    integer       NOT NULL,
  shard        smallint      NOT NULL,
  end_offset   bigint        NOT NULL,
  published_at timestamptz   NOT NULL,
  mark_ends    bigint[]      NOT NULL,
  mark_ats     timestamptz[] NOT NULL,
  PRIMARY KEY (topic, partition, shard)
) WITH (fillfactor = 25);
COMMENT ON TABLE tickwright.poll_ends IS 'Where each relay''s polls end in each partition. Written by the relay alone.';
COMMENT ON COLUMN tickwright.poll_ends.end_offset IS 'One behind its last poll.';
COMMENT ON COLUMN tickwright.poll_ends.mark_ends IS
  'Earlier ends that the group had not passed when the relay looked, with the instants mark_ats: whoever is before one waits since then.';

CREATE TABLE tickwright.poll_reads (
  topic     text        NOT NULL,
  partition integer     NOT NULL,
  position  bigint      NOT NULL,
  read_to   bigint      NOT NULL,
  seen_at   timestamptz NOT NULL,
  PRIMARY KEY (topic, partition)
) WITH (fillfactor = 25);
COMMENT ON TABLE tickwright.poll_reads IS 'How far the consumers are in each partition. Written by whoever reads it, every two seconds.';
COMMENT ON COLUMN tickwright.poll_reads.position IS 'The first poll without an effect: what lies before is over.';
COMMENT ON COLUMN tickwright.poll_reads.read_to IS 'What lies between is in the reader''s memory: waits there for its call, or is in flight.';

CREATE VIEW tickwright.poll_lags AS
SELECT e.topic, e.partition, max(e.end_offset) AS end_offset, r.position, r.read_to, r.seen_at, w.id AS reader, w.name AS reader_name,
       greatest(0, max(e.end_offset) - coalesce(r.position, 0)) AS lag, max(e.published_at) AS published_at,
       min(m.at) FILTER (WHERE m.ends > coalesce(r.position, 0)) AS unfinished_since,
       min(m.at) FILTER (WHERE m.ends > coalesce(CASE WHEN w.id IS NULL THEN r.position ELSE r.read_to END, 0)) AS unread_since
  FROM tickwright.poll_ends e
  LEFT JOIN tickwright.poll_reads r ON r.topic = e.topic AND r.partition = e.partition
  LEFT JOIN tickwright.poll_partitions p ON p.topic = e.topic AND p.partition = e.partition
  LEFT JOIN tickwright.workers w ON w.id = p.owner AND w.lost_at IS NULL AND w.lease_until > clock_timestamp()
                                AND r.seen_at > clock_timestamp() - interval '30 seconds'
  LEFT JOIN LATERAL unnest(e.mark_ends, e.mark_ats) AS m (ends, at) ON true
 GROUP BY e.topic, e.partition, r.position, r.read_to, r.seen_at, w.id, w.name;
COMMENT ON VIEW tickwright.poll_lags IS 'How far the consumers are behind the relays, and since when; no reader where nobody reads.';
