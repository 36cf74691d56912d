/** What a program's jobs take and return, by the names of their types. */
export type JobMap = Record<string, { payload: unknown; result?: unknown }>;

/** Jobs without declared types: any name, payload and result. */
// eslint-disable-next-line @typescript-eslint/no-explicit-any
export type AnyJobs = Record<string, { payload: any; result?: any }>;

export type Payload<Jobs extends JobMap, Name extends keyof Jobs> = Jobs[Name]["payload"];
export type Value<Jobs extends JobMap, Name extends keyof Jobs> = Jobs[Name] extends { result: infer Result } ? Result : unknown;

/** Milliseconds, or a text such as `"30s"`, `"1h30m"`. */
export type Duration = number | string;

/** Return a duration as the API reads it. */
export function durationText(duration: Duration): string {
  return typeof duration === "number" ? `${Math.max(0, Math.round(duration))}ms` : duration;
}
