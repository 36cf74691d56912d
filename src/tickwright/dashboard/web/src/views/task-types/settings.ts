/** The settings of a task type as fields of a form, and the fields that differ as a change. */
import type { Schemas } from "../../api/client";
import { readNumber } from "../../api/json";
import type { TaskType } from "./rows";

export interface Fields {
  target: string;
  timeout: string;
  max_attempts: string;
  retry_base: string;
  retry_factor: string;
  retry_cap: string;
  final_statuses: string;
  concurrency: string;
  rate_per_s: string;
  keep_history: boolean;
  queue: string;
  needs: string;
  encrypted: boolean;
  group_limit: string;
  group_rate_per_s: string;
  group_order: string;
}
type Settings = Omit<Schemas["TaskTypeRequest"], never>;

export const DEFAULTS: Fields = {
  target: "", timeout: "30s", max_attempts: "3", retry_base: "1s", retry_factor: "2", retry_cap: "1h", final_statuses: "",
  concurrency: "", rate_per_s: "", keep_history: true, queue: "default", needs: "", encrypted: false, group_limit: "", group_rate_per_s: "", group_order: "",
}; // prettier-ignore

export function fieldsOf(type: TaskType): Fields {
  const { max_attempts, retry_factor, concurrency, rate_per_s } = type;
  const groups = { group_limit: `${type.group_limit ?? ""}`, group_rate_per_s: `${type.group_rate_per_s ?? ""}`, group_order: type.group_order ?? "" };
  return { ...type, final_statuses: type.final_statuses.join(", "), max_attempts: `${max_attempts}`, retry_factor: `${retry_factor}`, concurrency: `${concurrency ?? ""}`, rate_per_s: `${rate_per_s ?? ""}`, needs: type.needs.join(", "), ...groups };
}

export function settingsOf(fields: Fields): Settings {
  return {
    target: fields.target.trim(),
    timeout: fields.timeout.trim(),
    max_attempts: readNumber(fields.max_attempts) as number,
    retry_base: fields.retry_base.trim(),
    retry_factor: readNumber(fields.retry_factor) as number,
    retry_cap: fields.retry_cap.trim(),
    final_statuses: fields.final_statuses.split(/[\s,]+/).filter(Boolean).map((one) => readNumber(one) as number),
    concurrency: readNumber(fields.concurrency),
    rate_per_s: readNumber(fields.rate_per_s),
    keep_history: fields.keep_history,
    queue: fields.queue.trim(),
    needs: fields.needs.split(/[\s,]+/).filter(Boolean),
    encrypted: fields.encrypted,
    group_limit: readNumber(fields.group_limit),
    group_rate_per_s: readNumber(fields.group_rate_per_s),
    group_order: (fields.group_order.trim() || null) as Settings["group_order"],
  };
}

/** Return the settings that differ from `type`. Others are not sent, so that other users' changes stay. */
export function changesOf(type: TaskType, fields: Fields): Partial<Settings> {
  const before = settingsOf(fieldsOf(type));
  const after = settingsOf(fields);
  const names = Object.keys(after) as (keyof Settings)[];
  return Object.fromEntries(names.filter((name) => JSON.stringify(before[name]) !== JSON.stringify(after[name])).map((name) => [name, after[name]]));
}
