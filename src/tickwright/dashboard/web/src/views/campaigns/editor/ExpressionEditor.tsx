/**
 * A field for an expression that underlines mistakes during typing.
 *
 * The text is rendered twice at the same position: in the field, and as transparent text with marks below it.
 */
import { Code } from "@mantine/core";
import { useId, useRef, type ReactNode } from "react";
import classes from "./editor.module.css";
import { marksOf, placeOf, type Mark, type Mistake } from "./marks";

interface Props {
  value: string;
  onChange: (value: string) => void;
  /** The mistakes in `value`; empty while it is being checked. */
  mistakes: readonly Mistake[];
  /** The state of the check. */
  status: ReactNode;
}

export function ExpressionEditor({ value, onChange, mistakes, status }: Props) {
  const id = useId();
  const field = useRef<HTMLTextAreaElement>(null);
  const below = useRef<HTMLDivElement>(null);
  function go(mistake: Mistake): void {
    const place = placeOf(value, mistake.offset ?? 0);
    field.current?.focus();
    field.current?.setSelectionRange(place, place);
  }
  return (
    <div>
      <div className={classes.label}>
        <label htmlFor={id}>Expression</label>
        <span role="status" className={classes.status}>
          {status}
        </span>
      </div>
      <div className={classes.editor}>
        <div ref={below} className={classes.below} aria-hidden="true">
          <Marked text={value} marks={marksOf(value, mistakes)} />
        </div>
        <textarea
          id={id}
          ref={field}
          className={classes.field}
          value={value}
          rows={7}
          spellCheck={false}
          autoCapitalize="off"
          autoComplete="off"
          aria-invalid={mistakes.length > 0}
          aria-describedby={`${id}-mistakes`}
          onChange={(event) => onChange(event.currentTarget.value)}
          onScroll={(event) => {
            if (below.current !== null) below.current.scrollTop = event.currentTarget.scrollTop;
          }}
        />
      </div>
      <ul id={`${id}-mistakes`} className={classes.mistakes} aria-label="Mistakes in the expression">
        {mistakes.map((one, place) => (
          <li key={place}>
            {one.line != null && (
              <button type="button" onClick={() => go(one)}>
                line {one.line}, column {one.column}, offset {one.offset}
              </button>
            )}{" "}
            {one.message} <Code>{one.code}</Code>
          </li>
        ))}
      </ul>
    </div>
  );
}

function Marked({ text, marks }: { text: string; marks: readonly Mark[] }) {
  const pieces: ReactNode[] = [];
  let at = 0;
  for (const mark of marks) {
    pieces.push(text.slice(at, mark.start));
    const isEmpty = mark.start === mark.end;
    pieces.push(
      <mark key={mark.start} data-start={mark.start} data-end={mark.end}>
        {isEmpty ? "\u00a0" : text.slice(mark.start, mark.end)}
      </mark>,
    );
    at = mark.end;
  }
  return (
    <>
      {pieces}
      {text.slice(at)}
      {"\n"}
    </>
  );
}
