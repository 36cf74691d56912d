/** The filters above the list. */
import { useQuery } from "@tanstack/react-query";
import { get } from "../../api/client";
import { ChoiceFilter, Filters, TextFilter } from "../../parts/Filters";
import { TimeFilter } from "../../parts/TimeFilter";
import { NUMBER, useParameterCheck } from "../../parts/ParameterChecks";
import { NAMES } from "./filter";

export function JobFilters() {
  const types = useQuery({ queryKey: ["task-types", "list"], queryFn: ({ signal }) => get("/v1/task-types", { signal }), staleTime: 30_000 });
  useParameterCheck("worker", "Worker", NUMBER);
  useParameterCheck("workflow", "Workflow", NUMBER);
  return (
    <Filters names={NAMES}>
      <TextFilter name="text" label="Text" placeholder="in key, error or payload" width={210} first />
      <ChoiceFilter name="type" label="Task type" names options={(types.data?.items ?? []).map((type) => type.name)} width={190} />
      <TextFilter name="tag" label="Tags" placeholder="all of a, b" width={130} />
      <TextFilter name="group" label="Group" placeholder="whole name" width={130} />
      <TextFilter name="metadata" label="Metadata" placeholder="name=value" width={140} />
      <TextFilter name="key" label="Idempotency key" placeholder="exact" width={150} />
      <TextFilter name="worker" label="Worker" placeholder="session id" width={110} />
      <TextFilter name="workflow" label="Workflow" placeholder="id" width={110} />
      <TimeFilter name="from" label="Execute from" />
      <TimeFilter name="to" label="Execute before" />
    </Filters>
  );
}
