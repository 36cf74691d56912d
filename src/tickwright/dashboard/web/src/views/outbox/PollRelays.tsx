/** The relays of polls, one per shard. A blocked relay is reconciled here, after a dry run. */
import { Button, Modal, Stack, TextInput, Group } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get, post, type Schemas } from "../../api/client";
import { readNumber } from "../../api/json";
import { updating } from "../../app/prefs";
import { useMay } from "../../app/session";
import { Answer } from "../../parts/Answer";
import { useConfirm } from "../../parts/Confirm";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { Facts } from "../../parts/Facts";
import { count } from "../../parts/Figure";
import { Instant } from "../../parts/Instant";
import { StateBadge } from "../../parts/StateBadge";
import { useAction } from "../../parts/useAction";
import { useUrl } from "../../parts/useUrl";

type Relay = Schemas["PollRelayView"];

function columns(may: boolean, onOpen: (shard: number) => void): Column<Relay>[] {
  return [
    { id: "shard", header: "Shard", width: 64, align: "right", cell: (one) => one.shard },
    { id: "state", header: "State", width: 100, cell: (one) => <StateBadge state={one.problem === null ? "flowing" : "stuck"} title={one.problem ?? ""} /> },
    { id: "transport", header: "Transport", width: 100, hide: "md", cell: (one) => one.transport },
    { id: "waiting", header: "Waiting", width: 90, align: "right", cell: (one) => count(one.waiting) },
    { id: "released", header: "Of those due", width: 100, align: "right", hide: "sm", cell: (one) => count(one.released) },
    { id: "oldest", header: "Oldest due", width: 120, hide: "sm", cell: (one) => <Instant at={one.oldest_release_at} ago /> },
    { id: "published", header: "Published batch", width: 130, align: "right", hide: "md", cell: (one) => `${count(one.published_no)} of ${count(one.batch_no)}` },
    { id: "when", header: "Last batch", width: 110, hide: "md", cell: (one) => <Instant at={one.published_at} ago /> },
    { id: "says", header: "Why it is blocked", hide: "sm", cell: (one) => <span title={one.says ?? ""}>{one.says}</span> },
    {
      id: "does",
      header: "",
      width: 108,
      cell: (one) =>
        may && one.problem !== null && (
          <Button size="compact-xs" variant="default" onClick={() => onOpen(one.shard)}>
            Reconcile
          </Button>
        ),
    },
  ];
}

export function PollRelays() {
  const url = useUrl();
  const may = useMay("operator");
  const held = updating.use() === "held";
  const found = useQuery({ queryKey: ["outbox", "relays"], queryFn: ({ signal }) => get("/v1/outbox/polls", { signal }), refetchInterval: held ? false : 5_000 });
  const shard = url.one("shard");
  return (
    <>
      <DataTable
        label="Relays of polls"
        columns={columns(may, (number) => url.set({ shard: String(number) }, true))}
        pages={{ rows: found.data?.items, error: found.error, again: () => void found.refetch() }}
        rowKey={(one) => String(one.shard)}
        empty={<EmptyState title="No relay of polls">Polls are relayed by processes with the role relay: <code>tickwright run relay</code>.</EmptyState>}
      />
      <Modal opened={shard !== ""} onClose={() => url.set({ shard: null })} title={`Reconcile shard ${shard}`} closeButtonProps={{ "aria-label": "Close" }}>
        {shard !== "" && <Reconcile key={shard} shard={Number(shard)} onClose={() => url.set({ shard: null })} />}
      </Modal>
    </>
  );
}

function Reconcile({ shard, onClose }: { shard: number; onClose: () => void }) {
  const [position, setPosition] = useState("");
  const confirm = useConfirm();
  const body = { shard, position: readNumber(position) };
  const preview = useQuery({ queryKey: ["reconcile", body], queryFn: ({ signal }) => post("/v1/outbox/polls/reconcile", { body: { ...body, apply: false }, signal }), retry: false });
  const action = useAction({
    run: () => post("/v1/outbox/polls/reconcile", { body: { ...body, apply: true } }),
    message: (done) => `Both sides agree on batch ${count(done.adopted)}; ${count(done.sent_again)} polls are sent again.`,
    invalidates: ["outbox", "reconcile"],
  });
  async function ask(would: Schemas["ReconcileView"]): Promise<void> {
    const yes = await confirm({
      title: `Agree on batch ${count(would.adopted)}?`,
      text: `${count(would.counted)} polls of the frozen batch count as published, ${count(would.sent_again)} are sent again with the same ids.`,
      does: `Agree on batch ${count(would.adopted)}`,
      danger: true,
    });
    if (yes) action.mutate(undefined, { onSuccess: onClose });
  }
  return (
    <Stack>
      <TextInput label="All batches up to this one are published" placeholder="the last batch that is certain" inputMode="numeric" value={position} onChange={(event) => setPosition(event.currentTarget.value)} />
      <Answer of={preview} lines={3}>
        {(would) => <Facts of={[["Would agree on batch", count(would.adopted)], ["Counted as published", count(would.counted)], ["Sent again", count(would.sent_again)]]} />}
      </Answer>
      <Group justify="flex-end" gap="xs">
        <Button variant="default" onClick={onClose}>
          Go back
        </Button>
        <Button disabled={preview.data === undefined || preview.isFetching || preview.isError} loading={action.isPending} onClick={() => preview.data && void ask(preview.data)}>
          Reconcile
        </Button>
      </Group>
    </Stack>
  );
}
