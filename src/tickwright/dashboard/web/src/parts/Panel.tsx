/** Figures at a glance (`Tile`) and framed parts of a page (`Panel`), laid out by `Tiles` and `Panels`. */
import { Children, type CSSProperties, type ReactNode } from "react";
import { Link } from "wouter";
import classes from "./parts.module.css";
import type { Tone } from "./StateBadge";

/** In one row, in two with the last as wide as it, or below each other. */
export const Panels = ({ children }: { children: ReactNode }) => (
  <div className={classes.frame}>
    <div className={classes.panels}>{children}</div>
  </div>
);
/** The content of a view without a filling table: it scrolls by itself. */
export const Scroll = ({ children }: { children: ReactNode }) => <div className={classes.scroll}>{children}</div>;

const IN_A_ROW = 4;

/** All in one row, in two, or in pairs, as there is room: never one alone beside an empty row. */
export function Tiles({ children }: { children: ReactNode }) {
  const many = Children.count(children);
  const shape = { "--all": many, "--half": Math.ceil(many / 2) } as CSSProperties;
  return (
    <div className={classes.frame}>
      <div className={classes.tiles} data-many={many > IN_A_ROW} style={shape}>
        {children}
      </div>
    </div>
  );
}

interface TileProps {
  title: string;
  value: ReactNode;
  below?: ReactNode;
  tone?: Tone | undefined;
  /** The list of what it counts. */
  to?: string;
}

export function Tile({ title, value, below, tone, to }: TileProps) {
  return (
    <section className={classes.tile} aria-label={title}>
      <h2>{to === undefined ? title : <Link href={to}>{title}</Link>}</h2>
      <div className={classes.value} data-tone={tone}>
        {value}
      </div>
      <div className={classes.below}>{below}</div>
    </section>
  );
}

interface PanelProps {
  title: string;
  /** At the right of the title: a link or a figure. */
  side?: ReactNode;
  children: ReactNode;
}

export function Panel({ title, side, children }: PanelProps) {
  return (
    <section className={classes.panel} aria-label={title}>
      <h2>
        <span>{title}</span>
        {side}
      </h2>
      {children}
    </section>
  );
}
