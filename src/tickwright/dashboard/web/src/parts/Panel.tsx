/** Single figures (`Tile`) and framed parts of a view (`Panel`), laid out by `Tiles` and `Panels`. */
import { Children, type CSSProperties, type ReactNode } from "react";
import { Link } from "wouter";
import classes from "./parts.module.css";
import type { Tone } from "./StateBadge";

/** In one row, in two rows of which the last is as wide as the first, or below each other. */
export const Panels = ({ children }: { children: ReactNode }) => (
  <div className={classes.frame}>
    <div className={classes.panels}>{children}</div>
  </div>
);
/** The scrolling content of a view without a table that fills its height. */
export const Scroll = ({ children }: { children: ReactNode }) => <div className={classes.scroll}>{children}</div>;

const IN_A_ROW = 4;

/** In one row, in two, or in pairs, depending on the width; no tile is alone in a half-empty row. */
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
  /** The address of the list that it counts. */
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
  /** A link or a figure at the right of the title. */
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
