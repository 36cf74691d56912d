/** Actions on the chosen jobs, or on all that match the filter: a dry run counts them, then the user confirms. */
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

export const ACTIONS: Record<BulkName, { verb: string; done: string; text: string }> = {
  cancel: { verb: "Cancel", done: "cancelled", text: "Pending jobs never start; running jobs are asked to stop. Ended jobs stay as they are." },
  retry: { verb: "Retry", done: "pending again", text: "Failed jobs become pending again under their ids, due now, with all their attempts." },
  "run-now": { verb: "Run now", done: "made due now", text: "Pending jobs become due now; others stay as they are." },
  reschedule: { verb: "Reschedule", done: "rescheduled", text: "Pending jobs get another time; others stay as they are." },
};
const INVALIDATES = ["jobs", "dead_letters"] as const;
const jobs = (done: Done) => `${count(done.changed)}${done.more ? " or more" : ""} ${done.changed === 1 && !done.more ? "job" : "jobs"}`;

interface Props {
  selection: Selection;
  filter: JobFilter;
  /** The list has a filter that bulk actions do not support. */
  listOnly: boolean;
}

export function BulkMenu({ selection, filter, listOnly }: Props) {
  const confirm = useConfirm();
  const [moving, setMoving] = useState<Target | null>(null);
  const chosen = selection.ids.length;
  const target: Target = chosen > 0 ? { ids: selection.ids } : { filter };
  const canAct = chosen > 0 || (!listOnly && Object.keys(filter).length > 0);
  const work = useAction({
    run: ({ name, on, to }: { name: BulkName; on: Target; to?: MoveTo | undefined }) => acted(name, on, to),
    message: (done, { name }) => `${jobs(done)} ${ACTIONS[name].done}`,
    invalidates: INVALIDATES,
  });
  const trial = useAction({
    run: ({ name, on, to }: { name: BulkName; on: Target; to?: MoveTo | undefined }) => tried(name, on, to),
    message: () => null,
    invalidates: [],
  });

  async function ask(name: BulkName, on: Target, to?: MoveTo): Promise<void> {
    const would = await trial.mutateAsync({ name, on, to });
    setMoving(null);
    const { verb, text } = ACTIONS[name];
    const which = "filter" in on ? `All that match: ${spokenFilter(on.filter)}. ` : "";
    const none = would.changed === 0 ? "None of them can be changed now. " : "";
    const question = { title: `${verb}: ${jobs(would)}?`, text: `${none}${which}${text}`, does: `${verb}: ${jobs(would)}`, danger: name === "cancel" };
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
            title={canAct ? undefined : "Choose jobs, or set a filter"}
          >
            {label}
          </Button>
        </Menu.Target>
        <Menu.Dropdown>
          {(Object.keys(ACTIONS) as BulkName[]).map((name) => (
            <Menu.Item key={name} onClick={() => start(name)} {...(name === "cancel" ? { color: "red.9" } : {})}>
              {ACTIONS[name].verb} …
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
