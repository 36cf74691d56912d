/** One account: its settings, its freshness, and actions. */
import { Button, Group, Stack } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";
import { get, post, type Schemas } from "../../api/client";
import { useMay } from "../../app/session";
import { useConfirm } from "../../parts/Confirm";
import { ErrorBox } from "../../parts/ErrorBox";
import { Facts } from "../../parts/Facts";
import { count } from "../../parts/Figure";
import { Instant } from "../../parts/Instant";
import { Side } from "../../parts/Side";
import { StateBadge } from "../../parts/StateBadge";
import { useAction } from "../../parts/useAction";
import { Section } from "../../parts/View";
import { Waiting } from "../../parts/Waiting";
import { AccountEdit } from "./AccountEdit";
import { AccountFreshness } from "./AccountFreshness";
import { Interval, stateOf } from "./figures";

type Detail = Schemas["AccountDetail"];

export function AccountDrawer({ id, onClose }: { id: string; onClose: () => void }) {
  return (
    <Side open={id !== ""} title={`Account ${id}`} onClose={onClose} wide>
      {id !== "" && <Account key={id} id={id} />}
    </Side>
  );
}

function Account({ id }: { id: string }) {
  const [edits, setEdits] = useState(false);
  const mayEdit = useMay("admin");
  const found = useQuery({
    queryKey: ["accounts", "one", id],
    queryFn: ({ signal }) => get("/v1/accounts/{account_id}", { path: { account_id: id }, signal }),
    refetchInterval: 5_000,
  });
  const account = found.data;
  if (account === undefined) return found.error ? <ErrorBox error={found.error} onRetry={() => void found.refetch()} /> : <Waiting lines={12} />;
  return (
    <Stack>
      {found.error !== null && <ErrorBox error={found.error} onRetry={() => void found.refetch()} kept />}
      <Facts of={factsOf(account)} />
      <Group gap="xs">
        <Button component={Link} href={`/trackers?account=${encodeURIComponent(id)}`} variant="default">
          Its trackers
        </Button>
        {mayEdit && <PauseButton account={account} />}
        {mayEdit && !edits && (
          <Button variant="default" onClick={() => setEdits(true)}>
            Edit with a preview
          </Button>
        )}
      </Group>
      {edits && <AccountEdit account={account} onClose={() => setEdits(false)} />}
      <Section title="Freshness">
        <AccountFreshness account={account} />
      </Section>
    </Stack>
  );
}

function factsOf(account: Detail) {
  const estimated = account.trackers_estimated ? "about " : "";
  return [
    ["State", <StateBadge key="state" {...stateOf(account)} />],
    ["Trackers, including ended", `${estimated}${count(account.trackers)}`],
    ["Interval", <Interval key="interval" account={account} />],
    ["Cap per 5 min", account.polls_per_slice_max === null ? "none" : count(account.polls_per_slice_max)],
    ["Polled for", `${account.max_age_days} d`],
    ["Paused since", <Instant key="paused" at={account.paused_at} />],
    ["Changed", <Instant key="changed" at={account.updated_at} />],
    ["Created", <Instant key="created" at={account.created_at} />],
  ] as const;
}

function PauseButton({ account }: { account: Detail }) {
  const confirm = useConfirm();
  const paused = account.paused_at !== null;
  const path = { account_id: account.account_id };
  const action = useAction({
    run: () => (paused ? post("/v1/accounts/{account_id}/enable", { path }) : post("/v1/accounts/{account_id}/pause", { path })),
    message: (now) => `Account ${now.account_id} is ${now.paused_at === null ? "polled again" : "paused"}.`,
    invalidates: ["accounts"],
  });
  async function ask(): Promise<void> {
    const trackers = `${account.trackers_estimated ? "about " : ""}${count(account.trackers)} tracker${account.trackers === 1 ? "" : "s"}`;
    const yes = await confirm({
      title: `${paused ? "Enable" : "Pause"} account ${account.account_id}?`,
      text: paused ? `Its ${trackers} are selected again, each at its next scheduled poll.` : `None of its ${trackers} is polled until the account is enabled. Polls that are on their way are still made.`,
      does: `${paused ? "Enable" : "Pause"} ${trackers}`,
      danger: !paused,
    });
    if (yes) action.mutate(undefined);
  }
  return (
    <Button variant="default" onClick={() => void ask()} loading={action.isPending}>
      {paused ? "Enable" : "Pause"}
    </Button>
  );
}
