/**
 * Text of users with invisible characters: bidirectional controls reverse the text around them, and characters without
 * width make two names look the same. Each is shown as its code point.
 *
 * Every text of the dashboard passes `pieces` or `plain`, because `jsx-runtime` creates every element.
 */

/** Controls, direction marks, characters without width, invisible fillers, line separators, tags. */
const ACTS =
  /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\u{e0000}-\u{e007f}]/u;
const EACH = new RegExp(`(${ACTS.source})`, "u");
const ALL = new RegExp(ACTS.source, "gu");

const named = (character: string) => `U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;

/** Return a text for places that hold only text, such as a tooltip. */
export function plain(text: string): string {
  return ACTS.test(text) ? text.replace(ALL, (character) => `[${named(character)}]`) : text;
}

/** Return the pieces of a text, every second one the name of a code point; `null` for a harmless text. */
export function pieces(text: string): readonly string[] | null {
  if (!ACTS.test(text)) return null;
  return text.split(EACH).map((piece, place) => (place % 2 === 1 ? named(piece) : piece));
}
