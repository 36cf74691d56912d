/** An instant as a filter: typed in the chosen zone, in the URL as ISO 8601 in UTC. */
import { TextInput } from "@mantine/core";
import { zone } from "../app/prefs";
import { INSTANT, useParameterCheck } from "./ParameterChecks";
import { useUrl } from "./useUrl";

interface Props {
  name: string;
  label: string;
}

export function TimeFilter({ name, label }: Props) {
  const url = useUrl();
  const shown = zone.use();
  const current = url.one(name);
  useParameterCheck(name, label, INSTANT);
  return (
    <TextInput
      type="datetime-local"
      step={1}
      max="9999-12-31T23:59:59"
      w={190}
      label={`${label}${shown === "utc" ? ", UTC" : ""}`}
      value={current === "" ? "" : fieldText(current, shown)}
      onChange={(event) => {
        const value = event.currentTarget.value;
        const at = new Date(shown === "utc" ? `${value}Z` : value);
        url.set({ [name]: value === "" || Number.isNaN(at.getTime()) ? null : at.toISOString() });
      }}
    />
  );
}

/** Return an instant in the format of a `datetime-local` field; empty if that field cannot hold it. */
export function fieldText(at: string, shown: "local" | "utc"): string {
  const date = new Date(at);
  const moved = new Date(date.getTime() - (shown === "utc" ? 0 : date.getTimezoneOffset() * 60_000));
  const year = moved.getUTCFullYear(); // NaN for an invalid instant
  return year >= 0 && year <= 9999 ? moved.toISOString().slice(0, 19) : "";
}
