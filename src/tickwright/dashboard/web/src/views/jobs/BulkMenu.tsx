/** What can be done to the chosen jobs, or to all that match the filter: first how many, then the question, then the work. */
import { Button, Menu } from "@mantine/core";
import { useState } from "react";
import { count } from "../../parts/Figure";
import { useConfirm } from "../../parts/Confirm";
import { Glyph } from "../../parts/Glyph";
import { useAction } from "../../parts/useAction";
import type { Selection } from "../../parts/useSelection";
import { acted, tried, type BulkName, type Done, type MoveTo, type Target } from "./bulk";
import { spokenFilter, type JobFilter } from "./filter";
import { MoveDialog } from "./MoveDialog";

export const DOES: Record<BulkName, { verb: string; done: string; says: string }> = {
  cancel: { verb: "Cancel", done: "cancelled", says: "What waits never starts; what runs is asked to stop. What has ended stays as it is." },
  retry: { verb: "Retry", done: "put back to work", says: "Failed jobs go back to work under their own ids, with all their attempts, due now." },
  "run-now": { verb: "Run now", done: "made due now", says: "Pending jobs become due now; other ones stay as they are." },
  reschedule: { verb: "Reschedule", done: "rescheduled", says: "Pending jobs get another time; other ones stay as they are." },
};
const TOUCHES = ["jobs", "dead-letters"] as const;
const jobs = (done: Done) => `${count(done.changed)}${done.more ? " or more" : ""} ${done.changed === 1 && !done.more ? "job" : "jobs"}`;

interface Props {
  selection: Selection;
  filter: JobFilter;
  /** The list is bound by something that an action cannot be bound by. */
  bound: boolean;
}

export function BulkMenu({ selection, filter, bound }: Props) {
  const confirm = useConfirm();
  const [moving, setMoving] = useState<Target | null>(null);
  const chosen = selection.ids.length;
  const target: Target = chosen > 0 ? { ids: selection.ids } : { filter };
  const canAct = chosen > 0 || (!bound && Object.keys(filter).length > 0);
  const work = useAction({
    run: ({ name, on, to }: { name: BulkName; on: Target; to?: MoveTo | undefined }) => acted(name, on, to),
    told: (done, { name }) => `${jobs(done)} ${DOES[name].done}`,
    touches: TOUCHES,
  });
  const trial = useAction({
    run: ({ name, on, to }: { name: BulkName; on: Target; to?: MoveTo | undefined }) => tried(name, on, to),
    told: () => null,
    touches: [],
  });

  async function ask(name: BulkName, on: Target, to?: MoveTo): Promise<void> {
    const would = await trial.mutateAsync({ name, on, to });
    setMoving(null);
    const { verb, says } = DOES[name];
    const which = "filter" in on ? `All that match: ${spokenFilter(on.filter)}. ` : "";
    const none = would.changed === 0 ? "None of them can be changed now. " : "";
    const question = { title: `${verb}: ${jobs(would)}?`, text: `${none}${which}${says}`, does: `${verb}: ${jobs(would)}`, danger: name === "cancel" };
    if (!(await confirm(question))) return;
    await work.mutateAsync({ name, on, to });
    selection.clear();
  }
  const start = (name: BulkName) => (name === "reschedule" ? setMoving(target) : void ask(name, target).catch(() => undefined));
  const label = chosen > 0 ? `Act on ${count(chosen)} chosen` : "Act on all that match";
  return (
    <>
      <Menu position="bottom-end">
        <Menu.Target>
          <Button
            variant={chosen > 0 ? "filled" : "default"}
            disabled={!canAct}
            loading={work.isPending || trial.isPending}
            rightSection={<Glyph name="down" size={12} />}
            title={canAct ? undefined : "Choose jobs, or say by a filter which ones"}
          >
            {label}
          </Button>
        </Menu.Target>
        <Menu.Dropdown>
          {(Object.keys(DOES) as BulkName[]).map((name) => (
            <Menu.Item key={name} onClick={() => start(name)} {...(name === "cancel" ? { color: "red.9" } : {})}>
              {DOES[name].verb} …
            </Menu.Item>
          ))}
        </Menu.Dropdown>
      </Menu>
      <MoveDialog
        open={moving !== null}
        title="Reschedule to"
        shifts
        onClose={() => setMoving(null)}
        busy={trial.isPending}
        onMove={(to) => {
          if (moving !== null) void ask("reschedule", moving, to).catch(() => undefined);
        }}
      />
    </>
  );
}
