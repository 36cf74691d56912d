/** What a question was answered, while it is asked again and again: what came last stays, a problem stands above it. */
import type { ReactNode } from "react";
import { ErrorBox } from "./ErrorBox";
import { Waiting } from "./Waiting";

interface Props<T> {
  of: { data: T | undefined; error: unknown; refetch: () => unknown };
  /** Makes the place that waits as high as what comes. */
  lines?: number;
  /** Where nothing came so far, the problem stands in the middle of the view. */
  alone?: boolean;
  children: (data: T) => ReactNode;
}

export function Answer<T>({ of: found, lines = 6, alone = false, children }: Props<T>) {
  const again = () => void found.refetch();
  if (found.data === undefined) return found.error ? <ErrorBox error={found.error} onRetry={again} alone={alone} /> : <Waiting lines={lines} />;
  return (
    <>
      {found.error != null && <ErrorBox error={found.error} onRetry={again} kept />}
      {children(found.data)}
    </>
  );
}
