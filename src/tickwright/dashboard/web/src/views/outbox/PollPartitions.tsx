/** The partitions that polls were published to within a week: the position, lag and reader of each. */
import { useQuery } from "@tanstack/react-query";
import { get, type Schemas } from "../../api/client";
import { updating } from "../../app/prefs";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { count } from "../../parts/Figure";
import { Instant } from "../../parts/Instant";

type Partition = Schemas["PollPartitionView"];

const COLUMNS: Column<Partition>[] = [
  { id: "topic", header: "Topic", width: 200, hide: "sm", cell: (one) => <span title={one.topic}>{one.topic}</span> },
  { id: "partition", header: "Partition", width: 86, align: "right", cell: (one) => one.partition },
  { id: "lag", header: "Lag", width: 90, align: "right", cell: (one) => count(one.lag) },
  { id: "position", header: "Position", width: 110, align: "right", hide: "sm", cell: (one) => (one.position === null ? "–" : count(one.position)) },
  { id: "end", header: "End", width: 110, align: "right", hide: "sm", cell: (one) => count(one.end_offset) },
  { id: "since", header: "Oldest unfinished", width: 140, hide: "md", cell: (one) => <Instant at={one.unfinished_since} ago /> },
  { id: "reader", header: "Read by", cell: (one) => <span title={one.reader ?? ""}>{one.reader ?? "none"}</span> },
  { id: "seen", header: "Last seen", width: 100, hide: "sm", cell: (one) => <Instant at={one.seen_at} ago /> },
];

export function PollPartitions() {
  const held = updating.use() === "held";
  const found = useQuery({ queryKey: ["outbox", "partitions"], queryFn: ({ signal }) => get("/v1/outbox/polls/partitions", { signal }), refetchInterval: held ? false : 5_000 });
  return (
    <DataTable
      label="Partitions of polls"
      columns={COLUMNS}
      pages={{ rows: found.data?.items, error: found.error, again: () => void found.refetch() }}
      rowKey={(one) => `${one.topic}/${one.partition}`}
      empty={<EmptyState title="No poll was published to Kafka within a week">Without TICKWRIGHT_KAFKA_BOOTSTRAP polls stay inside PostgreSQL; the relays show waiting polls.</EmptyState>}
    />
  );
}
