/** The actions of an operator on a workflow. */
import { Button, Group } from "@mantine/core";
import { post, type Schemas } from "../../api/client";
import { useMay } from "../../app/session";
import { useConfirm } from "../../parts/Confirm";
import { count } from "../../parts/Figure";
import { useAction } from "../../parts/useAction";
import { among } from "./states";

type Workflow = Schemas["WorkflowDetail"];

export function WorkflowActions({ workflow }: { workflow: Workflow }) {
  const may = useMay("operator");
  const confirm = useConfirm();
  const path = { workflow_id: workflow.id };
  const action = useAction({
    run: (does: "cancel" | "retry") => (does === "cancel" ? post("/v1/workflows/{workflow_id}/cancel", { path }) : post("/v1/workflows/{workflow_id}/retry", { path })),
    message: (done) => `${count(done.jobs)} jobs of workflow ${workflow.name}: ${done.outcome}`,
    invalidates: ["workflows", "jobs", "dead_letters"],
  });
  if (!may) return null;
  const left = among(workflow.states, ["waiting", "pending", "processing"]);
  const lost = among(workflow.states, ["failed", "cancelled", "skipped"]);
  async function ask(does: "cancel" | "retry", jobs: number, text: string): Promise<void> {
    const title = `${does === "cancel" ? "Cancel" : "Retry"} ${count(jobs)} ${jobs === 1 ? "job" : "jobs"}`;
    if (await confirm({ title: `${title}?`, text, does: title, danger: does === "cancel" })) action.mutate(does);
  }
  return (
    <Group gap="xs">
      {lost > 0 && (
        <Button disabled={action.isPending} onClick={() => void ask("retry", lost, "What failed, was cancelled or skipped runs again, with all its attempts, as soon as what it waits for has completed. Completed jobs stay as they are.")}>
          Retry
        </Button>
      )}
      {workflow.ended_at === null && (
        <Button variant="outline" color="var(--bad)" disabled={action.isPending} onClick={() => void ask("cancel", left, "Jobs that wait or are pending never start. Workers are asked to stop running ones. Ended jobs stay as they are.")}>
          Cancel
        </Button>
      )}
    </Group>
  );
}
