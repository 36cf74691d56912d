/** Requeues the chosen dead letters, or as many as there are now, the oldest first. */
import { Button } from "@mantine/core";
import { useMay } from "../../app/session";
import { useConfirm } from "../../parts/Confirm";
import { count } from "../../parts/Figure";
import { useAction } from "../../parts/useAction";
import { CALL_MAX, LABELS, requeue, type Queued, type QueuedKind } from "./kinds";

type Which = { ids: string[] } | { number: number };

/** Return how many were requeued. Messages that become dead letters again meanwhile are not requeued a second time. */
async function requeueAll(kind: QueuedKind, which: Which): Promise<number> {
  let done = 0;
  if ("ids" in which) {
    for (let start = 0; start < which.ids.length; start += CALL_MAX) done += (await requeue(kind, { ids: which.ids.slice(start, start + CALL_MAX) })).requeued;
    return done;
  }
  while (done < which.number) {
    const { requeued, more } = await requeue(kind, { all: true, limit: Math.min(CALL_MAX, which.number - done) });
    done += requeued;
    if (!more) break;
  }
  return done;
}

interface Props {
  kind: QueuedKind;
  chosen: readonly Queued[];
  /** How many there are in all; 0 if only chosen ones can be requeued. */
  all: number;
  onDone: () => void;
}

const TEXTS: Record<QueuedKind, string> = {
  fanout: "The oldest go first, with a new delivery count. A task whose window is over is dropped when it is read.",
  reports: "The oldest go first, each to its own listener. A call of a report that is over is dropped when it is read.",
};

export function RequeueQueued({ kind, chosen, all, onDone }: Props) {
  const may = useMay("operator");
  const confirm = useConfirm();
  const { one, many } = LABELS[kind];
  const named = (number: number) => `${count(number)} ${number === 1 ? one : many}`;
  const action = useAction({ run: (which: Which) => requeueAll(kind, which), message: (done) => `${named(done)} requeued`, invalidates: ["dead_letters"] });
  if (!may) return null;
  const ids = [...new Set(chosen.flatMap((letter) => (letter.id === null ? [] : [letter.id])))];
  const which: Which = chosen.length > 0 ? { ids } : { number: all };
  const number = chosen.length > 0 ? ids.length : all;
  const does = chosen.length === 0 && number > 1 ? `Requeue all ${named(number)}` : `Requeue ${named(number)}`;
  async function ask(): Promise<void> {
    const without = chosen.length - chosen.filter((letter) => letter.id !== null).length;
    const left = without > 0 ? ` ${count(without)} without an id can only be requeued together with all.` : "";
    if (await confirm({ title: `${does}?`, text: TEXTS[kind] + left, does })) action.mutate(which, { onSuccess: onDone });
  }
  return (
    <Button disabled={number === 0} loading={action.isPending} onClick={() => void ask()} title={number === 0 ? "Choose dead letters; one without an id can only be requeued with all" : undefined}>
      {number === 0 ? "Requeue" : does}
    </Button>
  );
}
