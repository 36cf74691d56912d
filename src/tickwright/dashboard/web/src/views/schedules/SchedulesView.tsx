/** Periodic jobs: when each runs next, its last job; operators create, edit, pause and run them. */
import { Button } from "@mantine/core";
import { useState } from "react";
import { get, type Schemas } from "../../api/client";
import { useMay } from "../../app/session";
import { DataTable, type Column } from "../../parts/DataTable";
import { EmptyState } from "../../parts/EmptyState";
import { Filters, TextFilter } from "../../parts/Filters";
import { Glyph } from "../../parts/Glyph";
import { Instant } from "../../parts/Instant";
import { StateBadge } from "../../parts/StateBadge";
import { usePages } from "../../parts/usePages";
import { useUrl } from "../../parts/useUrl";
import { View } from "../../parts/View";
import { ScheduleDrawer } from "./ScheduleDrawer";
import { ScheduleForm } from "./ScheduleForm";

type Row = Schemas["ScheduleView"];
const NAMES = ["q", "type"] as const;

const COLUMNS: Column<Row>[] = [
  { id: "name", header: "Name", cell: (one) => <span title={one.name}>{one.name}</span> },
  { id: "state", header: "State", width: 100, cell: (one) => <StateBadge state={one.state} title={one.problem ?? undefined} /> },
  { id: "text", header: "Times", width: 260, hide: "sm", cell: (one) => <span title={`${one.cron ?? one.every ?? ""} ${one.time_zone}`}>{one.text}</span> },
  { id: "zone", header: "Time zone", width: 130, hide: "md", cell: (one) => one.time_zone },
  { id: "next", header: "Next", width: 140, cell: (one) => <Instant at={one.next_at} ago /> },
  { id: "last", header: "Last", width: 140, hide: "sm", cell: (one) => <Instant at={one.last_slot_at} ago /> },
  { id: "type", header: "Task type", width: 180, hide: "md", cell: (one) => <span title={one.task_type}>{one.task_type}</span> },
  { id: "by", header: "Set by", width: 90, hide: "md", cell: (one) => one.set_by },
];

export default function SchedulesView() {
  const url = useUrl();
  const isOperator = useMay("operator");
  const [creating, setCreating] = useState(false);
  const filter = { q: url.one("q") || undefined, task_type: url.one("type") || undefined };
  const filtered = NAMES.some((name) => url.one(name) !== "");
  const pages = usePages({
    queryKey: ["schedules", "list", filter],
    load: (cursor, signal) => get("/v1/schedules", { query: { ...filter, cursor, limit: 100 }, signal }),
  });
  return (
    <View
      title="Schedules"
      actions={
        isOperator && (
          <Button leftSection={<Glyph name="plus" size={12} />} onClick={() => setCreating(true)}>
            Create
          </Button>
        )
      }
    >
      <Filters names={NAMES}>
        <TextFilter name="q" label="Name" placeholder="begins with" width={240} first />
        <TextFilter name="type" label="Task type" width={200} />
      </Filters>
      <DataTable
        label="Schedules by name"
        columns={COLUMNS}
        pages={pages}
        rowKey={(one) => one.name}
        onOpen={(one) => url.set({ name: one.name }, true)}
        openKey={url.one("name")}
        empty={
          <EmptyState title={filtered ? "No schedule matches" : "There is no schedule"}>
            {filtered ? "Remove a filter. The filter Name compares the beginning." : "Create one here, with tickwright schedules put, or with @app.job(…, cron=…) in a program."}
          </EmptyState>
        }
      />
      <ScheduleDrawer name={url.one("name")} onClose={() => url.set({ name: null })} />
      {creating && <ScheduleForm schedule={null} onClose={() => setCreating(false)} />}
    </View>
  );
}
