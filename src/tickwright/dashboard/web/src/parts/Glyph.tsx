/** The icons of the dashboard, in the colour of the text beside them. */
const PATHS = {
  check: "M3 8.5 6.5 12 13 4.5",
  copy: "M5.5 5.5h8v8h-8zM2.5 10.5v-8h8",
  close: "M3.5 3.5l9 9M12.5 3.5l-9 9",
  search: "M7 2.5a4.5 4.5 0 1 1 0 9 4.5 4.5 0 0 1 0-9ZM10.5 10.5l3.5 3.5",
  sun: "M8 5a3 3 0 1 1 0 6 3 3 0 0 1 0-6ZM8 1v1.5M8 13.500V15M1 8h1.500M13.5 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1",
  moon: "M13.5 9.500A6 6 0 0 1 6.5 2.5 6 6 0 1 0 13.5 9.500Z",
  keys: "M1.5 4h13v8h-13zM4 7h.01M7 7h.01M10 7h.01M12.5 7h.01M5 9.700h6",
  pause: "M5.5 3v10M10.5 3v10",
  play: "M4.5 2.800v10.400l8-5.200z",
  person: "M8 2.200a2.8 2.8 0 1 1 0 5.6 2.8 2.8 0 0 1 0-5.600ZM2.5 14c.6-3 2.8-4.3 5.5-4.300s4.9 1.3 5.5 4.3",
  more: "M3 8h.01M8 8h.01M13 8h.01",
  right: "M6 3.5 10.5 8 6 12.5",
  down: "M3.5 6 8 10.5 12.5 6",
  plus: "M8 3v10M3 8h10",
} as const;

export type GlyphName = keyof typeof PATHS;

export function Glyph({ name, size = 16 }: { name: GlyphName; size?: number }) {
  return (
    <svg width={size} height={size} viewBox="0 0 16 16" fill="none" stroke="currentColor" strokeWidth="1.5" strokeLinecap="round" strokeLinejoin="round" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}
