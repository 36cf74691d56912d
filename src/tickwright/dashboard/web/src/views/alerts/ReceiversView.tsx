/** Alert receivers: webhooks with their rules and signing secrets. For admins only, because a URL may contain a secret. */
import { Button, Group } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { del, get, post, type Schemas } from "../../api/client";
import { useConfirm } from "../../parts/Confirm";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { Facts } from "../../parts/Facts";
import { Filters, TextFilter } from "../../parts/Filters";
import { Instant } from "../../parts/Instant";
import { Secret } from "../../parts/Secret";
import { Side } from "../../parts/Side";
import { useAction } from "../../parts/useAction";
import { useUrl } from "../../parts/useUrl";
import { View } from "../../parts/View";
import { ReceiverForm } from "./ReceiverForm";

type Receiver = Schemas["ReceiverView"];

const COLUMNS: Column<Receiver>[] = [
  { id: "name", header: "Receiver", width: 180, cell: (one) => <span title={one.name}>{one.name}</span> },
  { id: "url", header: "Address", cell: (one) => <span title={one.url}>{one.url}</span> },
  { id: "severity", header: "Minimum severity", width: 136, hide: "sm", cell: (one) => one.severity_min },
  { id: "rules", header: "Rules", width: 220, hide: "md", cell: (one) => <span title={one.rules?.join(", ")}>{one.rules === null ? "every rule" : one.rules.join(", ")}</span> },
  { id: "secrets", header: "Secrets", width: 80, align: "right", hide: "sm", cell: (one) => one.signing_secrets },
  { id: "changed", header: "Changed", width: 130, hide: "md", cell: (one) => <Instant at={one.updated_at} ago /> },
];

export default function ReceiversView() {
  const url = useUrl();
  const [secret, setSecret] = useState<string | null>(null);
  const found = useQuery({ queryKey: ["receivers"], queryFn: ({ signal }) => get("/v1/alerts/receivers", { signal }) });
  const text = url.one("text").toLowerCase();
  const all = found.data?.items;
  const rows = all?.filter((one) => `${one.name} ${one.url}`.toLowerCase().includes(text));
  const open = all?.find((one) => one.name === url.one("receiver"));
  return (
    <View title="Alert receivers" actions={<ReceiverForm onSecret={setSecret} />}>
      <Filters names={["text"]}>
        <TextFilter name="text" label="Receiver or address" placeholder="part of it" width={240} first />
      </Filters>
      <DataTable
        label="Receivers of alerts"
        columns={COLUMNS}
        pages={{ rows, error: found.error, again: () => void found.refetch() }}
        rowKey={(one) => one.name}
        onOpen={(one) => url.set({ receiver: one.name }, true)}
        openKey={url.one("receiver")}
        empty={
          all?.length === 0 ? (
            <EmptyState title="There is no receiver">Alerts are shown on the dashboard without one. Tickwright posts each alert that fires or is resolved to the address of a receiver, signed.</EmptyState>
          ) : (
            <EmptyState title="No receiver matches">Remove the filter.</EmptyState>
          )
        }
      />
      <Side open={open !== undefined} title={`Receiver ${open?.name ?? ""}`} onClose={() => url.set({ receiver: null })}>
        {open !== undefined && <One key={open.name} receiver={open} onSecret={setSecret} onClose={() => url.set({ receiver: null })} />}
      </Side>
      <Secret value={secret} title="Signing secret" text="It is shown only once. The receiver needs it to verify the signatures of alerts." onClose={() => setSecret(null)} />
    </View>
  );
}

interface OneProps {
  receiver: Receiver;
  onSecret: (secret: string) => void;
  onClose: () => void;
}

function One({ receiver, onSecret, onClose }: OneProps) {
  const confirm = useConfirm();
  const path = { name: receiver.name };
  const rotate = useAction({
    run: () => post("/v1/alerts/receivers/{name}/rotate-secret", { path }),
    message: (made) => `${made.receiver} has a new secret; the old ones sign too for ${made.overlap}.`,
    invalidates: ["receivers"],
  });
  const remove = useAction({
    run: () => del("/v1/alerts/receivers/{name}", { path }),
    message: () => `Receiver ${receiver.name} is deleted.`,
    invalidates: ["receivers"],
  });
  async function askRotate(): Promise<void> {
    const yes = await confirm({ title: `New secret for ${receiver.name}?`, text: "The old ones sign too for a day, so that the receiver can switch.", does: "Create 1 secret" });
    if (yes) rotate.mutate(undefined, { onSuccess: (made) => onSecret(made.secret) });
  }
  async function askRemove(): Promise<void> {
    const yes = await confirm({ title: `Delete ${receiver.name}?`, text: "It receives no further alerts, and alerts that wait for it are dropped.", does: "Delete 1 receiver", danger: true });
    if (yes) remove.mutate(undefined, { onSuccess: onClose });
  }
  return (
    <>
      <Facts
        of={[
          ["Minimum severity", receiver.severity_min],
          ["Signing secrets", receiver.signing_secrets],
          ["Created", <Instant key="created" at={receiver.created_at} />],
          ["Changed", <Instant key="changed" at={receiver.updated_at} />],
        ]}
      />
      <Facts of={[["Rules", receiver.rules === null ? "every rule" : receiver.rules.join(", ")]]} />
      <Facts of={[["Address", receiver.url]]} />
      <Group gap="xs" mt="md">
        <ReceiverForm receiver={receiver} onSecret={onSecret} />
        <Button variant="default" onClick={() => void askRotate()} loading={rotate.isPending}>
          Rotate secret
        </Button>
        <Button variant="default" onClick={() => void askRemove()} loading={remove.isPending}>
          Delete
        </Button>
      </Group>
    </>
  );
}
