/** The frame of a view: its title, its actions, its content. A table in it fills the height that is left. */
import { Title } from "@mantine/core";
import { useDocumentTitle } from "@mantine/hooks";
import type { ReactNode } from "react";
import classes from "./parts.module.css";

interface Props {
  title: string;
  actions?: ReactNode;
  children: ReactNode;
}

export function View({ title, actions, children }: Props) {
  useDocumentTitle(`${title} – Tickwright`);
  return (
    <section className={classes.view} aria-label={title}>
      <div className={classes.viewHead}>
        <Title order={1}>{title}</Title>
        {actions}
      </div>
      {children}
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
