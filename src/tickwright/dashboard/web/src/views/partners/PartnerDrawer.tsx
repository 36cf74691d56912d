/** One partner: current calls, breaker and quiet hours, settings, and actions. */
import { Button, Group, Stack } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";
import { get, post, type Schemas } from "../../api/client";
import { useMay } from "../../app/session";
import { useConfirm } from "../../parts/Confirm";
import { ErrorBox } from "../../parts/ErrorBox";
import { Facts } from "../../parts/Facts";
import { Instant } from "../../parts/Instant";
import { Json } from "../../parts/Json";
import { Side } from "../../parts/Side";
import { useAction } from "../../parts/useAction";
import { Section } from "../../parts/View";
import { Waiting } from "../../parts/Waiting";
import { PartnerEdit } from "./PartnerEdit";
import { PartnerNow } from "./PartnerNow";

type Partner = Schemas["PartnerView"];

export function PartnerDrawer({ name, onClose }: { name: string; onClose: () => void }) {
  return (
    <Side open={name !== ""} title={`Partner ${name}`} onClose={onClose} wide>
      {name !== "" && <One key={name} name={name} />}
    </Side>
  );
}

function One({ name }: { name: string }) {
  const [edits, setEdits] = useState(false);
  const mayEdit = useMay("admin");
  const found = useQuery({
    queryKey: ["partners", "one", name],
    queryFn: ({ signal }) => get("/v1/partners/{name}", { path: { name }, signal }),
    refetchInterval: 5_000,
  });
  const partner = found.data;
  if (partner === undefined) return found.error ? <ErrorBox error={found.error} onRetry={() => void found.refetch()} /> : <Waiting lines={12} />;
  return (
    <Stack>
      {found.error !== null && <ErrorBox error={found.error} onRetry={() => void found.refetch()} kept />}
      <PartnerNow partner={partner}>
        <Group gap="xs">
          <Button component={Link} href={`/trackers?partner=${encodeURIComponent(name)}`} variant="default">
            Its trackers
          </Button>
          <Button component={Link} href={`/slices?partner=${encodeURIComponent(name)}`} variant="default">
            Its slices
          </Button>
          {mayEdit && <Actions partner={partner} />}
          {mayEdit && !edits && (
            <Button variant="default" onClick={() => setEdits(true)}>
              Edit
            </Button>
          )}
        </Group>
      </PartnerNow>
      {edits ? (
        <PartnerEdit partner={partner} onClose={() => setEdits(false)} />
      ) : (
        <Section title="Settings">
          <Json label="settings" value={partner.settings} />
        </Section>
      )}
      <Facts of={[["Created", <Instant key="created" at={partner.created_at} />], ["Changed", <Instant key="changed" at={partner.updated_at} />]]} />
    </Stack>
  );
}

function Actions({ partner }: { partner: Partner }) {
  const confirm = useConfirm();
  const path = { name: partner.name };
  const paused = partner.paused_at !== null;
  const stopped = partner.breaker !== "closed" || partner.blocked_until !== null;
  const toggle = useAction({
    run: () => (paused ? post("/v1/partners/{name}/enable", { path }) : post("/v1/partners/{name}/pause", { path })),
    message: (now) => `Partner ${now.name} is ${now.paused_at === null ? "called again" : "paused"}.`,
    invalidates: ["partners"],
  });
  const reset = useAction({
    run: () => post("/v1/partners/{name}/reset", { path }),
    message: (now) => `The breaker of ${now.name} is closed.`,
    invalidates: ["partners"],
  });
  async function askToggle(): Promise<void> {
    const yes = await confirm({
      title: `${paused ? "Enable" : "Pause"} partner ${partner.name}?`,
      text: paused ? "It is called again, within its limits." : "It is not called, and none of its trackers is selected, until it is enabled.",
      does: `${paused ? "Enable" : "Pause"} 1 partner`,
      danger: !paused,
    });
    if (yes) toggle.mutate(undefined);
  }
  async function askReset(): Promise<void> {
    const yes = await confirm({
      title: `Reset partner ${partner.name}?`,
      text: "Its breaker is closed and its Retry-After ends: it is called at once. If it still fails, the breaker opens again.",
      does: "Reset 1 partner",
    });
    if (yes) reset.mutate(undefined);
  }
  return (
    <>
      <Button variant="default" onClick={() => void askToggle()} loading={toggle.isPending}>
        {paused ? "Enable" : "Pause"}
      </Button>
      {stopped && (
        <Button variant="default" onClick={() => void askReset()} loading={reset.isPending}>
          Reset
        </Button>
      )}
    </>
  );
}
