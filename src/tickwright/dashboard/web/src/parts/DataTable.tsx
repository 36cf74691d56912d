/**
 * A table of any length: only visible rows are rendered, and it is still an HTML table, with headers.
 *
 * Arrows move between rows, Enter opens one, Space chooses it. It fills the height that is left in its view.
 */
import { Checkbox } from "@mantine/core";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useRef, useState, type KeyboardEvent, type ReactNode } from "react";
import { markUsable } from "../app/usable";
import { ErrorBox } from "./ErrorBox";
import { SkeletonRows } from "./SkeletonRows";
import classes from "./table.module.css";
import type { Pages } from "./usePages";
import type { Selection } from "./useSelection";

export interface Column<T> {
  id: string;
  header: string;
  cell: (row: T) => ReactNode;
  /** A CSS width; one column without a width takes what is left. */
  width?: number | string;
  align?: "right";
  /** Keeps its width on a phone, where other columns share the width: for buttons and instants, which must not be cut. */
  keep?: boolean;
  /** Hidden in windows narrower than 48em (`sm`) or 75em (`md`). */
  hide?: "sm" | "md";
}

interface Props<T> {
  /** Describes the table for screen readers. */
  label: string;
  columns: readonly Column<T>[];
  pages: Pick<Pages<T>, "rows" | "error"> & Partial<Pages<T>>;
  rowKey: (row: T) => string;
  /** The name of a row in the label of its checkbox. */
  rowName?: (row: T) => string;
  onOpen?: (row: T) => void;
  openKey?: string | null;
  selection?: Selection;
  empty: ReactNode;
  /** Grows with its rows instead of filling the height; for short lists within a view. */
  grows?: boolean;
}

const ROW_PX = 33;
const AHEAD = 12;

export function DataTable<T>(props: Props<T>) {
  const { label, columns, pages, rowKey, selection, grows = false } = props;
  const rows = pages.rows;
  const place = useRef<HTMLDivElement>(null);
  const [active, setActive] = useState(0);
  const virtual = useVirtualizer({
    count: rows?.length ?? 0,
    getScrollElement: () => place.current,
    estimateSize: () => ROW_PX,
    overscan: AHEAD,
  });
  const visible = virtual.getVirtualItems();
  const last = visible.at(-1)?.index ?? 0;
  const { hasMore = false, busy = false, onScroll = true, more, error } = pages;
  useEffect(() => {
    if (hasMore && onScroll && !busy && error == null && rows !== undefined && last >= rows.length - AHEAD) more?.();
  }, [hasMore, onScroll, busy, error, last, rows, more]);

  useEffect(() => {
    if (rows !== undefined) markUsable();
  }, [rows]);

  function move(to: number): void {
    const index = Math.max(0, Math.min((rows?.length ?? 1) - 1, to));
    setActive(index);
    virtual.scrollToIndex(index);
    requestAnimationFrame(() => place.current?.querySelector<HTMLElement>(`tr[data-row="${index}"]`)?.focus());
  }
  function onKeyDown(event: KeyboardEvent): void {
    const row = rows?.[active];
    if (row === undefined || !(event.target instanceof HTMLTableRowElement)) return;
    const does: Record<string, () => void> = {
      ArrowDown: () => move(active + 1),
      ArrowUp: () => move(active - 1),
      PageDown: () => move(active + 15),
      PageUp: () => move(active - 15),
      Home: () => move(0),
      End: () => move((rows?.length ?? 1) - 1),
      Enter: () => props.onOpen?.(row),
      " ": () => selection?.toggle(rowKey(row)),
    };
    const act = does[event.key];
    if (act === undefined) return;
    event.preventDefault();
    act();
  }

  const problem = error == null ? null : <ErrorBox error={error} {...(pages.again ? { onRetry: pages.again } : {})} alone={rows === undefined} kept={rows !== undefined} />;
  if (rows === undefined && problem !== null) return problem;
  const above = visible[0]?.start ?? 0;
  const below = virtual.getTotalSize() - (visible.at(-1)?.end ?? 0);
  return (
    <>
      {problem}
      {rows?.length === 0 ? (
        <div className={classes.empty}>{props.empty}</div>
      ) : (
        <div ref={place} className={classes.place} data-grows={grows} onKeyDown={onKeyDown} tabIndex={-1}>
          <table className={classes.table} aria-label={label} aria-rowcount={rows === undefined || hasMore ? -1 : rows.length + 1} aria-busy={rows === undefined || busy}>
            <thead>
              <tr aria-rowindex={1}>
                {selection && <ChooseAll ids={(rows ?? []).map(rowKey)} selection={selection} />}
                {columns.map((column) => (
                  <th key={column.id} scope="col" style={{ width: column.width }} data-align={column.align} data-hide={column.hide} data-keep={column.keep}>
                    {column.header}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {rows === undefined && <SkeletonRows columns={columns} lead={selection !== undefined} />}
              {above > 0 && <Gap height={above} />}
              {visible.map((item) => {
                const row = rows?.[item.index];
                return row === undefined ? null : (
                  <Row key={rowKey(row)} {...props} row={row} index={item.index} focusable={item.index === active} onFocus={setActive} />
                );
              })}
              {below > 0 && <Gap height={below} />}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

/** Rows that are not rendered. One cell without a span: a span would show columns that a narrow window hides. */
function Gap({ height }: { height: number }) {
  return (
    <tr aria-hidden="true">
      <td style={{ height, padding: 0, border: 0 }} />
    </tr>
  );
}

function ChooseAll({ ids, selection }: { ids: string[]; selection: Selection }) {
  const chosen = ids.filter(selection.has).length;
  return (
    <th scope="col" className={classes.choose}>
      <Checkbox
        aria-label="Choose all rows that are loaded"
        checked={ids.length > 0 && chosen === ids.length}
        indeterminate={chosen > 0 && chosen < ids.length}
        onChange={(event) => selection.put(ids, event.currentTarget.checked)}
      />
    </th>
  );
}

interface RowProps<T> extends Props<T> {
  row: T;
  index: number;
  focusable: boolean;
  onFocus: (index: number) => void;
}

function Row<T>({ row, index, columns, rowKey, rowName, selection, onOpen, openKey, focusable, onFocus }: RowProps<T>) {
  const id = rowKey(row);
  return (
    <tr
      data-row={index}
      data-key={id}
      aria-rowindex={index + 2}
      tabIndex={focusable ? 0 : -1}
      data-opens={onOpen !== undefined}
      data-open={openKey === id}
      data-chosen={selection?.has(id)}
      onFocus={() => onFocus(index)}
      onClick={() => onOpen?.(row)}
    >
      {selection && (
        <td className={classes.choose} onClick={(event) => event.stopPropagation()}>
          <Checkbox aria-label={`Choose ${rowName?.(row) ?? id}`} checked={selection.has(id)} onChange={() => selection.toggle(id)} />
        </td>
      )}
      {columns.map((column) => (
        <td key={column.id} data-align={column.align} data-hide={column.hide}>
          {column.cell(row)}
        </td>
      ))}
    </tr>
  );
}
