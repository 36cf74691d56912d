/** Placeholder rows of a table that loads. */
import { Skeleton } from "@mantine/core";
import type { Column } from "./DataTable";

export function SkeletonRows<T>({ columns, lead }: { columns: readonly Column<T>[]; lead: boolean }) {
  return Array.from({ length: 12 }, (_, line) => (
    <tr key={line} aria-hidden="true">
      {lead && <td />}
      {columns.map((column) => (
        <td key={column.id} data-hide={column.hide}>
          <Skeleton height={10} width={column.align === "right" ? "40%" : "70%"} ml={column.align === "right" ? "auto" : 0} />
        </td>
      ))}
    </tr>
  ));
}
