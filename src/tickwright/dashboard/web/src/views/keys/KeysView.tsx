/** API keys with their roles and expiry. A key itself is shown once, when it is created. */
import { Button, Group } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get, post, type Schemas } from "../../api/client";
import { now } from "../../app/clock";
import { useSession } from "../../app/session";
import { useConfirm } from "../../parts/Confirm";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { ChoiceFilter, Filters, TextFilter } from "../../parts/Filters";
import { Instant } from "../../parts/Instant";
import { Secret } from "../../parts/Secret";
import { StateBadge } from "../../parts/StateBadge";
import { useAction } from "../../parts/useAction";
import { useUrl } from "../../parts/useUrl";
import { View } from "../../parts/View";
import { NewKey } from "./NewKey";

type Key = Schemas["KeyView"];

const SCOPED = "scopes";

function stateOf(key: Key): "active" | "revoked" | "expired" {
  if (key.revoked_at !== null && Date.parse(key.revoked_at) <= now()) return "revoked";
  return key.expires_at !== null && Date.parse(key.expires_at) <= now() ? "expired" : "active";
}

function rightsOf(key: Key): string {
  return key.role ?? key.scopes.join(", ");
}

function columns(onMade: (key: string) => void): Column<Key>[] {
  return [
    { id: "name", header: "Name", cell: (one) => <span title={one.name}>{one.name}</span> },
    { id: "role", header: "Role or scopes", width: 150, cell: (one) => <span title={rightsOf(one)}>{rightsOf(one)}</span> },
    { id: "prefix", header: "Prefix", width: 110, hide: "sm", cell: (one) => <code>{one.prefix}</code> },
    { id: "state", header: "State", width: 100, hide: "sm", cell: (one) => <StateBadge state={stateOf(one)} /> },
    { id: "created", header: "Created", width: 170, hide: "md", cell: (one) => <Instant at={one.created_at} /> },
    { id: "ends", header: "Ends", width: 130, hide: "sm", cell: (one) => <Instant at={one.revoked_at ?? one.expires_at} ago /> },
    { id: "does", header: "", width: 172, keep: true, cell: (one) => stateOf(one) === "active" && <Actions apiKey={one} onMade={onMade} /> },
  ];
}

export default function KeysView() {
  const url = useUrl();
  const [made, setMade] = useState<string | null>(null);
  const found = useQuery({ queryKey: ["keys"], queryFn: ({ signal }) => get("/v1/keys", { signal }), refetchInterval: 30_000 });
  const text = url.one("text").toLowerCase();
  const [role, state] = [url.one("role"), url.one("state")];
  const rows = found.data?.items.filter((one) => `${one.name} ${one.prefix}`.toLowerCase().includes(text) && (role === "" || (one.role ?? SCOPED) === role) && (state === "" || stateOf(one) === state));
  return (
    <View title="Keys" actions={<NewKey onMade={setMade} />}>
      <Filters names={["text", "role", "state"]}>
        <TextFilter name="text" label="Name or prefix" placeholder="part of it" first />
        <ChoiceFilter name="role" label="Role" options={["viewer", "operator", "admin", SCOPED]} width={140} />
        <ChoiceFilter name="state" label="State" options={["active", "expired", "revoked"]} width={140} />
      </Filters>
      <DataTable
        label="API keys"
        columns={columns(setMade)}
        pages={{ rows, error: found.error, again: () => void found.refetch() }}
        rowKey={(one) => one.id}
        empty={<EmptyState title="No key matches">Remove a filter, or create a key.</EmptyState>}
      />
      <Secret value={made} title="The new key" text="It is shown only once and not stored. Copy it to the program that uses it." onClose={() => setMade(null)} />
    </View>
  );
}

function Actions({ apiKey, onMade }: { apiKey: Key; onMade: (key: string) => void }) {
  const confirm = useConfirm();
  const isOwn = useSession().key_id === apiKey.id;
  const path = { key_id: apiKey.id };
  const rotate = useAction({
    run: () => post("/v1/keys/{key_id}/rotate", { path }),
    message: (made) => `${made.details.name} has a new key; the old one expires.`,
    invalidates: ["keys"],
  });
  const revoke = useAction({
    run: () => post("/v1/keys/{key_id}/revoke", { path }),
    message: (key) => `The key of ${key.name} is refused from now on.`,
    invalidates: ["keys"],
  });
  async function askRotate(): Promise<void> {
    const yes = await confirm({ title: `Rotate the key of ${apiKey.name}?`, text: "A new key with the same name and role is created. The old key works for one more day, then it expires.", does: "Create 1 key" });
    if (yes) rotate.mutate(undefined, { onSuccess: (made) => onMade(made.key) });
  }
  async function askRevoke(): Promise<void> {
    const yes = await confirm({
      title: `Revoke the key of ${apiKey.name}?`,
      text: `Every process refuses it within a second. This cannot be undone.${isOwn ? " This is the key that you are signed in with: you will be signed out." : ""}`,
      does: "Revoke 1 key",
      danger: true,
    });
    if (yes) revoke.mutate(undefined);
  }
  return (
    <Group gap={6} wrap="nowrap" justify="flex-end">
      <Button size="compact-xs" variant="default" onClick={() => void askRotate()} loading={rotate.isPending} aria-label={`Rotate ${apiKey.name}`}>
        Rotate
      </Button>
      <Button size="compact-xs" variant="default" onClick={() => void askRevoke()} loading={revoke.isPending} aria-label={`Revoke ${apiKey.name}`}>
        Revoke
      </Button>
    </Group>
  );
}
