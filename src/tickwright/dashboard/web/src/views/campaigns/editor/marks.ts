/**
 * Where a mistake is in a text, for a browser: the API counts characters of Unicode, a browser's texts count UTF-16.
 */
import type { Schemas } from "../../../api/client";

export type Mistake = Schemas["Mistake"];

export interface Mark {
  /** Of the text as a browser counts it; `end` is behind the last one. */
  start: number;
  end: number;
  mistakes: readonly Mistake[];
}

/** Return where the character number `offset` begins. */
export function placeOf(text: string, offset: number): number {
  let place = 0;
  for (let left = offset; left > 0 && place < text.length; left--) place += (text.codePointAt(place) ?? 0) > 0xffff ? 2 : 1;
  return place;
}

/** A mark reaches over the word, the number or the text in quotes that begins at its place, else over one character. */
const PIECE = /^(?:[\p{L}\p{N}_]+(?:\.[\p{L}\p{N}_]+)*|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|&&|\|\||[=!<>]=|[^\n])/u;

/** Return the marks of a text in their order; mistakes at one place share one, and none reaches into the next. */
export function marksOf(text: string, mistakes: readonly Mistake[]): Mark[] {
  const placed = new Map<number, Mistake[]>();
  for (const one of mistakes) {
    if (one.offset == null) continue;
    const place = placeOf(text, one.offset);
    placed.set(place, [...(placed.get(place) ?? []), one]);
  }
  const starts = [...placed.keys()].sort((a, b) => a - b);
  return starts.map((start, index) => {
    const length = PIECE.exec(text.slice(start))?.[0].length ?? 0;
    const end = Math.min(start + length, starts[index + 1] ?? Infinity);
    return { start, end, mistakes: placed.get(start) ?? [] };
  });
}
