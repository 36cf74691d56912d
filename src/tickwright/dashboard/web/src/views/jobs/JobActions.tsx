/** The actions of an operator on one job, by its state. */
import { Button, Group } from "@mantine/core";
import { useState } from "react";
import { patch, post, type Schemas } from "../../api/client";
import { useMay } from "../../app/session";
import { useConfirm } from "../../parts/Confirm";
import { useAction } from "../../parts/useAction";
import type { MoveOne } from "./bulk";
import { EditDialog, type JobEdit } from "./EditDialog";
import { MoveDialog } from "./MoveDialog";

type Job = Schemas["JobDetail"];
type Plain = "cancel" | "retry" | "retry-from-start" | "run-now";
type Change = { does: Plain } | { does: "reschedule"; to: MoveOne } | { does: "edit"; to: JobEdit };

const OUTCOMES: Record<string, string> = {
  cancelled: "is cancelled",
  requested: "was asked to stop",
  rescheduled: "is rescheduled",
  run_now: "is due now",
  retried: "is pending again",
  edited: "is edited",
};

function send(id: string, change: Change) {
  const path = { job_id: id };
  if (change.does === "edit") return patch("/v1/jobs/{job_id}", { path, body: change.to });
  if (change.does === "reschedule") return post("/v1/jobs/{job_id}/reschedule", { path, body: change.to });
  if (change.does === "cancel") return post("/v1/jobs/{job_id}/cancel", { path });
  if (change.does === "retry") return post("/v1/jobs/{job_id}/retry", { path });
  if (change.does === "retry-from-start") return post("/v1/jobs/{job_id}/retry", { path, query: { from_start: true } });
  return post("/v1/jobs/{job_id}/run-now", { path });
}

export function JobActions({ job }: { job: Job }) {
  const may = useMay("operator");
  const confirm = useConfirm();
  const [moving, setMoving] = useState(false);
  const [editing, setEditing] = useState(false);
  const action = useAction({
    run: (change: Change) => send(job.id, change),
    message: (done) => `Job ${done.id} ${OUTCOMES[done.outcome] ?? done.outcome}`,
    invalidates: ["jobs", "dead_letters"],
  });
  if (!may) return null;
  async function ask(does: Plain, title: string, text: string): Promise<void> {
    if (await confirm({ title: `${title}?`, text, does: title, danger: does === "cancel" })) action.mutate({ does });
  }
  const busy = action.isPending;
  const waits = job.status === "pending";
  const runs = job.status === "processing";
  return (
    <Group gap="xs">
      {waits && (
        <Button variant="default" disabled={busy} onClick={() => void ask("run-now", "Run 1 job now", `Job ${job.id} becomes due now.`)}>
          Run now
        </Button>
      )}
      {waits && (
        <Button variant="default" disabled={busy} onClick={() => setMoving(true)}>
          Reschedule
        </Button>
      )}
      {waits && (
        <Button variant="default" disabled={busy} onClick={() => setEditing(true)}>
          Edit
        </Button>
      )}
      {job.status === "failed" && (
        <Button disabled={busy} onClick={() => void ask("retry", "Retry 1 job", `Job ${job.id} becomes pending again, due now, with all its attempts.`)}>
          Retry
        </Button>
      )}
      {job.status === "failed" && job.steps.length > 0 && (
        <Button
          variant="default"
          disabled={busy}
          onClick={() => void ask("retry-from-start", "Retry 1 job from the start", `Steps that are done run again: ${job.steps.map((step) => step.name).join(", ")}.`)}
        >
          Retry from the start
        </Button>
      )}
      {(waits || runs || job.status === "waiting") && (
        <Button
          variant="outline"
          color="var(--bad)"
          disabled={busy}
          onClick={() => void ask("cancel", "Cancel 1 job", runs ? "Its worker is asked to stop it." : "It will never start.")}
        >
          Cancel
        </Button>
      )}
      {editing && (
        <EditDialog
          job={job}
          onClose={() => setEditing(false)}
          busy={busy}
          onEdit={(to) => action.mutate({ does: "edit", to }, { onSuccess: () => setEditing(false) })}
        />
      )}
      <MoveDialog
        open={moving}
        title={`Reschedule job ${job.id} to`}
        onClose={() => setMoving(false)}
        busy={busy}
        onMove={(to) => {
          if (!("shift" in to)) action.mutate({ does: "reschedule", to }, { onSuccess: () => setMoving(false) });
        }}
      />
    </Group>
  );
}
