/** A listing by cursor: pages are fetched as the viewer scrolls, and asked again while he looks. */
import { keepPreviousData, useInfiniteQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { updating } from "../app/prefs";

export interface PageOf<T> {
  items: T[];
  next?: string | null | undefined;
}

interface Options<T, P extends PageOf<T>> {
  /** First the name of the list, as in the overview's `changes`; then the filters. */
  queryKey: readonly unknown[];
  load: (cursor: string | undefined, signal: AbortSignal) => Promise<P>;
  /** How often it is asked again by itself, in milliseconds; `false` where the overview's hints are enough. */
  every?: number | false;
  /** Off where a page may be short because a look is bounded: then the viewer says whether to look further. */
  onScroll?: boolean;
}

export interface Pages<T, P = PageOf<T>> {
  /** The pages as they came, where they say more than their items. */
  pages: readonly P[];
  /** What came last; a problem that came later takes nothing away. */
  rows: T[] | undefined;
  error: unknown;
  busy: boolean;
  hasMore: boolean;
  onScroll: boolean;
  more: () => void;
  again: () => void;
}

/** A list that somebody scrolled far into is not fetched again as a whole each time. */
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
