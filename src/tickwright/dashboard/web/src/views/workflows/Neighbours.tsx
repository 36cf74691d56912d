/** A job in its workflow: what it waits for, and what waits for it, each with its state. */
import { Anchor, Button } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";
import { get, post, type Schemas } from "../../api/client";
import { updating } from "../../app/prefs";
import { useMay } from "../../app/session";
import { Answer } from "../../parts/Answer";
import { useConfirm } from "../../parts/Confirm";
import { count } from "../../parts/Figure";
import { StateBadge } from "../../parts/StateBadge";
import { useAction } from "../../parts/useAction";
import { useUrl } from "../../parts/useUrl";
import { Section } from "../../parts/View";
import { OPEN } from "./states";
import classes from "./workflows.module.css";

type Node = Schemas["GraphNode"];

export function Neighbours({ workflowId, jobId }: { workflowId: string; jobId: string }) {
  const held = updating.use() === "held";
  const found = useQuery({
    queryKey: ["workflows", "node", workflowId, jobId],
    queryFn: ({ signal }) => get("/v1/workflows/{workflow_id}/nodes/{node_id}", { path: { workflow_id: workflowId, node_id: jobId }, signal }),
    refetchInterval: held ? false : 5_000,
  });
  return (
    <Section title="Workflow">
      <Answer of={found} lines={3}>
        {(node) => (
          <>
            <p className={classes.place}>
              {node.name} of <Link href={`/workflows/${node.root_id}?job=${jobId}`}>workflow {node.workflow_name}</Link>
            </p>
            <Nodes title="Waits for" of={node.predecessors} total={node.predecessors_total} none="It waits for no other job." />
            <Nodes title="What waits for it" of={node.successors} total={node.successors_total} none="No other job waits for it." />
            {node.successors_total > 0 && <FromHere node={node} />}
          </>
        )}
      </Answer>
    </Section>
  );
}

function Nodes({ title, of: nodes, total, none }: { title: string; of: readonly Node[]; total: number; none: string }) {
  if (total === 0) return <p className={classes.quiet}>{none}</p>;
  return (
    <>
      <h3 className={classes.nearTitle}>{`${title} (${count(total)})`}</h3>
      <ul className={classes.near} aria-label={title}>
        {nodes.map((node) => (
          <li key={node.id}>
            <NodeLink node={node} />
            <span className={classes.quiet}>{node.is_workflow ? "workflow" : node.task_type === node.name ? "" : node.task_type}</span>
            <StateBadge state={node.status} />
          </li>
        ))}
      </ul>
      {total > nodes.length && <p className={classes.quiet}>{`${count(total - nodes.length)} more are not listed here.`}</p>}
    </>
  );
}

/** Actions on a job and all that come after it. */
function FromHere({ node }: { node: Schemas["GraphNodeDetail"] }) {
  const may = useMay("operator");
  const confirm = useConfirm();
  const path = { workflow_id: node.root_id };
  const body = { job_id: node.id };
  const action = useAction({
    run: (does: "cancel" | "retry") => (does === "cancel" ? post("/v1/workflows/{workflow_id}/cancel", { path, body }) : post("/v1/workflows/{workflow_id}/retry", { path, body })),
    message: (done) => `${count(done.jobs)} jobs of workflow ${node.workflow_name}: ${done.outcome}`,
    invalidates: ["workflows", "jobs", "dead_letters"],
  });
  if (!may) return null;
  const isOpen = OPEN.some((state) => state === node.status);
  const does = isOpen ? "cancel" : "retry";
  if (node.status === "completed") return null;
  const title = isOpen ? "Cancel from here on" : "Retry from here on";
  const text = isOpen ? `${node.name} and all jobs that come after it are cancelled.` : `${node.name} and what failed, was cancelled or skipped after it run again.`;
  return (
    <Button variant="default" size="compact-sm" disabled={action.isPending} onClick={() => void confirm({ title: `${title}?`, text, does: title, danger: isOpen }).then((yes) => yes && action.mutate(does))}>
      {title}
    </Button>
  );
}

/** Opens a job in the drawer of this view, and an inner workflow in its own view. */
function NodeLink({ node }: { node: Node }) {
  const url = useUrl();
  if (node.is_workflow) return <Link href={`/workflows/${node.id}`}>{node.name}</Link>;
  return (
    <Anchor component="button" type="button" size="sm" onClick={() => url.set({ job: node.id }, true)}>
      {node.name}
    </Anchor>
  );
}
