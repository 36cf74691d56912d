/** The outbox: messages that wait, and the relays of polls with their partitions. */
import { SegmentedControl } from "@mantine/core";
import { Link } from "wouter";
import { get, type Schemas } from "../../api/client";
import { useOverview } from "../../app/live";
import { DataTable, type Column } from "../../parts/DataTable";
import { spoken } from "../../parts/Duration";
import { EmptyState } from "../../parts/EmptyState";
import { count, rate } from "../../parts/Figure";
import { Filters, TextFilter } from "../../parts/Filters";
import { Instant } from "../../parts/Instant";
import { Tile, Tiles } from "../../parts/Panel";
import { usePages } from "../../parts/usePages";
import { useUrl } from "../../parts/useUrl";
import { View } from "../../parts/View";
import { PollRelays } from "./PollRelays";
import { PollPartitions } from "./PollPartitions";

type Message = Schemas["OutboxView"];

const PARTS = [
  { value: "", label: "Messages" },
  { value: "relays", label: "Poll relays" },
  { value: "partitions", label: "Poll partitions" },
];

export default function OutboxView() {
  const url = useUrl();
  const part = url.one("part");
  return (
    <View title="Outbox">
      <Lag />
      <SegmentedControl aria-label="Part" style={{ alignSelf: "flex-start" }} value={part} onChange={(value) => url.set({ part: value })} data={PARTS} />
      {part === "relays" ? <PollRelays /> : part === "partitions" ? <PollPartitions /> : <Messages />}
    </View>
  );
}

function Lag() {
  const outbox = useOverview((overview) => overview.outbox);
  const dead = useOverview((overview) => overview.dead_letters.outbox) ?? 0;
  return (
    <Tiles>
      <Tile title="Waiting messages" value={outbox === null ? "–" : count(outbox.waiting, 10_000)} below={outbox === null ? "" : `for ${count(outbox.destinations)} destinations`} />
      <Tile title="Oldest waits" value={outbox === null ? "–" : spoken(outbox.oldest_s)} />
      <Tile title="Published a second" value={outbox?.published_per_s == null ? "–" : rate(outbox.published_per_s)} />
      <Tile title="Failing destinations" value={outbox === null ? "–" : count(outbox.failing)} tone={outbox !== null && outbox.failing > 0 ? "bad" : undefined} />
      <Tile title="Given up" value={count(dead, 10_000)} tone={dead > 0 ? "warn" : undefined} below={<Link href="/dead-letters?kind=outbox">dead letters</Link>} />
    </Tiles>
  );
}

const COLUMNS: Column<Message>[] = [
  { id: "id", header: "Id", width: 110, hide: "sm", cell: (one) => one.id },
  { id: "destination", header: "Destination", width: "32%", cell: (one) => <span title={one.destination}>{one.destination}</span> },
  { id: "key", header: "Key", width: 140, hide: "md", cell: (one) => <span title={one.key ?? ""}>{one.key}</span> },
  { id: "age", header: "Waits since", width: 130, cell: (one) => <Instant at={one.created_at} ago /> },
  { id: "attempts", header: "Attempts", width: 86, align: "right", cell: (one) => count(one.attempts) },
  { id: "next", header: "Next try", width: 120, hide: "sm", cell: (one) => <Instant at={one.next_at} ago /> },
  { id: "error", header: "Last error", hide: "sm", cell: (one) => <span title={one.error_message ?? ""}>{one.error_message}</span> },
];

function Messages() {
  const url = useUrl();
  const destination = url.one("destination");
  const pages = usePages({
    queryKey: ["outbox", destination],
    load: (cursor, signal) => get("/v1/outbox", { query: { destination: destination || undefined, cursor, limit: 100 }, signal }),
  });
  return (
    <>
      <Filters names={["destination"]}>
        <TextFilter name="destination" label="Destination" placeholder="exact" width={320} first />
      </Filters>
      <DataTable
        label="Messages that wait, newest first"
        columns={COLUMNS}
        pages={pages}
        rowKey={(one) => one.id}
        empty={
          destination === "" ? (
            <EmptyState title="No message waits">The relay has published everything. New messages come with `app.publish` or a row in tickwright.outbox.</EmptyState>
          ) : (
            <EmptyState title="No message waits for this destination">The whole destination is compared; clear the filter to see all of them.</EmptyState>
          )
        }
      />
    </>
  );
}
