import type { ViewInfo } from "../../app/registry";

export const views: ViewInfo[] = [
  {
    path: "/accounts",
    title: "Accounts",
    group: "Polling",
    order: 1,
    key: "a",
    load: () => import("./AccountsView"),
    find: (text) => [{ label: `Accounts with ${text} in their id`, to: `/accounts?text=${encodeURIComponent(text)}` }],
  },
];
