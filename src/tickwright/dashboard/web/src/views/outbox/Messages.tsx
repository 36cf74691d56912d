/** Messages that wait for the relay; a message that can never be sent can be discarded. */
import { Button } from "@mantine/core";
import { get, post, type Schemas } from "../../api/client";
import { useMay } from "../../app/session";
import { useConfirm } from "../../parts/Confirm";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { count } from "../../parts/Figure";
import { Filters, TextFilter } from "../../parts/Filters";
import { Instant } from "../../parts/Instant";
import { useAction } from "../../parts/useAction";
import { usePages } from "../../parts/usePages";
import { useUrl } from "../../parts/useUrl";

type Message = Schemas["OutboxView"];

function columns(may: boolean): Column<Message>[] {
  return [
    { id: "id", header: "Id", width: 100, hide: "sm", cell: (one) => one.id },
    { id: "destination", header: "Destination", width: "30%", cell: (one) => <span title={one.destination}>{one.destination}</span> },
    { id: "key", header: "Key", width: 130, hide: "md", cell: (one) => <span title={one.key ?? ""}>{one.key}</span> },
    { id: "age", header: "Waiting since", width: 124, cell: (one) => <Instant at={one.created_at} ago /> },
    { id: "attempts", header: "Attempts", width: 80, align: "right", cell: (one) => count(one.attempts) },
    { id: "next", header: "Next try", width: 100, hide: "sm", cell: (one) => <Instant at={one.next_at} ago /> },
    { id: "error", header: "Last error", hide: "sm", cell: (one) => <span title={one.error_message ?? ""}>{one.error_message}</span> },
    { id: "does", header: "", width: 98, hide: "sm", cell: (one) => may && <DiscardButton message={one} /> },
  ];
}

export function Messages() {
  const url = useUrl();
  const may = useMay("operator");
  const destination = url.one("destination");
  const pages = usePages({
    queryKey: ["outbox", "messages", destination],
    load: (cursor, signal) => get("/v1/outbox", { query: { destination: destination || undefined, cursor, limit: 100 }, signal }),
  });
  return (
    <>
      <Filters names={["destination"]}>
        <TextFilter name="destination" label="Destination" placeholder="exact" width={320} first />
      </Filters>
      <DataTable
        label="Messages that wait, newest first"
        columns={columns(may)}
        pages={pages}
        rowKey={(one) => one.id}
        empty={
          destination === "" ? (
            <EmptyState title="No message waits">The relay has published everything. Publish a message with <code>app.publish</code> or a row in tickwright.outbox.</EmptyState>
          ) : (
            <EmptyState title="No message waits for this destination">The filter compares the whole destination; clear it to see all messages.</EmptyState>
          )
        }
      />
    </>
  );
}

function DiscardButton({ message }: { message: Message }) {
  const confirm = useConfirm();
  const action = useAction({
    run: () => post("/v1/outbox/{message}/discard", { path: { message: message.id } }),
    message: (done) => `Message ${done.id} is a dead letter.`,
    invalidates: ["outbox", "dead_letters"],
  });
  async function ask(): Promise<void> {
    const yes = await confirm({
      title: `Discard message ${message.id}?`,
      text: "It is not sent again and becomes a dead letter, which can be requeued. If it is being sent now, it is still sent.",
      does: "Discard 1 message",
      danger: true,
    });
    if (yes) action.mutate(undefined);
  }
  return (
    <Button size="compact-xs" variant="default" onClick={() => void ask()} loading={action.isPending} aria-label={`Discard message ${message.id}`}>
      Discard
    </Button>
  );
}
