/** The data of a query that is fetched repeatedly: if a request fails, the last data stays, with the problem above it. */
import type { ReactNode } from "react";
import { ErrorBox } from "./ErrorBox";
import { Waiting } from "./Waiting";

interface Props<T> {
  of: { data: T | undefined; error: unknown; refetch: () => unknown };
  /** The height of the placeholder while the data loads. */
  lines?: number;
  /** Without data, show the problem in the middle of the view. */
  alone?: boolean;
  children: (data: T) => ReactNode;
}

export function Answer<T>({ of: found, lines = 6, alone = false, children }: Props<T>) {
  const retry = () => void found.refetch();
  if (found.data === undefined) return found.error ? <ErrorBox error={found.error} onRetry={retry} alone={alone} /> : <Waiting lines={lines} />;
  return (
    <>
      {found.error != null && <ErrorBox error={found.error} onRetry={retry} kept />}
      {children(found.data)}
    </>
  );
}
