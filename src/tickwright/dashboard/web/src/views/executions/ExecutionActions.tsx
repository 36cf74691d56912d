/** Pause, resume, stop, retry: each asks for confirmation. */
import { Button, Group } from "@mantine/core";
import { post, type Schemas } from "../../api/client";
import { useMay } from "../../app/session";
import { useConfirm, type Question } from "../../parts/Confirm";
import { count } from "../../parts/Figure";
import { useAction } from "../../parts/useAction";

type Detail = Schemas["ExecutionDetail"];
const ACTS = ["pause", "resume", "stop", "retry"] as const;
type Act = (typeof ACTS)[number];
const LABELS: Record<Act, string> = { pause: "Pause", resume: "Resume", stop: "Stop", retry: "Retry" };

function run(act: Act, id: string): Promise<Schemas["ExecutionChange"]> {
  const path = { path: { execution_id: id } };
  const calls = {
    pause: () => post("/v1/executions/{execution_id}/pause", path),
    resume: () => post("/v1/executions/{execution_id}/resume", path),
    stop: () => post("/v1/executions/{execution_id}/stop", path),
    retry: () => post("/v1/executions/{execution_id}/retry", path),
  };
  return calls[act]();
}

export function ExecutionActions({ execution: one }: { execution: Detail }) {
  const may = useMay("operator");
  const confirm = useConfirm();
  const action = useAction({
    run: (act: Act) => run(act, one.id),
    message: (done) => `Execution ${done.id}: ${done.outcome}`,
    invalidates: ["executions", "campaigns", "batches"],
  });
  if (!may) return null;
  const acts = ACTS.filter((act) => possible(act, one));
  if (acts.length === 0) return null;
  async function ask(act: Act): Promise<void> {
    if (await confirm(questionOf(act, one))) action.mutate(act);
  }
  return (
    <Group gap="xs">
      {acts.map((act) => (
        <Button key={act} variant="default" loading={action.isPending && action.variables === act} onClick={() => void ask(act)}>
          {LABELS[act]}
        </Button>
      ))}
    </Group>
  );
}

function possible(act: Act, one: Detail): boolean {
  const open = one.status === "NEW" || one.status === "IN_PROGRESS";
  if (act === "retry") return one.status === "EXCEPTION_OCCURRED";
  if (act === "pause") return open && one.paused_at === null;
  return act === "resume" ? open && one.paused_at !== null : open;
}

function questionOf(act: Act, one: Detail): Question {
  const left = one.planned_at === null ? "" : ` ${count(one.chunks - one.chunks_done)} of ${count(one.chunks)} chunks are not done.`;
  const does = `${LABELS[act]} 1 execution`;
  const texts: Record<Act, string> = {
    pause: "No further chunk starts and none is released; running chunks finish.",
    resume: "It continues where it was paused.",
    stop: `It ends as stopped: ${count(one.actions - one.released)} actions that were not released stay unreleased permanently.`,
    retry: "It continues with the chunks that are not done, each with all its attempts; chunks that are done are not repeated.",
  };
  return { title: `${does}?`, text: `Of ${one.name}. ${texts[act]}${left}`, does, danger: act === "stop" };
}
