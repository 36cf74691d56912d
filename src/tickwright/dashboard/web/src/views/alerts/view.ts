import type { ViewInfo } from "../../app/registry";

export const views: ViewInfo[] = [
  { path: "/alerts", title: "Alerts", group: "Operation", order: 4, key: "l", load: () => import("./AlertsView") },
  { path: "/receivers", title: "Alert receivers", group: "Operation", order: 5, role: "admin", load: () => import("./ReceiversView") },
];
