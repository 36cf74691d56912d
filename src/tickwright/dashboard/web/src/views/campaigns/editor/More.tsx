/** Less common settings: overlap, misfire, chunks, rate. */
import { Textarea } from "@mantine/core";
import classes from "./editor.module.css";
import { Choice, Text, wrong, type FormProps } from "./fields";

const OVERLAPS = [
  { value: "skip", label: "skip it" },
  { value: "queue", label: "queue it" },
  { value: "replace", label: "replace the open one" },
];
const MISFIRES = [
  { value: "one", label: "run the newest" },
  { value: "all", label: "run all" },
  { value: "none", label: "run none" },
];

export function More(props: FormProps) {
  const { fields, change, mistakes } = props;
  return (
    <>
      <div className={classes.row}>
        <Choice {...props} field="overlap" label="If an execution is open" options={OVERLAPS} />
        <Choice {...props} field="misfire" label="Missed runs" options={MISFIRES} />
        <Text {...props} field="misfire_max" label="Missed runs at most" placeholder="100" />
        <Text {...props} field="misfire_grace" label="Missed after" placeholder="1m" />
        <Text {...props} field="chunk_rows" label="Clients per chunk" placeholder="5000" />
        <Text {...props} field="attempts" label="Attempts per chunk" placeholder="10" />
        <Text {...props} field="rate" label="Rate" placeholder="no limit; 1000/s" />
        <Text {...props} field="on_finished" label="Notify at the end" placeholder="none; https://…" />
      </div>
      <Textarea
        label="Product codes"
        placeholder="one per line"
        autosize
        minRows={1}
        maxRows={6}
        value={fields.product_codes}
        error={wrong(mistakes, "product_codes")}
        onChange={(event) => change({ product_codes: event.currentTarget.value })}
      />
    </>
  );
}
