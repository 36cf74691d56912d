/** One campaign or batch: its runs and their reasons, its executions, its definition and older versions. */
import { Stack } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { updating } from "../../app/prefs";
import { ErrorBox } from "../../parts/ErrorBox";
import { Explain } from "../../parts/Explain";
import { Facts } from "../../parts/Facts";
import { Instant } from "../../parts/Instant";
import { Json } from "../../parts/Json";
import { Side } from "../../parts/Side";
import { StateBadge } from "../../parts/StateBadge";
import { Section } from "../../parts/View";
import { Waiting } from "../../parts/Waiting";
import { ExecutionState } from "../executions/columns";
import { BatchActions } from "./BatchActions";
import classes from "./campaigns.module.css";
import { DryRunHere } from "./DryRun";
import { detailOf, explanationOf, type BatchDetail, type Kind } from "./kind";
import { LastExecutions } from "./LastExecutions";
import { Versions } from "./Versions";

interface Props {
  kind: Kind;
  name: string;
  onClose: () => void;
}

export function BatchDrawer({ kind, name, onClose }: Props) {
  return (
    <Side open={name !== ""} title={name} onClose={onClose} wide>
      {name !== "" && <Shown key={name} kind={kind} name={name} />}
    </Side>
  );
}

function Shown({ kind, name }: { kind: Kind; name: string }) {
  const held = updating.use() === "held";
  const found = useQuery({
    queryKey: [kind, "one", name],
    queryFn: ({ signal }) => detailOf(kind, name, signal),
    refetchInterval: held ? false : 5_000,
  });
  const batch = found.data;
  if (batch === undefined) return found.error ? <ErrorBox error={found.error} onRetry={() => void found.refetch()} /> : <Waiting lines={12} />;
  return (
    <Stack gap="lg">
      {found.error !== null && <ErrorBox error={found.error} onRetry={() => void found.refetch()} kept />}
      <BatchActions kind={kind} batch={batch} />
      <Facts of={factsOf(batch)} />
      <Section title="Why it runs, or not">
        <Explain
          queryKey={[kind, "explain", name, batch.status, batch.next_slot_at, batch.last_status, batch.open_executions]}
          load={(signal) => explanationOf(kind, name, undefined, signal)}
        />
      </Section>
      <NextRuns batch={batch} />
      <Section title="Last executions">
        <LastExecutions kind={kind} name={name} />
      </Section>
      {typeof batch.definition["expression"] === "string" && (
        <Section title="Selected clients">
          <pre className={classes.code} tabIndex={0} aria-label="Expression">
            {batch.definition["expression"]}
          </pre>
          <DryRunHere name={name} />
        </Section>
      )}
      <Section title="Definition">
        <Json label="definition" value={batch.definition} />
      </Section>
      <Section title="Versions">
        <Versions kind={kind} batch={batch} />
      </Section>
    </Stack>
  );
}

function factsOf(batch: BatchDetail) {
  return [
    ["Status", <StateBadge key="status" state={batch.status} tone={batch.status === "SCHEDULED" ? "good" : "idle"} />],
    ["Type", batch.type.toLowerCase()],
    ["Open executions", String(batch.open_executions)],
    ["Last execution", batch.last_status === null ? null : <ExecutionState key="last" of={{ status: batch.last_status, paused_at: null }} />],
    ["Last slot", <Instant key="slot" at={batch.last_slot_at} />],
    ["Products", batch.product_codes.join(", ") || "none"],
    ["Version", String(batch.version)],
    ["Set by", batch.set_by],
    ["Changed", <Instant key="changed" at={batch.updated_at} />],
  ] as const;
}

function NextRuns({ batch }: { batch: BatchDetail }) {
  const runs = batch.next_slots;
  const text = batch.type === "MANUAL" ? "It is started by hand." : "There is no further run.";
  return (
    <Section title={batch.status === "SCHEDULED" || runs.length === 0 ? "Next runs" : "Next runs, once it is activated"}>
      {runs.length === 0 ? (
        <p className={classes.quiet}>{text}</p>
      ) : (
        <ul className={classes.runs}>
          {runs.map((at) => (
            <li key={at}>
              <Instant at={at} />
            </li>
          ))}
        </ul>
      )}
    </Section>
  );
}
