/** One workflow: its state and the reason, its graph, its jobs; the drawer of the job that the URL names. */
import { useQuery } from "@tanstack/react-query";
import { Link, useLocation, useParams } from "wouter";
import { get, type Schemas } from "../../api/client";
import { updating } from "../../app/prefs";
import { Answer } from "../../parts/Answer";
import { EmptyState } from "../../parts/EmptyState";
import { Explain } from "../../parts/Explain";
import { count, percent } from "../../parts/Figure";
import { Instant } from "../../parts/Instant";
import { StateBadge } from "../../parts/StateBadge";
import { useUrl } from "../../parts/useUrl";
import { Section, View } from "../../parts/View";
import { JobDrawer } from "../jobs/JobDrawer";
import { Graph, type GraphGroup } from "./Graph";
import { Nodes } from "./Nodes";
import { among, OPEN, total } from "./states";
import { WorkflowActions } from "./WorkflowActions";
import classes from "./workflows.module.css";

type Workflow = Schemas["WorkflowDetail"];
const EVERY_MS = 4_000;

export default function WorkflowView() {
  const { id = "" } = useParams<{ id: string }>();
  if (/^\d{1,19}$/.test(id)) return <ById key={id} id={id} />;
  return (
    <View title="Workflow">
      <EmptyState title="This address names no workflow">
        A workflow has a number. <Link href="/workflows">All workflows</Link>
      </EmptyState>
    </View>
  );
}

function ById({ id }: { id: string }) {
  const held = updating.use() === "held";
  const found = useQuery({
    queryKey: ["workflows", "one", id],
    queryFn: ({ signal }) => get("/v1/workflows/{workflow_id}", { path: { workflow_id: id }, signal }),
    refetchInterval: held ? false : EVERY_MS,
  });
  const workflow = found.data;
  return (
    <View title={workflow === undefined ? `Workflow ${id}` : `Workflow ${workflow.name}`} actions={workflow && <WorkflowActions workflow={workflow} />}>
      <Answer of={found} alone>
        {(one) => <Shown workflow={one} />}
      </Answer>
    </View>
  );
}

function Shown({ workflow }: { workflow: Workflow }) {
  const url = useUrl();
  const [, go] = useLocation();
  const held = updating.use() === "held";
  const path = { workflow_id: workflow.id };
  const graph = useQuery({
    queryKey: ["workflows", "graph", workflow.id],
    queryFn: ({ signal }) => get("/v1/workflows/{workflow_id}/graph", { path, signal }),
    refetchInterval: held || workflow.ended_at !== null ? false : EVERY_MS,
  });
  function choose(group: GraphGroup): void {
    if (group.nodes > 1) url.set({ group: group.id === url.one("group") ? null : group.id, state: null });
    else if (group.is_workflow) go(`/workflows/${group.id}`);
    else url.set({ job: group.id }, true);
  }
  const chosen = url.one("group") || url.one("job");
  return (
    <div className={classes.parts}>
      <Head workflow={workflow} />
      <Explain
        queryKey={["workflows", "explain", workflow.id, workflow.state, workflow.states]}
        load={(signal) => get("/v1/workflows/{workflow_id}/explain", { path, signal })}
      />
      <Answer of={graph} lines={8}>
        {(drawn) => (
          <>
            <Section title="Graph">
              <p className={classes.hint}>
                {`${drawn.is_coarse ? "There are too many kinds of jobs, so a box is a range of levels of one type." : "Jobs of one kind that wait for the same are one box."} What waits is at the right of what it waits for.`}
              </p>
              <Graph graph={drawn} chosen={chosen} onChoose={choose} />
            </Section>
            <Section title="Jobs">
              <div className={classes.nodes}>
                <Nodes id={workflow.id} states={workflow.states} group={drawn.groups.find((group) => group.id === url.one("group"))} />
              </div>
            </Section>
          </>
        )}
      </Answer>
      <JobDrawer id={url.one("job")} onClose={() => url.set({ job: null })} />
    </div>
  );
}

function Head({ workflow }: { workflow: Workflow }) {
  const all = total(workflow.states);
  const open = among(workflow.states, OPEN);
  return (
    <div className={classes.head}>
      <StateBadge state={workflow.state} />
      <span>
        <b>{`${count(all - open)} of ${count(all)}`}</b> {`ended (${percent(all === 0 ? 1 : (all - open) / all)})`}
      </span>
      <span>
        <span className={classes.quiet}>added</span> <Instant at={workflow.created_at} ago />
      </span>
      {workflow.ended_at !== null && (
        <span>
          <span className={classes.quiet}>ended</span> <Instant at={workflow.ended_at} ago />
        </span>
      )}
      {workflow.ended_at === null && workflow.deadline_at !== null && (
        <span>
          <span className={classes.quiet}>deadline</span> <Instant at={workflow.deadline_at} ago />
        </span>
      )}
      {workflow.key !== null && (
        <span>
          <span className={classes.quiet}>key</span> {workflow.key}
        </span>
      )}
      {workflow.root_id !== workflow.id && <Link href={`/workflows/${workflow.parent_id ?? workflow.root_id}`}>the workflow around it</Link>}
      <Link href={`/jobs?workflow=${workflow.id}`}>its jobs in the list of jobs</Link>
    </div>
  );
}
