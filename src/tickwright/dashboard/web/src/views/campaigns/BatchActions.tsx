/** The actions on a campaign or batch; each asks for confirmation. */
import { Button, Group } from "@mantine/core";
import { Link, useLocation } from "wouter";
import { del } from "../../api/client";
import { useMay } from "../../app/session";
import { useConfirm, type Question } from "../../parts/Confirm";
import { useAction } from "../../parts/useAction";
import { actOn, ONE, INVALIDATES, type Act, type BatchDetail, type Kind } from "./kind";

interface Props {
  kind: Kind;
  batch: BatchDetail;
}

export function BatchActions({ kind, batch }: Props) {
  const [isOperator, isAdmin] = [useMay("operator"), useMay("admin")];
  const confirm = useConfirm();
  const action = useAction({
    run: (act: Act) => actOn(kind, batch.name, act),
    message: (done) => `${done.name}: ${done.outcome}${done.executions.length === 0 ? "" : `, ${done.executions.map((one) => `execution ${one.id} is ${one.status.toLowerCase().replaceAll("_", " ")}`).join(", ")}`}`,
    invalidates: INVALIDATES,
  });
  async function ask(act: Act): Promise<void> {
    if (await confirm(questionOf(act, kind, batch))) action.mutate(act);
  }
  if (!isOperator) return null;
  const scheduled = batch.status === "SCHEDULED";
  const acts: Act[] = [...(scheduled ? (["deactivate"] as const) : batch.type === "AUTOMATIC" ? (["activate"] as const) : []), "start", ...(batch.open_executions > 0 ? (["stop"] as const) : [])];
  return (
    <Group gap="xs">
      {isAdmin && kind === "campaigns" && (
        <Button component={Link} href={`/campaigns/edit?name=${encodeURIComponent(batch.name)}`}>
          Edit
        </Button>
      )}
      {acts.map((act) => (
        <Button key={act} variant="default" loading={action.isPending && action.variables === act} onClick={() => void ask(act)}>
          {LABELS[act]}
        </Button>
      ))}
      {isAdmin && kind === "campaigns" && <DeleteButton name={batch.name} />}
    </Group>
  );
}

const LABELS: Record<Act, string> = { activate: "Activate", deactivate: "Deactivate", start: "Start now", stop: "Stop" };

function questionOf(act: Act, kind: Kind, { name, open_executions: open }: BatchDetail): Question {
  const what = ONE[kind];
  const executions = `${open} open execution${open === 1 ? "" : "s"}`;
  const questions: Record<Act, Question> = {
    activate: { title: `Activate 1 ${what}?`, text: `${name} runs by its calendar, from the next occurrence on.`, does: `Activate 1 ${what}` },
    deactivate: {
      title: `Deactivate 1 ${what}?`,
      text: `${name} no longer runs; ${open === 0 ? "no execution is open" : `${executions} become disabled`}.`,
      does: `Deactivate 1 ${what}`,
      danger: true,
    },
    start: {
      title: `Start 1 ${what}?`,
      text: `${name} is executed now, once.${open > 0 ? ` It has ${executions}: its setting overlap decides what happens to them.` : ""}`,
      does: `Start 1 ${what}`,
    },
    stop: { title: `Stop ${executions}?`, text: `Actions of ${name} that are not released yet stay unreleased permanently.`, does: `Stop ${executions}`, danger: true },
  };
  return questions[act];
}

function DeleteButton({ name }: { name: string }) {
  const confirm = useConfirm();
  const [, go] = useLocation();
  const action = useAction({
    run: () => del("/v1/campaigns/{name}", { path: { name } }),
    message: () => {
      go("/campaigns");
      return `${name} is deleted`;
    },
    invalidates: ["campaigns", "executions"],
  });
  async function ask(): Promise<void> {
    const text = `${name} is deleted with its versions, its executions and their actions. This is refused while an execution is open.`;
    if (await confirm({ title: "Delete 1 campaign?", text, does: "Delete 1 campaign", danger: true })) action.mutate(undefined);
  }
  return (
    <Button variant="default" loading={action.isPending} onClick={() => void ask()}>
      Delete
    </Button>
  );
}
