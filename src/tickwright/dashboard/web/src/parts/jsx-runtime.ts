/**
 * The JSX runtime of the dashboard and its libraries: React's runtime, with every text made harmless (`visible.ts`).
 *
 * It is done here because every new text is then covered. The value of a field and the text of a copy button stay as
 * they are, because they go back to the API.
 */
import type { ElementType, Key, ReactNode } from "react";
import { Fragment, jsx as make, jsxs as makeMany } from "react/jsx-runtime";
import classes from "./parts.module.css";
import { pieces, plain } from "./visible";

export { Fragment };

type Props = Record<string, unknown>;

/** Elements whose children are plain text for the browser. */
const BARE = new Set<unknown>(["option", "title", "textarea", "style", "script"]);
const TOOLTIPS = ["title", "aria-label", "alt", "placeholder"] as const;

export function jsx(type: ElementType, props: Props, key?: Key): ReactNode {
  return make(type, harmless(type, props), key);
}

export function jsxs(type: ElementType, props: Props, key?: Key): ReactNode {
  return makeMany(type, harmless(type, props), key);
}

function harmless(type: ElementType, props: Props): Props {
  let changed: Props | null = null;
  const { children } = props;
  const seen = BARE.has(type) ? children : visible(children);
  if (seen !== children) changed = { ...props, children: seen };
  if (typeof type !== "string") return changed ?? props;
  for (const name of TOOLTIPS) {
    const text = props[name];
    if (typeof text !== "string" || plain(text) === text) continue;
    changed = { ...(changed ?? props), [name]: plain(text) };
  }
  return changed ?? props;
}

function visible(children: unknown): unknown {
  if (typeof children === "string") return marked(children);
  if (!Array.isArray(children) || !children.some(hasMark)) return children;
  return children.map((child: unknown) => (typeof child === "string" ? marked(child) : child));
}

const hasMark = (child: unknown) => typeof child === "string" && pieces(child) !== null;

function marked(text: string): ReactNode {
  const found = pieces(text);
  if (found === null) return text;
  const children = found.map((piece, place) => (place % 2 === 1 ? make("span", { className: classes.codePoint, children: piece }, place) : piece));
  return makeMany(Fragment, { children });
}
