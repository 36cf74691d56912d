/** A schedule as fields of a form, and the fields that differ as a change. */
import type { Schemas } from "../../api/client";
import { pretty, readNumber, readObject } from "../../api/json";

export type Schedule = Schemas["ScheduleDetail"];
type Request = Schemas["ScheduleRequest"];

export interface Fields {
  task_type: string;
  cron: string;
  every: string;
  time_zone: string;
  spread: string;
  overlap: string;
  misfire: string;
  misfire_grace: string;
  priority: string;
  max_attempts: string;
  timeout: string;
  expires_after: string;
  /** `null` where it is hidden from this role: then it is not sent. */
  payload: string | null;
}

export const DEFAULTS: Fields = {
  task_type: "", cron: "", every: "", time_zone: "UTC", spread: "0s", overlap: "allow", misfire: "one", misfire_grace: "1m",
  priority: "0", max_attempts: "", timeout: "", expires_after: "", payload: "{}",
}; // prettier-ignore

export const OVERLAPS = [
  { value: "allow", label: "allow: both run" },
  { value: "skip", label: "skip the new one" },
  { value: "replace", label: "replace: cancel the earlier one" },
] as const;
export const MISFIRES = [
  { value: "one", label: "one: the newest" },
  { value: "all", label: "all of them" },
  { value: "none", label: "none" },
] as const;

export function fieldsOf(one: Schedule): Fields {
  return {
    ...one,
    cron: one.cron ?? "",
    every: one.every ?? "",
    priority: `${one.priority}`,
    max_attempts: `${one.max_attempts ?? ""}`,
    timeout: one.timeout ?? "",
    expires_after: one.expires_after ?? "",
    payload: one.payload_hidden === true ? null : pretty(one.payload),
  };
}

/** Return the definition of a form; `payload` is left out where it is hidden, or is no object yet. */
export function requestOf(fields: Fields): Request {
  const given = (text: string) => (text.trim() === "" ? null : text.trim());
  const payload = fields.payload === null ? null : readObject(fields.payload).value;
  return {
    task_type: fields.task_type.trim(),
    cron: given(fields.cron),
    every: given(fields.every),
    time_zone: fields.time_zone.trim(),
    spread: fields.spread.trim(),
    overlap: fields.overlap as NonNullable<Request["overlap"]>,
    misfire: fields.misfire as NonNullable<Request["misfire"]>,
    misfire_grace: fields.misfire_grace.trim(),
    priority: readNumber(fields.priority) as number,
    max_attempts: readNumber(fields.max_attempts),
    timeout: given(fields.timeout),
    expires_after: given(fields.expires_after),
    ...(payload === null ? {} : { payload }),
  };
}

/** Return what differs from the schedule, so that other users' changes stay. */
export function changesOf(one: Schedule, fields: Fields): Partial<Request> {
  const [before, after] = [requestOf(fieldsOf(one)), requestOf(fields)];
  const names = Object.keys(after) as (keyof Request)[];
  return Object.fromEntries(names.filter((name) => JSON.stringify(before[name]) !== JSON.stringify(after[name])).map((name) => [name, after[name]]));
}
