/** The waiting messages of each destination, the stuck ones first, with the reason. */
import { Button } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { get, post, type Schemas } from "../../api/client";
import { updating } from "../../app/prefs";
import { useMay } from "../../app/session";
import { useConfirm } from "../../parts/Confirm";
import { DataTable, type Column } from "../../parts/DataTable";
import { Duration } from "../../parts/Duration";
import { EmptyState } from "../../parts/EmptyState";
import { count } from "../../parts/Figure";
import { ChoiceFilter, Filters, TextFilter } from "../../parts/Filters";
import { Instant } from "../../parts/Instant";
import { StateBadge } from "../../parts/StateBadge";
import { useAction } from "../../parts/useAction";
import { useUrl } from "../../parts/useUrl";

type Destination = Schemas["DestinationView"];

const WHY: Record<string, string> = {
  no_relay: "no relay runs",
  unknown_scheme: "no relay supports its scheme",
  too_old: "waiting for more than two minutes",
  failing: "fails repeatedly",
};

function columns(may: boolean): Column<Destination>[] {
  return [
    { id: "destination", header: "Destination", cell: (one) => <Link href={`/outbox?part=messages&destination=${encodeURIComponent(one.destination)}`} title={one.destination}>{one.destination}</Link> },
    { id: "state", header: "State", width: 100, cell: (one) => <StateBadge state={one.state} tone={one.state === "waiting" ? "warn" : one.state === "stuck" ? "bad" : "good"} /> },
    { id: "why", header: "Why", width: 200, hide: "sm", cell: (one) => (one.why === null ? "" : (WHY[one.why] ?? one.why)) },
    { id: "waiting", header: "Waiting", width: 84, align: "right", cell: (one) => count(one.waiting, one.capped_at) },
    { id: "oldest", header: "Oldest", width: 110, hide: "sm", cell: (one) => <Duration seconds={one.oldest_s} /> },
    { id: "attempts", header: "Attempts", width: 84, align: "right", hide: "md", cell: (one) => count(one.attempts) },
    { id: "next", header: "Next try", width: 100, hide: "md", cell: (one) => <Instant at={one.next_try_at} ago /> },
    { id: "error", header: "Last error", width: "22%", hide: "md", cell: (one) => <span title={one.error ?? ""}>{one.error}</span> },
    { id: "does", header: "", width: 108, hide: "sm", cell: (one) => may && one.tried > 0 && <RetryButton destination={one} /> },
  ];
}

export function Destinations() {
  const url = useUrl();
  const may = useMay("operator");
  const held = updating.use() === "held";
  const found = useQuery({ queryKey: ["outbox", "destinations"], queryFn: ({ signal }) => get("/v1/outbox:destinations", { signal }), refetchInterval: held ? false : 5_000 });
  const all = found.data?.items;
  const [text, state] = [url.one("text").toLowerCase(), url.one("state")];
  const rows = all?.filter((one) => one.destination.toLowerCase().includes(text) && (state === "" || one.state === state));
  return (
    <>
      <Filters names={["text", "state"]}>
        <TextFilter name="text" label="Destination" placeholder="part of it" width={260} first />
        <ChoiceFilter name="state" label="State" options={["stuck", "waiting", "flowing"]} width={140} />
      </Filters>
      <DataTable
        label="Destinations, the stuck and the oldest first"
        columns={columns(may)}
        pages={{ rows, error: found.error, again: () => void found.refetch() }}
        rowKey={(one) => one.destination}
        empty={
          all?.length === 0 ? (
            <EmptyState title="No message waits">The relay has published everything. Publish a message with <code>app.publish</code> or a row in tickwright.outbox.</EmptyState>
          ) : (
            <EmptyState title="No destination matches">Remove a filter.</EmptyState>
          )
        }
      />
    </>
  );
}

function RetryButton({ destination }: { destination: Destination }) {
  const confirm = useConfirm();
  const action = useAction({
    run: () => post("/v1/outbox:retry", { body: { destination: destination.destination } }),
    message: (done) => `${count(done.retried)} messages are due at once${done.more ? ", and more are left: retry again" : ""}.`,
    invalidates: ["outbox"],
  });
  async function ask(): Promise<void> {
    const number = Math.min(destination.tried, 1_000);
    const yes = await confirm({
      title: `Retry ${destination.destination} now?`,
      text: `${count(destination.tried, destination.capped_at)} messages that were tried before become due at once, in their order, 1,000 at a time. If the destination fails again, it pauses for at most 30 s.`,
      does: `Retry ${count(number)} message${number === 1 ? "" : "s"}`,
    });
    if (yes) action.mutate(undefined);
  }
  return (
    <Button size="compact-xs" variant="default" onClick={() => void ask()} loading={action.isPending} aria-label={`Retry now: ${destination.destination}`}>
      Retry now
    </Button>
  );
}
