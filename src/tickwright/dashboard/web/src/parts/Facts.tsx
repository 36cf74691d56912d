/** Names and values, in two columns. */
import type { ReactNode } from "react";
import classes from "./parts.module.css";

export function Facts({ of }: { of: readonly (readonly [name: string, value: ReactNode])[] }) {
  return (
    <dl className={classes.facts}>
      {of.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value ?? <span className={classes.none}>–</span>}</dd>
        </div>
      ))}
    </dl>
  );
}
