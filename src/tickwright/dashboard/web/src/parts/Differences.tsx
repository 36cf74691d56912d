/** The differences between two documents, field by field, in a table. */
import { differencesOf, SHOWN_MAX } from "./differences";
import classes from "./differences.module.css";

interface Props {
  label: string;
  before: { title: string; value: unknown };
  after: { title: string; value: unknown };
  /** The text if nothing differs. */
  none: string;
}

export function Differences({ label, before, after, none }: Props) {
  const all = differencesOf(before.value, after.value);
  if (all.length === 0) return <p className={classes.quiet}>{none}</p>;
  return (
    <div className={classes.scroll}>
      <table className={classes.table} aria-label={label}>
        <thead>
          <tr>
            <th scope="col">Field</th>
            <th scope="col">{before.title}</th>
            <th scope="col">{after.title}</th>
          </tr>
        </thead>
        <tbody>
          {all.map((one) => (
            <tr key={one.place}>
              <th scope="row">{one.place || "all"}</th>
              <td>{one.before === null ? <span className={classes.quiet}>–</span> : <del>{one.before}</del>}</td>
              <td>{one.after === null ? <span className={classes.quiet}>–</span> : <ins>{one.after}</ins>}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {all.length >= SHOWN_MAX && <p className={classes.quiet}>Only the first {SHOWN_MAX} differences are shown.</p>}
    </div>
  );
}
