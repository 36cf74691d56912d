/**
 * The frame of a view: its title, its actions, its content. A table in it fills the height that is left.
 *
 * The browser's tab says how many alerts fire, so that it is seen among others.
 */
import { Title } from "@mantine/core";
import { useDocumentTitle } from "@mantine/hooks";
import type { ReactNode } from "react";
import { useOverview } from "../app/live";
import classes from "./parts.module.css";
import { Understood } from "./Understood";
import { plain } from "./visible";

interface Props {
  title: string;
  /** Not offered while the address has a filter that is not understood: they may act on what it names. */
  actions?: ReactNode;
  children: ReactNode;
}

export function View({ title, actions, children }: Props) {
  const fire = useOverview((overview) => overview.alerts.critical + overview.alerts.warning) ?? 0;
  useDocumentTitle(plain(`${fire > 0 ? `(${fire}) ` : ""}${title} – Tickwright`));
  return (
    <section className={classes.view} aria-label={title}>
      <Understood
        head={(all) => (
          <div className={classes.viewHead}>
            <Title order={1}>{title}</Title>
            {all && actions}
          </div>
        )}
      >
        {children}
      </Understood>
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
