import type { ViewInfo } from "../../app/registry";

export const views: ViewInfo[] = [
  { path: "/dead-letters", title: "Dead letters", group: "Jobs", order: 3, key: "d", load: () => import("./DeadLettersView") },
];
