import { fileURLToPath } from "node:url";
import react from "@vitejs/plugin-react";
import { defineConfig, type Plugin } from "vite";

/** The API fills these in per response; vite's own server does not, so `npm run dev` fills them in here. */
const placeholders: Plugin = {
  name: "placeholders",
  apply: "serve",
  transformIndexHtml: (html) => html.replaceAll("%BASE%", "/").replaceAll("%NONCE%", ""),
};

/** Elements are made by our JSX runtime, also those of libraries; `npm run dev` uses React's, which shows texts unchanged. */
const RUNTIME = fileURLToPath(new URL("src/parts/jsx-runtime.ts", import.meta.url));
const harmless: Plugin = {
  name: "harmless",
  apply: "build",
  enforce: "pre",
  resolveId: (source, importer) => (source === "react/jsx-runtime" && importer !== RUNTIME ? RUNTIME : null),
};

/** `npm run dev` beside a running API: PAGE_API is its address, PAGE_KEY a key that signs every request. */
const api = process.env["PAGE_API"] ?? "http://127.0.0.1:8420";
const key = process.env["PAGE_KEY"];
const headers: Record<string, string> = key === undefined ? {} : { authorization: `Bearer ${key}` };

export default defineConfig({
  base: "./",
  plugins: [react(), harmless, placeholders],
  server: { proxy: { "/v1": { target: api, headers } } },
  build: {
    outDir: process.env["PAGE_OUT"] ?? "../static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    reportCompressedSize: false,
    chunkSizeWarningLimit: 600,
    // Stable names, so that two branches change one file and not its name; the server puts the build's hash into the path.
    rollupOptions: {
      output: {
        entryFileNames: "assets/[name].js",
        chunkFileNames: "assets/[name].js",
        assetFileNames: "assets/[name][extname]",
      },
    },
  },
});
