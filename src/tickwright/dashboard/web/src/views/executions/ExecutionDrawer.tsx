/** One execution: progress, pace, workers, skipped clients, actions, and the reason for its state. */
import { Code, Stack } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { get, type Schemas } from "../../api/client";
import { updating } from "../../app/prefs";
import { ErrorBox } from "../../parts/ErrorBox";
import { Explain } from "../../parts/Explain";
import { Facts } from "../../parts/Facts";
import { Instant } from "../../parts/Instant";
import { Json } from "../../parts/Json";
import { Side } from "../../parts/Side";
import { Section } from "../../parts/View";
import { Waiting } from "../../parts/Waiting";
import { ClientActions } from "./ClientActions";
import { ExecutionState } from "./columns";
import { ExecutionActions } from "./ExecutionActions";
import classes from "./executions.module.css";
import { Progress } from "./Progress";

type Detail = Schemas["ExecutionDetail"];

export function ExecutionDrawer({ id, onClose }: { id: string; onClose: () => void }) {
  return (
    <Side open={id !== ""} title={`Execution ${id}`} onClose={onClose} wide>
      {id !== "" && <Shown key={id} id={id} />}
    </Side>
  );
}

function Shown({ id }: { id: string }) {
  const held = updating.use() === "held";
  const found = useQuery({
    queryKey: ["executions", "one", id],
    queryFn: ({ signal }) => get("/v1/executions/{execution_id}", { path: { execution_id: id }, signal }),
    refetchInterval: ({ state }) => (held ? false : moves(state.data) ? 1_000 : 5_000),
  });
  const one = found.data;
  if (one === undefined) return found.error ? <ErrorBox error={found.error} onRetry={() => void found.refetch()} /> : <Waiting lines={12} />;
  return (
    <Stack gap="lg">
      {found.error !== null && <ErrorBox error={found.error} onRetry={() => void found.refetch()} kept />}
      <ExecutionActions execution={one} />
      <Progress of={one} />
      <Facts of={factsOf(one)} />
      <Section title="Why it is in this state">
        <Explain
          queryKey={["executions", "explain", id, one.status, one.paused_at, one.chunks_done, one.chunks_released]}
          load={(signal) => get("/v1/executions/{execution_id}/explain", { path: { execution_id: id }, signal })}
        />
      </Section>
      {one.error_message !== null && <Failure of={one} />}
      <Workers of={one} />
      <Skips of={one} />
      <Section title="Actions">
        <ClientActions execution={one} />
      </Section>
      <Section title="Definition of this execution">
        <Json label="definition" value={one.definition} />
      </Section>
    </Stack>
  );
}

/** Whether its figures still change. */
const moves = (one: Detail | undefined): boolean => one !== undefined && (one.finished_at === null || one.released < one.actions) && one.ended_why === null;

function factsOf(one: Detail) {
  const to = one.kind === "campaign" ? "/campaigns" : "/batches";
  return [
    ["Status", <ExecutionState key="status" of={one} />],
    ["Campaign or batch", <Link key="of" href={`${to}?name=${encodeURIComponent(one.name)}`}>{one.name}</Link>],
    ["Slot", <Instant key="slot" at={one.slot_at} />],
    ["Started by", one.started_by],
    ["Version", one.version === null ? null : String(one.version)],
    ["Created", <Instant key="created" at={one.created_at} />],
    ["Started", <Instant key="started" at={one.started_at} />],
    ["Split into chunks", <Instant key="planned" at={one.planned_at} />],
    ["Paused", <Instant key="paused" at={one.paused_at} />],
    ["Ended", <Instant key="ended" at={one.finished_at} />],
    ["End reason", one.ended_why],
  ] as const;
}

function Failure({ of: one }: { of: Detail }) {
  return (
    <Section title="Where it failed">
      <p className={classes.text}>
        {one.error_message} {one.error_code !== null && <Code>{one.error_code}</Code>}
      </p>
      {one.error_trace !== null && (
        <pre className={classes.trace} tabIndex={0} aria-label="Trace">
          {one.error_trace}
        </pre>
      )}
    </Section>
  );
}

function Workers({ of: one }: { of: Detail }) {
  if (one.working.length === 0) return null;
  return (
    <Section title="Running now">
      <ul className={classes.list}>
        {one.working.map((worker) => (
          <li key={worker.worker}>
            {worker.worker}: {worker.chunks} {worker.chunks === 1 ? "chunk" : "chunks"}, the oldest since <Instant at={worker.since} ago />
          </li>
        ))}
      </ul>
    </Section>
  );
}

function Skips({ of: one }: { of: Detail }) {
  if (one.problems.length === 0) return null;
  return (
    <Section title={one.skipped > one.problems.length ? `Skipped, ${one.problems.length} examples` : "Skipped"}>
      <ul className={classes.list} aria-label="Skipped clients">
        {one.problems.map((problem, place) => (
          <li key={place}>
            {problem.client_id === null ? `Chunk ${problem.chunk}` : `Client ${problem.client_id} in chunk ${problem.chunk}`}: {problem.problem}
          </li>
        ))}
      </ul>
    </Section>
  );
}
