/** One report: what it waits for, the times of each part, and the manifest of its file. */
import { Button, Code, Group, Stack } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { get, post, type Schemas } from "../../api/client";
import { updating } from "../../app/prefs";
import { useMay } from "../../app/session";
import { useConfirm } from "../../parts/Confirm";
import { ErrorBox } from "../../parts/ErrorBox";
import { Explain } from "../../parts/Explain";
import { Facts } from "../../parts/Facts";
import { bytes, count, percent } from "../../parts/Figure";
import { Instant } from "../../parts/Instant";
import { Json } from "../../parts/Json";
import { Meter } from "../../parts/Meter";
import { Side } from "../../parts/Side";
import { StateBadge } from "../../parts/StateBadge";
import { useAction } from "../../parts/useAction";
import { Section } from "../../parts/View";
import { Waiting } from "../../parts/Waiting";
import { Download } from "./Download";
import { Parts } from "./Parts";
import classes from "./reports.module.css";

type Detail = Schemas["ReportDetail"];

export function ReportDrawer({ id, onClose }: { id: string; onClose: () => void }) {
  return (
    <Side open={id !== ""} title={`Report ${id}`} onClose={onClose} wide>
      {id !== "" && <Shown key={id} id={id} />}
    </Side>
  );
}

function Shown({ id }: { id: string }) {
  const held = updating.use() === "held";
  const found = useQuery({
    queryKey: ["reports", "one", id],
    queryFn: ({ signal }) => get("/v1/reports/{report_id}", { path: { report_id: id }, signal }),
    refetchInterval: ({ state }) => (held ? false : state.data?.finished_at == null ? 1_000 : 10_000),
  });
  const one = found.data;
  if (one === undefined) return found.error ? <ErrorBox error={found.error} onRetry={() => void found.refetch()} /> : <Waiting lines={12} />;
  return (
    <Stack gap="lg">
      {found.error !== null && <ErrorBox error={found.error} onRetry={() => void found.refetch()} kept />}
      <Group gap="xs">
        <Download report={one} />
        <CancelButton report={one} />
      </Group>
      {one.error !== null && (
        <p className={classes.error} role="alert">
          {one.error} {one.error_code !== null && <Code>{one.error_code}</Code>}
        </p>
      )}
      <Progress of={one} />
      <Facts of={factsOf(one)} />
      <Section title="Why it is in this state">
        <Explain
          queryKey={["reports", "explain", id, one.status, one.stage, one.parts_done, one.checks]}
          load={(signal) => get("/v1/reports/{report_id}/explain", { path: { report_id: id }, signal })}
        />
      </Section>
      <Section title="Parts">
        <Parts report={one} />
      </Section>
      <Section title="Conditions">
        <Json label="conditions" value={one.conditions} hidden={one.payload_hidden} />
      </Section>
      <Section title="Manifest">
        <Json label="manifest" value={one.manifest} />
      </Section>
    </Stack>
  );
}

function Progress({ of: one }: { of: Detail }) {
  const ratio = one.parts_expected === 0 ? 0 : one.parts_done / one.parts_expected;
  return (
    <section aria-label="Progress" className={classes.progress}>
      <span>{`${percent(ratio)}: ${one.parts_done} of ${one.parts_expected} parts, stage ${one.stage} of ${one.stages}`}</span>
      <Meter label="Parts" ratio={ratio} tone={one.status === "failed" ? "bad" : one.finished_at === null ? "busy" : "good"} />
    </section>
  );
}

function factsOf(one: Detail) {
  return [
    ["Status", <StateBadge key="status" state={one.status} />],
    ["Type", <Link key="type" href={`/report-types?type=${encodeURIComponent(one.type)}`}>{one.type}</Link>],
    ["Requester", one.requester],
    ["Department", one.department],
    ["Source", one.source || null],
    ["Format", one.format],
    ["Rows", one.rows === null ? null : count(one.rows)],
    ["Size", one.bytes === null ? null : bytes(one.bytes)],
    ["Requested", <Instant key="created" at={one.created_at} />],
    ["Started", <Instant key="started" at={one.started_at} />],
    ["Last part", <Instant key="part" at={one.last_part_at} />],
    ["Ended", <Instant key="ended" at={one.finished_at} />],
    ["Deadline", <Instant key="deadline" at={one.deadline_at} />],
    ["File until", <Instant key="expires" at={one.file_expires_at} />],
    ["Notify", one.notify],
    ["Restarts", String(one.restarts)],
    ["SHA-256", one.checksum === null ? null : <Code key="sum">{one.checksum}</Code>],
  ] as const;
}

function CancelButton({ report: one }: { report: Detail }) {
  const may = useMay("operator");
  const confirm = useConfirm();
  const action = useAction({
    run: () => post("/v1/reports/{report_id}/cancel", { path: { report_id: one.id } }),
    message: (done) => `Report ${done.id} is ${done.status}`,
    invalidates: ["reports"],
  });
  if (!may || one.finished_at !== null) return null;
  async function ask(): Promise<void> {
    const text = `Report ${one.id} for ${one.requester} ends without a file; work on its parts stops.`;
    if (await confirm({ title: "Cancel 1 report?", text, does: "Cancel 1 report", danger: true })) action.mutate(undefined);
  }
  return (
    <Button variant="default" loading={action.isPending} onClick={() => void ask()}>
      Cancel
    </Button>
  );
}
