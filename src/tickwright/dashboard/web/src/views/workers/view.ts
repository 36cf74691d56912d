import type { ViewInfo } from "../../app/registry";

export const views: ViewInfo[] = [
  {
    path: "/workers",
    title: "Workers",
    group: "Operation",
    order: 1,
    key: "w",
    load: () => import("./WorkersView"),
    find: (text) => [{ label: `Workers with ${text} in their name`, to: `/workers?text=${encodeURIComponent(text)}` }],
  },
];
