/** How answers are kept and asked again: while the page is seen only, and a refused question is not repeated. */
import { QueryClient } from "@tanstack/react-query";
import { Problem } from "../api/client";

export const queries = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 2_000,
      refetchIntervalInBackground: false,
      refetchOnWindowFocus: true,
      retry: (count, error) => !(error instanceof Problem && error.status >= 400 && error.status < 500) && count < 2,
      retryDelay: (count) => 1000 * 2 ** count,
    },
    mutations: { retry: false },
  },
});
