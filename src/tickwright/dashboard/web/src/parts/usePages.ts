/** A listing by cursor: pages are fetched while scrolling, and fetched again while they are shown. */
import { keepPreviousData, useInfiniteQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { updating } from "../app/prefs";

export interface PageOf<T> {
  items: T[];
  next?: string | null | undefined;
}

interface Options<T, P extends PageOf<T>> {
  /** The name of the list, as in the overview's `changes`; then the filters. */
  queryKey: readonly unknown[];
  load: (cursor: string | undefined, signal: AbortSignal) => Promise<P>;
  /** Milliseconds between two refreshes; `false`: refreshed only when the overview says that the list has changed. */
  every?: number | false;
  /** Off if a search is bounded, so that a page may be short: then a button fetches the next page. */
  onScroll?: boolean;
}

export interface Pages<T, P = PageOf<T>> {
  /** The pages as received, for fields beside their items. */
  pages: readonly P[];
  /** The rows that were received last; they stay after an error. */
  rows: T[] | undefined;
  error: unknown;
  busy: boolean;
  hasMore: boolean;
  onScroll: boolean;
  more: () => void;
  again: () => void;
}

/** A list with more loaded pages is not refreshed: that would fetch all of them again. */
const PAGES_REFETCHED_MAX = 3;

export function usePages<T, P extends PageOf<T> = PageOf<T>>(options: Options<T, P>): Pages<P["items"][number], P> {
  const { queryKey, load, every = 5_000, onScroll = true } = options;
  const held = updating.use() === "held";
  const found = useInfiniteQuery({
    queryKey,
    queryFn: ({ pageParam, signal }) => load(pageParam, signal),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (last) => last.next ?? undefined,
    refetchInterval: ({ state }) => (held || (state.data?.pages.length ?? 0) > PAGES_REFETCHED_MAX ? false : every),
    placeholderData: keepPreviousData,
  });
  const rows = useMemo(() => found.data?.pages.flatMap((page) => page.items), [found.data]);
  return {
    pages: found.data?.pages ?? [],
    rows,
    error: found.error,
    busy: found.isFetchingNextPage || found.isPlaceholderData,
    hasMore: found.hasNextPage,
    onScroll,
    more: () => {
      if (found.hasNextPage && !found.isFetchingNextPage) void found.fetchNextPage();
    },
    again: () => void (found.isFetchNextPageError ? found.fetchNextPage() : found.refetch()),
  };
}
