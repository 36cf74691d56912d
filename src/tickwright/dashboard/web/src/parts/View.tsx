/**
 * The frame of a view: its title, its actions, its content. A table in it fills the height that is left.
 *
 * The title of the browser's tab shows how many alerts fire.
 */
import { Title } from "@mantine/core";
import { useDocumentTitle } from "@mantine/hooks";
import type { ReactNode } from "react";
import { useOverview } from "../app/live";
import classes from "./parts.module.css";
import { ParameterChecks } from "./ParameterChecks";
import { plain } from "./visible";

interface Props {
  title: string;
  /** Hidden while the address has an unknown filter value, because they may act on all that match. */
  actions?: ReactNode;
  children: ReactNode;
}

export function View({ title, actions, children }: Props) {
  const fire = useOverview((overview) => overview.alerts.critical + overview.alerts.warning) ?? 0;
  useDocumentTitle(plain(`${fire > 0 ? `(${fire}) ` : ""}${title} – Tickwright`));
  return (
    <section className={classes.view} aria-label={title}>
      <ParameterChecks
        head={(mayAct) => (
          <div className={classes.viewHead}>
            <Title order={1}>{title}</Title>
            {mayAct && actions}
          </div>
        )}
      >
        {children}
      </ParameterChecks>
    </section>
  );
}

/** A part of a view or drawer with a heading. */
export function Section({ title, children }: { title: string; children: ReactNode }) {
  return (
    <section className={classes.section}>
      <h2>{title}</h2>
      {children}
    </section>
  );
}
