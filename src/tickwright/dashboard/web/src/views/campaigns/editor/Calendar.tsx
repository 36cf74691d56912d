/** The calendar of a campaign. */
import { Select, SegmentedControl } from "@mantine/core";
import classes from "./editor.module.css";
import { Choice, Text, type FormProps } from "./fields";

const ZONES = Intl.supportedValuesOf("timeZone");
const UNITS = ["MINUTES", "HOURS", "DAYS", "WEEKS", "MONTHS"].map((value) => ({ value, label: value.toLowerCase() }));
const TYPES = [
  { value: "MANUAL", label: "By hand" },
  { value: "AUTOMATIC", label: "By a calendar" },
];
const REPEATS = [
  { value: "once", label: "once" },
  { value: "every", label: "at an interval" },
  { value: "cron", label: "by cron" },
];

export function Calendar(props: FormProps) {
  const { fields, change } = props;
  return (
    <>
      <SegmentedControl aria-label="Runs" style={{ alignSelf: "flex-start" }} data={TYPES} value={fields.type} onChange={(value) => change({ type: value === "AUTOMATIC" ? "AUTOMATIC" : "MANUAL" })} />
      {fields.type === "AUTOMATIC" && (
        <div className={classes.row}>
          <Text {...props} field="first" path="date_time_execution" label="First run" placeholder="2026-11-01T09:00" />
          <Text {...props} field="time_zone" label="Time zone" list="zones" />
          <Select allowDeselect={false} label="Repeats" data={REPEATS} value={fields.repeats} onChange={(value) => change({ repeats: value === "every" || value === "cron" ? value : "once" })} />
          {fields.repeats === "every" && <Text {...props} field="unit" path="restartable_unit" label="Every" placeholder="6" />}
          {fields.repeats === "every" && <Choice {...props} field="unit_type" path="restartable_unit_type" label="Unit" options={UNITS} />}
          {fields.repeats === "cron" && <Text {...props} field="cron" label="Cron" placeholder="0 9 * * 1-5" />}
        </div>
      )}
      <datalist id="zones">
        {ZONES.map((zone) => (
          <option key={zone} value={zone} />
        ))}
      </datalist>
    </>
  );
}
