import type { ViewInfo } from "../../app/registry";

export const views: ViewInfo[] = [{ path: "/leases", title: "Leases", group: "Operation", order: 2, key: "e", load: () => import("./LeasesView") }];
